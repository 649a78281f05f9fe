"""Metrics, summaries and states, computed from run folders."""
