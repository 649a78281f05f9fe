"""Sweeps: folders, grids, and search with Optuna."""
