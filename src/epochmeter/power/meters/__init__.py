"""Instruments that count joules or tell power, one a file."""
