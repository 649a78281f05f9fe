"""Energy by phase of a window, from power samples and the intervals of its steps."""
