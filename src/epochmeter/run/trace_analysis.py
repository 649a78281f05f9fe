"""The analysis of a run's trace, in a process of its own."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from epochmeter.config.installation import python_path
from epochmeter.machine.signals import signal_name
from epochmeter.shared.problem import format_problem, read_problem
from epochmeter.shared.record import TRACE, TRACE_ANALYSIS

TIMEOUT_S = 300.0  # longest time of an analysis: a trace of 1 GB takes a minute


class TraceAnalysis:
    """The analysis of a run's trace, in a process of its own, which ends with the `with` block. It fails no run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._not_started = ""

    def __enter__(self) -> "TraceAnalysis":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()

    def start(self) -> None:
        """Start the process; if there is none, as without memory, `notes` has the reason."""
        command = [sys.executable, "-m", "epochmeter.trace.analysis", str(self._folder)]
        environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
        try:
            (self._folder / TRACE_ANALYSIS).unlink(missing_ok=True)
            self._process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            self._not_started = f"no trace metrics: {error}"

    def notes(self) -> list[str]:
        """Wait for the analysis, which starts now unless it has; return why there is none, or an empty list."""
        if not (self._folder / TRACE).exists():
            return []
        if not (self._process or self._not_started):
            self.start()
        if self._process is None:
            return [self._not_started]
        try:
            output, errors = self._process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return [f"no trace metrics: the analysis took more than {TIMEOUT_S:g} s; the trace is kept"]
        code = self._process.returncode
        return [f"no trace metrics: {_analysis_failure(code, output, errors)}"] if code else []


def _analysis_failure(code: int, output: str, errors: str) -> str:
    """Return why an analysis failed: the problem that it wrote, or else the last line of its traceback, or its end."""
    with suppress(ValueError):
        if problem := read_problem(json.loads(output)):
            return format_problem(problem)
    end = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    *_, last = errors.strip().splitlines() or [f"the analysis {end}"]
    return last
