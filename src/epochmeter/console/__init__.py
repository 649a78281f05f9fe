"""Output of runs in progress and at their end."""
