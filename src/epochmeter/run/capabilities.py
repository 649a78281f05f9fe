"""What this machine can measure and set; for everything else the reason and a hint."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.errors import InputError
from epochmeter.config.job import ROOT, local_device_overrides
from epochmeter.config.schema import Device, Examination, Storage
from epochmeter.datasets.ready import training_folder
from epochmeter.machine import host
from epochmeter.machine.disk import describe, disk_of, satisfies
from epochmeter.machine.gauge_sampler import PERIOD_S, open_gauges
from epochmeter.machine.gpu_counters import REMEDIES, counter_ids, is_amd, open_counters
from epochmeter.machine.gpus import Gpu, find_gpus, meter_id, select_gpus
from epochmeter.machine.page_cache import iter_files, resident_fraction
from epochmeter.machine.sysfs import match_group, read_text
from epochmeter.power.knobs.fan import open_fan
from epochmeter.power.knobs.jetson_clocks import open_jetson_clocks
from epochmeter.power.knobs.knob import Knob
from epochmeter.power.knobs.permission import permission
from epochmeter.power.knobs.requests import NO_KNOB_MESSAGES, power_limit_knob
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.meter import Domain, Meter, open_meter, shortest_s
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.window_energy import energy_of_window, take_reading
from epochmeter.run.launch import check_interpreter
from epochmeter.run.preflight import trains_on_gpu
from epochmeter.run.profiling import find_program
from epochmeter.shared.process_identity import boot_id
from epochmeter.shared.units import NANOSECOND

OBSERVE_S, MAX_OBSERVE_S = 0.6, 2.5
"""How long the meter is sampled, in seconds; the longer time is for sensors with a longer averaging time."""
QUANTITIES = {
    "cpu_utilization": ("CPU utilization", "all cores"),
    "gpu_utilization": ("GPU utilization", "the GPUs used"),
    "gpu_clock_mean_hz": ("GPU clock", "the GPUs used"),
    "ram_peak_bytes": ("memory", "RAM of the machine"),
    "network_bytes": ("network traffic", "all interfaces of the machine"),
    "temperature_max_c": ("temperature", "the hottest sensor"),
    "throttling": ("throttling", "why clock rates are reduced"),
}
"""Quantity of a gauge -> its name and coverage."""
NSIGHT = {
    "Nsight Compute": ("ncu", "utilization of pipes in a few steps (profiler=ncu)"),
    "Nsight Systems": ("nsys", "a report of a few steps (profiler=nsys)"),
}
"""Quantity -> its program and coverage."""


class Row(NamedTuple):
    """A quantity that can be measured or a setting that can be changed; None where a field does not apply."""

    quantity: str
    offered: bool
    source: str | None = None
    period_s: float | None = None
    covers: str | None = None
    now: str | None = None
    choices: str | None = None
    sampling_core_fraction: float | None = None
    """The fraction of a core that sampling power takes."""
    why: str | None = None
    """Why it is not available, or not as requested."""
    remedy: str | None = None


def examine_machine(config: Examination, detected: str) -> Iterator[Row]:
    """Check every quantity and setting for a configuration; `detected` is the device that this machine is."""
    root, device = config.machine.root, config.device
    facts = host.device_facts(root)
    here = host.is_match(device.match, facts)
    local = device if here else local_device_overrides(device, [])
    on_gpu = trains_on_gpu(local, facts)
    gpus = select_gpus(find_gpus(Path(root)), os.environ) if on_gpu else []
    names = [name for gpu in gpus if (name := meter_id(gpu))]
    journal = RestoreJournal(config.machine.state_dir, root=root, boot_id=boot_id(), command="doctor")
    yield device_row(device, detected, here, gpus)
    yield from unrestored_rows(journal)
    with closing(open_meter(config.meter.to_dict(), gpus=names, root=root)) as meter:
        yield from energy_rows(meter, config.meter.name)
    yield knob_row("power limit", lambda: power_limit_knob(on_gpu, gpus, root), NO_KNOB_MESSAGES["power_limit"])
    yield knob_row("clocks", lambda: open_jetson_clocks(root, journal.folder), NO_KNOB_MESSAGES["clocks"])
    yield knob_row("fan", lambda: open_fan(root), NO_KNOB_MESSAGES["fan"])
    yield from gauge_rows(names, root)
    folder = training_folder(config.dataset, config.storage, ROOT)
    if folder:
        yield from storage_rows(folder, config.storage)
        yield page_cache_row(folder)
    yield trace_row(local.python)
    yield from counter_rows(counter_ids(gpus, os.environ) if on_gpu else [], Path(root))


def device_row(device: Device, detected: str, here: bool, gpus: list[Gpu]) -> Row:
    """Return whether this machine is the requested device, as a row."""
    if not here:
        why = f"device={device.name} requested, this machine is device={detected}: runs are rehearsals"
        return Row("device", False, why=why, remedy="omit `device=`, or run it on that device")
    models = ", ".join(str(gpu.get("model", gpu["vendor"])) for gpu in gpus)
    title = " with ".join(filter(None, (device.title, models)))
    return Row("device", True, f"device={device.name}", covers=title)


def unrestored_rows(journal: RestoreJournal) -> Iterator[Row]:
    """Yield the settings that killed runs did not restore."""
    for number, text in enumerate(journal.damaged(), 1):
        why, _, remedy = text.partition("\nhint: ")
        yield Row(f"not restored ({number})", False, why=why, remedy=remedy)
    for entry in journal.unrestored():
        why = f"a killed run left it at {entry.ours or 'an unknown setting'} ({entry.when}: {entry.command})"
        remedy = f"the next run restores {entry.was}; to restore it now: {entry.by_hand}"
        yield Row(f"not restored: {entry.knob}", False, why=why, remedy=remedy)


def energy_rows(meter: Meter, name: str) -> Iterator[Row]:
    """Yield rows of the total energy and of the power of each domain, from sampling the meter for a moment."""
    source, covers, reason = meter.energy["source"], meter.energy["covers"], meter.energy["reason"] or ""
    if source == "none":
        yield Row("energy", False, why=reason)
        return
    sampled_s = [shortest_s(domain) for domain in meter.domains.values() if domain.source == "sampled"]
    before, begun_s, used_s = take_reading(meter), time.monotonic(), time.process_time()
    time.sleep(min(MAX_OBSERVE_S, max([OBSERVE_S, *(1.05 * shortest for shortest in sampled_s)])))
    cost = (time.process_time() - used_s) / (time.monotonic() - begun_s)  # of this process, which only samples
    after = take_reading(meter)
    seconds = (after.at_ns - before.at_ns) * NANOSECOND
    used = energy_of_window(before, after, meter, seconds)
    powers = meter.drain(after.at_ns)

    def row(quantity: str, joules: float | None, names: Sequence[str], source: str, covers: str, why: str) -> Row:
        long_enough = all(seconds >= shortest_s(meter.domains[part]) for part in names)
        watts = f"{joules / seconds:.3g} W" if joules is not None and long_enough else None
        period_s = max(achieved_period_s(meter.domains[part], powers, part, before.at_ns) for part in names)
        offered = joules is not None and source != "estimated"
        return Row(quantity, offered, f"{source} (meter={name})", period_s, covers, watts, why=why or None)

    total = meter.total(used.joules)
    lacking = "" if total is not None else "one of its domains has no reading"
    parts = f"{covers}: {' + '.join(meter.energy['domains'])}"
    total_row = row("energy", total, [*meter.domains], source, parts, reason or lacking)
    yield total_row._replace(sampling_core_fraction=round(cost, 4) if powers.times_ns else None)
    for domain, part in meter.domains.items():
        joules = used.joules.get(domain)
        lacking = "" if joules is not None else "the counter does not advance, or cannot be read"
        yield row(f"power: {domain}", joules, [domain], part.source, part.covers, used.unavailable.get(domain, lacking))


def achieved_period_s(domain: Domain, powers: PowerSamples, name: str, since_ns: int) -> float:
    """Return the median time between the samples of a domain since a moment; of a counter its own period."""
    moments = zip(powers.times_ns, powers.watts.get(name, ()), strict=False)  # a counter may have no samples
    times_ns = [at_ns for at_ns, watts in moments if at_ns >= since_ns and math.isfinite(watts)]
    if domain.source != "sampled" or len(times_ns) < 2:
        return domain.period_s
    return float(statistics.median(after - before for before, after in pairwise(times_ns))) * NANOSECOND


def knob_row(quantity: str, find: Callable[[], Knob | None], absent: str) -> Row:
    """Return the row of a device setting: current value, possible values, and whether this user may change it."""
    try:
        knob = find()
        if not knob:
            return Row(quantity, False, why=f"this machine has {absent}")
        how, remedy = permission(knob)
        return Row(
            quantity,
            offered=bool(how),
            source=f"{knob.name}, {how}" if how else knob.name,
            now=knob.get(),
            choices=knob.choices(),
            why=None if how else f"{'root' if os.geteuid() == 0 else 'this user'} may not change it",
            remedy=remedy,
        )
    except (OSError, RuntimeError, ValueError) as error:
        why, _, remedy = str(error).partition("\nhint: ")
        return Row(quantity, False, why=why, remedy=remedy or None)


def gauge_rows(gpus: list[str], root: str) -> Iterator[Row]:
    """Utilization, clock, memory, temperature and throttling."""
    with closing(open_gauges(gpus=gpus, root=root)) as opened:
        sources, missing = opened.sources(), {absent.quantity: absent for absent in opened.unavailable()}
    for quantity, (name, covers) in QUANTITIES.items():
        if absent := missing.get(quantity):
            yield Row(name, False, why=absent.why, remedy=absent.remedy or None)
        else:
            own = [source for measured, source in sources if measured == quantity]
            yield Row(name, True, ", ".join(own), PERIOD_S, covers)


def page_cache_row(folder: Path) -> Row:
    """Return whether Linux reports the page-cache residency of the dataset: only for files that this user may write."""
    first = next(iter_files(folder), None)
    if first and resident_fraction([first]) is None:
        why = f"Linux does not report which pages of another user's files are cached: {folder}"
        return Row("page cache", False, why=why, remedy=f"take ownership: sudo chown -R $USER {folder}")
    return Row("page cache", True, "mincore", covers=f"{folder}{'' if first else ' (not created yet)'}")


def storage_rows(folder: Path, config: Storage) -> Iterator[Row]:
    """Yield the storage device of the dataset, whether it is the requested one, and whether its reads are counted."""
    disk = disk_of(folder)
    facts = describe(disk)
    models = ", ".join(facts.get("model", facts.get("disks", [])))
    row = Row("storage", True, disk.medium, covers=f"{folder} on {disk.filesystem}{f', {models}' if models else ''}")
    if config.medium and not satisfies(config.medium, disk):
        why = f"storage={config.name} requested, but this is {disk.medium}: runs are rehearsals"
        row = row._replace(offered=False, why=why, remedy="set `storage.root=` to a folder on that storage")
    yield row
    if disk.reason:
        yield Row("disk reads", False, why=disk.reason, remedy="set `storage.root=` to a folder on a disk")
    else:
        yield Row("disk reads", True, "/proc/diskstats", covers=", ".join(disk.devices))


def trace_row(python: str | None) -> Row:
    """Return whether the interpreter that trains has torch, whose profiler records the trace. Torch is not imported."""
    try:
        check_interpreter(python)
    except InputError as error:
        (problem,) = error.problems
        return Row("trace", False, why=f"training is not possible: {problem.message}", remedy=problem.hint)
    return Row("trace", True, "PyTorch profiler", covers="a few steps after the last epoch")


def counter_rows(names: list[str], root: Path) -> Iterator[Row]:
    """Yield whether performance counters of the GPUs can be read: by the driver in a run, by Nsight after the run."""
    if not names:
        yield Row("GPU counters", False, why="training does not use an NVIDIA or AMD GPU here")
    else:
        with open_counters(names) as counters:
            counters.start()
            counters.end()
        measured = ", ".join(name.removeprefix("gpu_") for name in counters.metrics)
        source = None if counters.reason else "amdsmi" if is_amd(names[0]) else "GPM (NVML)"
        why = counters.reason or None
        yield Row("GPU counters", bool(measured), source, covers=measured, why=why, remedy=counters.remedy)
    if all(map(is_amd, names)):
        for quantity in NSIGHT:
            yield Row(quantity, False, why="training does not use an NVIDIA GPU here")
        return
    is_restricted = match_group(r"^(RmProfilingAdminOnly: 1)", read_text(root / "proc/driver/nvidia/params"))
    for quantity, (program, covers) in NSIGHT.items():
        row = Row(quantity, True, find_program(program), covers=covers)
        if row.source is None:
            row = row._replace(
                offered=False, why=f"no program `{program}`", remedy="install it from developer.nvidia.com"
            )
        elif program == "ncu" and is_restricted and os.geteuid():
            why = "the driver restricts performance counters to administrators"
            row = row._replace(offered=False, why=why, remedy=REMEDIES[PermissionError])
        yield row
