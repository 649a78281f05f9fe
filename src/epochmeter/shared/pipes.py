"""Metrics of the utilization of a GPU's pipes, by the names that Nsight Compute and CUPTI share.

Python 3.6 and standard library only.
"""

UTILIZATION = "sm__inst_executed_pipe_{}.avg.pct_of_peak_sustained_elapsed"
PIPES = {pipe: UTILIZATION.format(pipe) for pipe in ("fma", "alu", "fp16", "tensor", "xu")}
"""Pipe -> the metric of its utilization in percent."""
DURATION = "gpu__time_duration.sum"
"""Duration of a kernel; CUPTI's is in ns."""
PIPE_METRICS = (DURATION, *PIPES.values())
