"""Profiles of a run: the profiler's trace with its power, and, after all measurements, training under NVIDIA Nsight."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.power.meter import EnergyMeter
from epochmeter.results import documents
from epochmeter.results.run_info import SensorResponse, TracedSteps
from epochmeter.run.instruments import write_powers
from epochmeter.run.launch import NSIGHT_LOG, launched
from epochmeter.run.plan import Plan
from epochmeter.run.trace_analysis import TraceAnalysis
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.problem import format_problem
from epochmeter.shared.protocol import Message, Traced, TraceFailed
from epochmeter.shared.record import NCU_CSV, TRACE
from epochmeter.trace.nsight import PIPE_METRICS, NsightError, analyze_pipes, error_in

RESULTS = {"ncu": "utilization of pipes", "nsys": "report of Nsight Systems"}
NSYS_REPORT = "nsight"  # report of Nsight Systems, without the suffix, which depends on its version


def finish_trace(
    messages: Iterator[Message], plan: Plan, meter: EnergyMeter, analysis: TraceAnalysis | None = None
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
