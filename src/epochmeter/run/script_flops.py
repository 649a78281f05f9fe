"""FLOPs of a script from the operators of one of its steps, and the peaks of its device, measured after its end."""

import json
import os
import select
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from epochmeter.config.installation import python_path
from epochmeter.config.request import users_environment
from epochmeter.config.script import ATTACHED
from epochmeter.results import documents
from epochmeter.results.run_info import CountedFlops, Peaks, RunInfo
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.plan import Plan
from epochmeter.segmentation.script import ScriptWindows
from epochmeter.shared.peaks_cache import cached_peaks
from epochmeter.shared.record_files import read_document
from epochmeter.shared.types import Document
from epochmeter.trace.operators import CountedStep, UnreadableError, count_step

LIMIT_S = 60.0  # in which the peaks are measured, including the import of torch
LATE = f"it took more than {LIMIT_S:g} s"
ENDED = "the script's Python ended before it had measured them"
NO_PRECISION = "the numeric precision of the script's products is not known"
FP32 = "fp32"
NO_FLOPS = "no operator with FLOPs was seen, as in a CUDA graph"


def count_flops(run: RunInfo, windows: ScriptWindows) -> bool:
    """Set the FLOPs of a script in `run`, or why they are not known; return whether that was possible now."""
    operators = windows.main.windows.operators if windows.main else {}
    facts = next((facts for facts in operators.values() if {"reason", "samples"} & facts.keys()), None)
    if facts is None:
        return False
    counted, step = _counted(facts, windows.folder)
    run.training = {**run.training, "step": counted}
    if step is None:
        return True
    samples = counted.get("samples")
    executed, recomputed = step.flops / (samples or 1.0), step.recomputed / (samples or 1.0)
    run.model = {"operator_calls": step.calls}
    if samples is None:
        run.model |= {"flops_per_step": executed, "recomputed_flops_per_step": recomputed}
    else:
        run.model |= {
            "flops_per_sample": executed,
            "recomputed_flops_per_sample": recomputed,
            "operator_bytes_per_sample": step.bytes / samples,
            "uncached_bytes_per_sample": step.uncached_bytes / samples,
        }
    run.training = {
        **run.training,
        "conventions": {"counted": executed - recomputed},
        "operators": step.operators,
    }
    return True


def _counted(facts: Mapping[str, Any], folder: Path) -> tuple[CountedFlops, CountedStep | None]:
    """Return the FLOPs of a step by the facts on its operators, and delete their file."""
    if "reason" in facts:
        return {"reason": str(facts["reason"])}, None
    path = folder / os.path.basename(facts["file"])
    try:
        step = count_step(path, facts["cache_bytes"])
    except (OSError, ValueError, UnreadableError) as error:
        return {"reason": f"its operators cannot be read: {error}"}, None
    finally:
        with suppress(OSError):
            path.unlink()
    if not step.flops:
        return {"reason": NO_FLOPS}, None
    samples = facts["samples"]
    counted: CountedFlops = {
        "flops": step.flops,
        "recomputed_flops": step.recomputed,
        "samples": samples if samples > 0 else None,
        "precision": precision_of(step, facts["tf32"]),
        "not_counted": dict(step.not_counted),
    }
    return counted, step


def precision_of(step: CountedStep, tf32: Mapping[str, bool | None]) -> str | None:
    """Return the numeric precision of most of the FLOPs; None if it is not known.

    `tf32` states whether `products` and `convolutions` in fp32 are computed in tf32, None if that is not known.
    """
    flops: Counter[str | None] = Counter()
    for (precision, is_convolution), count in step.precisions.items():
        uses_tf32 = tf32["convolutions" if is_convolution else "products"]
        if precision == FP32 and uses_tf32 is not False:
            flops["tf32" if uses_tf32 else None] += count
        else:
            flops[precision] += count
    ((precision, most),) = flops.most_common(1)
    return precision if 2 * most > flops.total() else None


def measure_peaks(plan: Plan, instruments: WindowInstruments, windows: ScriptWindows) -> None:
    """Set the peaks of a script's device in the run, or why they are not known, once the script has ended.

    Its Python measures them in a process of its own, with as many threads. Without FLOPs there is nothing to measure
    for, and a script that waits for the end of its `Meter` still uses the device.
    """
    training = plan.run.training
    counted = training.get("step", {})
    operators = windows.main.windows.operators if windows.main else {}
    facts = next((facts for facts in operators.values() if "python" in facts), None)
    has_no_use = "flops" not in counted or plan.job.roofline.peaks == "none"
    if has_no_use or facts is None or ATTACHED in os.environ:
        return
    precision = counted.get("precision")
    peaks: Peaks = {"reason": NO_PRECISION}
    if precision is not None:
        try:
            peaks = documents.check(_peaks(plan, precision, facts, instruments), Peaks)
        except (OSError, ValueError, KeyError) as error:
            peaks = {"reason": str(error) or type(error).__name__}
    plan.run.training = {**training, "peaks": peaks}
    plan.describe()


def _peaks(plan: Plan, precision: str, facts: Mapping[str, Any], instruments: WindowInstruments) -> Document:
    """Return the peaks in a precision from the cache, or measured now; OSError, ValueError or KeyError."""
    training, host, applied, mode = (
        plan.run.training,
        plan.record.host(),
        plan.run.applied or {},
        plan.job.roofline.peaks,
    )
    name = training["gpu"]["name"] if "gpu" in training else host.get("cpu")
    path = Path(cached_peaks(name, facts["threads"], precision, training["torch"] or "", applied, host))
    if mode == "cached" and path.exists():
        return dict(read_document(path))
    request = {
        "job": {"roofline": {"peaks": mode}, "precision": precision},
        "applied": applied,
        "host": host,
        "device": training["accelerator"],
        "threads": facts["threads"],
    }
    return converse(facts["python"], facts["devices"], request, instruments)


def converse(python: str, devices: str | None, request: Document, instruments: WindowInstruments) -> Document:
    """Let a Python measure the peaks, and reply what other processes did meanwhile; OSError or ValueError."""
    visible = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    command = [python, "-m", "epochmeter.worker.script_peaks"]
    environment = {**users_environment(), **visible, "PYTHONPATH": python_path()}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    ) as process:
        try:
            instruments.own_processes([process.pid])
            return _peaks_of(process, request, instruments)
        finally:
            process.kill()


def _peaks_of(process: "subprocess.Popen[bytes]", request: Document, instruments: WindowInstruments) -> Document:
    assert process.stdin
    assert process.stdout
    until_s, since_ns = time.monotonic() + LIMIT_S, None
    message: Document | str = request
    while True:
        with suppress(BrokenPipeError):  # it has ended, as its output shows
            process.stdin.write(json.dumps(message).encode() + b"\n")
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, until_s - time.monotonic()))
        if not readable:
            raise TimeoutError(LATE)
        line = process.stdout.readline()
        if not line:
            raise OSError(ENDED)
        reply = json.loads(line)
        if "border" not in reply:
            return dict(reply["peaks"])
        since_ns, others = instruments.mark_others(since_ns)
        message = "; ".join(others)
