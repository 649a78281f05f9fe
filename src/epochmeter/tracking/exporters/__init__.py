"""Exporters of runs to other trackers than MLflow, one per module."""
