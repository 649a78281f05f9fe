"""Analysis of profiler traces: what the device did in the traced steps, and for which part of the model."""
