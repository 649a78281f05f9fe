"""Profiles of a run, after all measurements: the profiler's trace with its power, and training under NVIDIA Nsight."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from epochmeter.config.installation import python_path
from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.machine.signals import signal_name
from epochmeter.power.meter import EnergyMeter
from epochmeter.results import documents
from epochmeter.results.run_info import SensorResponse, TracedSteps
from epochmeter.run.instruments import write_powers
from epochmeter.run.launch import NSIGHT_LOG, launched
from epochmeter.run.plan import Plan
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.problem import format_problem, read_problem
from epochmeter.shared.protocol import Message, Traced, TraceFailed
from epochmeter.shared.record import NCU_CSV, TRACE, TRACE_ANALYSIS
from epochmeter.trace.nsight import PIPE_METRICS, NsightError, analyze_pipes, error_in

TIMEOUT_S = 300.0  # longest time of an analysis: a trace of 1 GB takes a minute
RESULTS = {"ncu": "utilization of pipes", "nsys": "report of Nsight Systems"}
NSYS_REPORT = "nsight"  # report of Nsight Systems, without the suffix, which depends on its version


def finish_trace(
    messages: Iterator[Message], plan: Plan, meter: EnergyMeter, analysis: "TraceAnalysis | None" = None
) -> list[str]:
    """Record the power of the profiler's trace; return notes on failures, which do not fail the run.

    The analysis begins at once if nothing is measured at the end of training: neither energy, nor steps under Nsight.
    """
    notes = []
    try:
        for message in messages:
            match message:
                case TraceFailed():
                    notes.append(format_problem(message.problem))
                case Traced():
                    plan.run.traced = traced_power(message, plan, meter)
                    plan.describe(durably=False)
                    if analysis and not (plan.run.energy.is_measured or plan.job.profiler.program):
                        analysis.start()
    except WorkerError as error:  # the trace is written before the memory by kind is measured
        failure = "the process failed after the trace" if (plan.record.folder / TRACE).exists() else "no trace"
        notes.append(f"{failure}: {error}")
    return notes


def traced_power(traced: Traced, plan: Plan, meter: EnergyMeter) -> TracedSteps:
    """Record the power samples of traced steps; return their times, uncertainty in J and sensor response, or a reason.

    The energy itself is computed by the analysis of the trace.
    """
    steps = traced_steps(traced)
    sampling = meter.sampling(traced.opened_ns, traced.closed_ns)
    powers = write_powers(meter, plan.record)
    if sampling is None or not powers.times_ns:
        reason = meter.energy["reason"] or "power is not sampled."
        code = next(iter(meter.energy.get("codes", [])), EnergyCode.NO_SENSOR.value)
    elif meter.energy["source"] == "estimated":
        reason, code = "energy is estimated, not measured.", EnergyCode.ESTIMATED.value
    elif (plan.ranks or 1) * plan.node.nodes > 1:
        reason = "several ranks train, and their modules run at different times."
        code = EnergyCode.NO_PHASES.value
    elif sampling.unavailable:
        reason = "; ".join(f"{domain}: {why}" for domain, why in sampling.unavailable.items())
        code = EnergyCode.SENSOR_LOST.value
    elif sampling.peak_w is None:
        reason, code = "the parts of the total are sampled at different times.", EnergyCode.NO_PHASES.value
    else:
        response = documents.check(powers.response._asdict(), SensorResponse) if powers.response else None
        return {**steps, "energy_uncertainty_j": sampling.half_width_j, "response": response}
    return {**steps, "reason": reason, "code": code}


def traced_steps(traced: Traced) -> TracedSteps:
    """Return the metadata of traced steps without their power."""
    times: TracedSteps = {"opened_ns": traced.opened_ns, "closed_ns": traced.closed_ns}
    return {**times, "wall_offset_ns": traced.wall_offset_ns, "loads": traced.loads}


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


def profile_steps(plan: Plan) -> list[str]:
    """Train the first steps again under Nsight; return why there is no result, or an empty list. It fails no run."""
    profiler, folder = plan.job.profiler, plan.record.folder
    if profiler.program is None:
        return []
    (folder / NCU_CSV).unlink(missing_ok=True)
    began_s = time.monotonic()
    try:
        if plan.run.training["accelerator"] != "cuda":
            raise NsightError("Nsight profiles NVIDIA GPUs, but this run does not train on one")
        if plan.job.strategy.has_processes:
            cause = "kernels are profiled one by one, so ranks would wait for each other"
            raise NsightError(f"{cause}; use `strategy=single`")
        command = nsight_command(profiler.name, profiler.program, folder)
        with launched(folder, plan.job.device.python, plan.gpus, limit_s=profiler.timeout_s, nsight=command) as worker:
            for _ in worker.messages():
                pass  # progress
        if profiler.name != "nsys":
            analyze_pipes(folder / NCU_CSV)
        elif not any(folder.glob(f"{NSYS_REPORT}.*rep")):
            raise NsightError(f"Nsight Systems wrote no report; see its log, {folder / NSIGHT_LOG}")
    except WorkerError as error:
        output = [path.read_text(errors="replace") for path in (folder / NCU_CSV, folder / NSIGHT_LOG) if path.exists()]
        reasons = filter(None, (error_in("\n".join(output)), str(error)))
        cause = f"under {profiler.program}, {'; '.join(reasons)}"
    except (NsightError, ValueError, OSError) as error:
        cause = str(error)
    else:
        return []
    if time.monotonic() - began_s >= profiler.timeout_s:
        cause = f"{profiler.program} took longer than profiler.timeout_s={profiler.timeout_s:g} and was stopped"
    return [f"no {RESULTS.get(profiler.name, profiler.name)}: {cause}"]


def nsight_command(name: str, program: str, folder: Path) -> list[str]:
    """Return the beginning of a command that profiles marked steps of training; NsightError without the program."""
    path = shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin")))
    if path is None:
        raise NsightError(f"no program `{program}` is found: install NVIDIA Nsight, or set `profiler.program=`")
    if name == "nsys":
        capture = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        return [path, "profile", *capture, "--force-overwrite=true", f"--output={folder / NSYS_REPORT}"]
    # The clocks stay as the job has set them.
    collect = ["--target-processes", "all", "--profile-from-start", "off", "--clock-control", "none"]
    output = ["--csv", "--page", "raw", "--log-file", str(folder / NCU_CSV)]
    return [path, *collect, "--metrics", ",".join(PIPE_METRICS), *output]
