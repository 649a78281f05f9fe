"""Sweeps: folders, progress, and search with Optuna."""
