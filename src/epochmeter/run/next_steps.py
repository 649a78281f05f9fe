"""The next steps of a run on this machine: what the machine offers, and the steps that it allows."""

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

from epochmeter.config.installation import ROOT, with_own_commands
from epochmeter.config.schema import Job
from epochmeter.config.suggestions import option_content
from epochmeter.machine.cores import usable_cores
from epochmeter.machine.gpus import find_gpus, meter_id, select_gpus
from epochmeter.machine.recorded.root import root_folder
from epochmeter.power.knobs.jetson import open_fan
from epochmeter.power.meter import open_meter
from epochmeter.results.bottleneck import Verdict, read_bottleneck
from epochmeter.results.documents import Host, Loading, StragglerFields
from epochmeter.results.measured_run import Machine, MeasuredRun
from epochmeter.results.next_steps import NextStep, find_next_steps
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_info import RunInfo
from epochmeter.run.capabilities import knob_row
from epochmeter.shared.overrides import quoted_override
from epochmeter.shared.record import Record

GPU_METERS = {"nvidia": "nvml", "amd": "amd"}
"""Vendor of a GPU -> the option of `meter` for it."""


def next_steps_of(
    record: Record,
    windows: Sequence[Mapping[str, Any]],
    job: Job,
    run: RunInfo,
    metrics: Mapping[str, float],
    epochs: Sequence[Mapping[str, float | None]],
    verdict: Verdict,
    straggler: StragglerFields | None = None,
) -> list[NextStep]:
    """Return the next steps of a run with these windows that has ended here; `epochs` are those of its means."""
    bottleneck = read_bottleneck(verdict.bottleneck, metrics)
    machine = find_machine(job, run, RunFolder(record.folder).host)
    folder, multirun = record.folder.absolute(), ROOT / "multirun"
    name = str(folder.relative_to(multirun) if folder.is_relative_to(multirun) else folder)
    _, _, value = quoted_override("run", name).partition("=")
    loadings = [window["loading"] for window in windows if "loading" in window]
    loading: Loading = loadings[-1] if loadings else {}
    measured = MeasuredRun(job, run, metrics, epochs, bottleneck, machine, shlex.quote(value), loading, straggler or {})
    steps = find_next_steps(measured)
    return [step._replace(change=with_own_commands(step.change)) for step in steps]


def find_machine(job: Job, run: RunInfo, host: Host) -> Machine:
    """Return what this machine offers to a run; meters are tried only if the run has not measured its energy."""
    root, is_board = root_folder(job.machine.root), bool(host.get("board") and host.get("power_modes"))
    on_gpu = run.training.get("accelerator", "cpu") != "cpu"
    gpus = select_gpus(find_gpus(root), os.environ, count=None) if on_gpu else []
    vendor = gpus[0]["vendor"] if gpus else ""
    meters: tuple[str, ...] = ()
    if not run.energy.is_measured:
        name = "rails" if is_board else GPU_METERS.get(vendor, "") if on_gpu else "rapl"
        used = tuple(meter_id(gpu) or "" for gpu in gpus[: job.strategy.ranks or None])
        meters = (name,) if name and is_usable(name, used, root) else ()
    return Machine(
        cores=run.usable_cores or usable_cores(),
        gpus=len(gpus),
        gpu_vendor=vendor,
        meters=meters,
        memory_bytes=host.get("memory_bytes"),
        has_fan=is_board and knob_row("fan", partial(open_fan, job.machine.root), "no fan").offered,
    )


@cache
def is_usable(meter: str, gpus: tuple[str, ...], root: Path) -> bool:
    """Return whether a meter can measure the energy of these GPUs, or of this machine; tried once per process."""
    option = option_content("meter", meter)
    spec = {key: value for key, value in option.items() if "${" not in str(value)}  # keys of the device have defaults
    with closing(open_meter(spec, gpus=gpus, root=root)) as opened:
        return opened.energy["source"] in ("counter", "sampled")
