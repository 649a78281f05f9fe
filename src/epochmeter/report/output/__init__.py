"""Outputs of a report: HTML page, Markdown, tables, terminal and files."""
