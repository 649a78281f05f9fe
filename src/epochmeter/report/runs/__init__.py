"""Runs of a report: read from their folders, filtered, and grouped into configurations."""
