"""Analysis of profiler traces: what the device did in the traced steps, and for which part of the model."""

from epochmeter.trace.kineto import Category, Trace, TraceError, load

__all__ = ["Category", "Trace", "TraceError", "load"]
