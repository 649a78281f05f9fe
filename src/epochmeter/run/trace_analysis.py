"""Analysis of the profiler's trace at the end of a run, in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from epochmeter.config.installation import python_path
from epochmeter.shared.record import TRACE, TRACE_ANALYSIS

TIMEOUT_S = 60.0
"""Longest time of an analysis: a trace of 100 MB takes 10 s."""


def analyze_trace(folder: Path) -> list[str]:
    """Analyze the trace of a run; return why there is no analysis, or an empty list. It never fails the run."""
    if not (folder / TRACE).exists():
        return []
    (folder / TRACE_ANALYSIS).unlink(missing_ok=True)
    command = [sys.executable, "-m", "epochmeter.trace", str(folder)]
    environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    try:
        subprocess.run(command, env=environment, timeout=TIMEOUT_S, capture_output=True, text=True, check=True)
    except subprocess.TimeoutExpired:
        return [f"no trace metrics: the analysis took more than {TIMEOUT_S:g} s; the trace is kept"]
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"the analysis ended with exit code {error.returncode}"]
        cause = lines[0] if "\n  hint: " in error.stderr else lines[-1]
        return [f"no trace metrics: {cause}"]
    except OSError as error:
        return [f"no trace metrics: {error}"]
    return []
