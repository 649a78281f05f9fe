"""Energy measurement: meters are cumulative counters, and a window's energy is the difference of two readings."""
