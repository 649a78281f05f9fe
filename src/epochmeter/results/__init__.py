"""Metrics, summaries and states that are computed from the records of runs."""
