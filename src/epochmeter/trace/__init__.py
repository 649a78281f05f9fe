"""Analysis of profiler traces: busy and idle time of the device, and time by module, operator and kernel."""
