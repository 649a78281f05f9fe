"""Analyses of runs; each returns plain results."""
