"""The profiler's trace of a run: the power during its steps, and its analysis in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from epochmeter.config.installation import python_path
from epochmeter.power.meter import Meter
from epochmeter.run.instruments import write_powers
from epochmeter.run.plan import Plan
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.protocol import Message, Traced, TraceFailed
from epochmeter.shared.record import TRACE, TRACE_ANALYSIS

TIMEOUT_S = 60.0
"""Longest time of an analysis: a trace of 100 MB takes 10 s."""


def finish_trace(messages: Iterator[Message], plan: Plan, meter: Meter) -> list[str]:
    """Record the power of the profiler's trace; return why there is no trace, which does not fail the run."""
    notes = []
    try:
        for message in messages:
            match message:
                case TraceFailed():
                    notes.append(message.reason)
                case Traced():
                    plan.describe(traced=traced_power(message, plan, meter))
    except WorkerError as error:
        return [f"no trace: {error}"]
    return notes


def traced_power(traced: Traced, plan: Plan, meter: Meter) -> dict[str, object]:
    """Record the power samples of traced steps; return their times, uncertainty in J and sensor response, or a reason.

    The energy itself is computed by the analysis of the trace.
    """
    sampling = meter.sampling(traced.opened_ns, traced.closed_ns)
    powers = write_powers(meter, plan.record)
    reason = None
    if sampling is None or not powers.times_ns:
        reason = meter.energy["reason"] or "power is not sampled."
    elif meter.energy["source"] == "estimated":
        reason = "energy is estimated, not measured."
    elif (plan.ranks or 1) * plan.node.nodes > 1:
        reason = "several ranks train, and their modules run at different times."
    elif sampling.unavailable:
        reason = "; ".join(f"{domain}: {why}" for domain, why in sampling.unavailable.items())
    elif sampling.peak_w is None:
        reason = "the parts of the total are sampled at different times."
    if reason or not sampling:
        return {**traced._asdict(), "reason": reason}
    response = powers.response._asdict() if powers.response else None
    return {**traced._asdict(), "energy_uncertainty_j": sampling.half_width_j, "response": response}


def analyze_trace(folder: Path) -> list[str]:
    """Analyze the trace of a run; return why there is no analysis, or an empty list. It never fails the run."""
    if not (folder / TRACE).exists():
        return []
    (folder / TRACE_ANALYSIS).unlink(missing_ok=True)
    command = [sys.executable, "-m", "epochmeter.trace.analysis", str(folder)]
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
