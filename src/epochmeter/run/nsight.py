"""Training of a few steps under NVIDIA Nsight Compute or Nsight Systems, after all measurements."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from epochmeter.run.launch import NSIGHT_LOG, launched
from epochmeter.run.plan import Plan
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.record import NCU_CSV
from epochmeter.trace.nsight import PIPE_METRICS, NsightError, analyze_pipes, error_in

RESULTS = {"ncu": "utilization of pipes", "nsys": "report of Nsight Systems"}
NSYS_REPORT = "nsight"
"""Report of Nsight Systems, without the suffix, which depends on its version."""


def profile_steps(plan: Plan) -> list[str]:
    """Train the first steps again under Nsight; return why there is no result, or an empty list. It fails no run."""
    profiler, folder = plan.job.profiler, plan.record.folder
    if profiler.program is None:
        return []
    (folder / NCU_CSV).unlink(missing_ok=True)
    began_s = time.monotonic()
    try:
        _check(plan)
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


def _check(plan: Plan) -> None:
    if plan.run["training"]["accelerator"] != "cuda":
        raise NsightError("Nsight profiles NVIDIA GPUs, but this run does not train on one")
    if plan.job.strategy.has_processes:
        raise NsightError("kernels are profiled one by one, so ranks would wait for each other; use `strategy=single`")


def find_program(program: str) -> str | None:
    """Return the path of a program of NVIDIA Nsight."""
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin")))


def nsight_command(name: str, program: str, folder: Path) -> list[str]:
    """Return the beginning of a command that profiles marked steps of training; NsightError without the program."""
    path = find_program(program)
    if path is None:
        raise NsightError(f"no program `{program}` is found: install NVIDIA Nsight, or set `profiler.program=`")
    if name == "nsys":
        capture = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        return [path, "profile", *capture, "--force-overwrite=true", f"--output={folder / NSYS_REPORT}"]
    # The clocks stay as the job has set them.
    collect = ["--target-processes", "all", "--profile-from-start", "off", "--clock-control", "none"]
    output = ["--csv", "--page", "raw", "--log-file", str(folder / NCU_CSV)]
    return [path, *collect, "--metrics", ",".join(PIPE_METRICS), *output]
