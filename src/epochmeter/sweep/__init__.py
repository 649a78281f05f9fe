"""Sweeps: their folders, their progress, and searches over their parameters."""
