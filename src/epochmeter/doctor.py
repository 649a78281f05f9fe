"""What this machine offers to measure and to set, quantity by quantity; what it does not, why, and what would help."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.config.errors import InputError
from epochmeter.config.job import ROOT
from epochmeter.datasets.ready import place
from epochmeter.machine import host
from epochmeter.machine.disk import describe, disk_of, serves
from epochmeter.machine.gpus import Gpu, find_gpus, name_of, used
from epochmeter.machine.page_cache import cached_share, files
from epochmeter.machine.process_identity import boot_id
from epochmeter.machine.utilization import open_gauges
from epochmeter.power.knobs.fan import open_fan
from epochmeter.power.knobs.jetson_clocks import open_jetson_clocks
from epochmeter.power.knobs.knob import Knob
from epochmeter.power.knobs.permission import permission
from epochmeter.power.knobs.requests import ABSENT, power_limit
from epochmeter.power.knobs.restore_journal import Desk
from epochmeter.power.meter import Meter, open_meter, shortest_s
from epochmeter.power.power_series import Powers
from epochmeter.power.window_energy import consumption, reading
from epochmeter.run.launch import check_interpreter
from epochmeter.shared.units import NANOSECOND

LOOK_S, LONGEST_LOOK_S = 0.6, 2.5
"""How long the meter is sampled, in seconds: the longer time for power sensors that average longer."""
QUANTITIES = {
    "cpu_utilization": ("CPU utilization", "all cores"),
    "gpu_utilization": ("GPU utilization", "the GPU used"),
    "gpu_clock_mean_hz": ("GPU clock", "the GPU used"),
    "ram_peak_bytes": ("memory", "RAM of the whole machine"),
    "temperature_max_c": ("temperature", "the hottest sensor"),
    "throttling": ("throttling", "what slows the machine down"),
}
"""What the gauges' quantities are called, and what they cover."""


class Row(NamedTuple):
    """One quantity: whether it is to be had here, and all there is to know of that; None: nothing to say."""

    quantity: str
    offered: bool
    source: str | None = None
    period_s: float | None = None
    covers: str | None = None
    now: str | None = None
    choices: str | None = None
    period_range_s: tuple[float, float] | None = None
    """The shortest and the longest measured period, if `period_s` is their median."""
    sampling_core_fraction: float | None = None
    """The fraction of a core that sampling power takes."""
    why: str | None = None  # it is not to be had, or is less than was asked for
    remedy: str | None = None


def examine(job: Mapping[str, Any], found: str) -> Iterator[Row]:
    """Asks this machine for all that a job with this device, meter, dataset and storage could use of it.

    `found` is the device that this machine is.
    """
    root, device = job["machine"]["root"], job["device"]
    facts = host.facts(root)
    here = host.fits(device["match"], facts)
    accelerator = device["accelerator"] if here else "auto"
    on_gpu = accelerator == "cuda" or (accelerator == "auto" and bool(facts["gpu"]))
    gpus = used(find_gpus(Path(root)), os.environ) if on_gpu else []
    names = [name for gpu in gpus if (name := name_of(gpu))]
    desk = Desk(job["machine"]["state_dir"], root=root, boot_id=boot_id(), command="doctor")
    yield device_row(device, found, here, gpus)
    yield from left(desk)
    with closing(open_meter(job["meter"], gpus=names, root=root)) as meter:
        yield from energy(meter, job["meter"]["name"])
    yield knob("power limit", lambda: power_limit(on_gpu, gpus, root), ABSENT["power_limit"])
    yield knob("clocks", lambda: open_jetson_clocks(root, desk.folder), ABSENT["clocks"])
    yield knob("fan", lambda: open_fan(root), ABSENT["fan"])
    yield from gauges(names, root)
    folder = place(job["dataset"], job["storage"], ROOT)
    if folder:
        yield storage(folder, job["storage"])
        yield page_cache(folder)
        yield disk_reads(folder)
    yield trace(device["python"] if here else None)


def device_row(device: Mapping[str, Any], found: str, here: bool, gpus: list[Gpu]) -> Row:
    """The device asked for, and whether this machine is one."""
    if not here:
        asked = f"device={device['name']} was asked for, this machine is device={found}: runs are rehearsals"
        return Row("device", False, why=asked, remedy="leave device out, or run it on such a machine")
    models = ", ".join(str(gpu.get("model", gpu["vendor"])) for gpu in gpus)
    title = " with ".join(filter(None, (device["title"], models)))
    return Row("device", True, f"device={device['name']}", covers=title)


def left(desk: Desk) -> Iterator[Row]:
    """The knobs that killed runs have left turned."""
    for number, text in enumerate(desk.damaged(), 1):
        why, _, remedy = text.partition("\nhint: ")
        yield Row(f"left turned ({number})", False, why=why, remedy=remedy)
    for memo in desk.left():
        by = f"left at {memo.ours or 'an unknown setting'} by a run that was killed ({memo.when}: {memo.command})"
        remedy = f"the next run puts back {memo.was}; by hand: {memo.by_hand}"
        yield Row(f"left turned: {memo.knob}", False, why=by, remedy=remedy)


def energy(meter: Meter, name: str) -> Iterator[Row]:
    """The total, and each domain's power, by looking for a moment at what the meter tells."""
    source, covers, reason = (meter.energy[key] or "" for key in ("source", "covers", "reason"))
    if source == "none":
        yield Row("energy", False, why=reason)
        return
    sampled_s = [shortest_s(domain) for domain in meter.domains.values() if domain.source == "sampled"]
    before, begun_s, used_s = reading(meter), time.monotonic(), time.process_time()
    time.sleep(min(LONGEST_LOOK_S, max([LOOK_S, *(1.05 * shortest for shortest in sampled_s)])))
    cost = (time.process_time() - used_s) / (time.monotonic() - begun_s)  # nothing else is at work
    after = reading(meter)
    seconds = (after.at_ns - before.at_ns) * NANOSECOND
    told = consumption(before, after, meter, seconds)
    powers = meter.drain(after.at_ns)

    def row(quantity: str, joules: float | None, names: Sequence[str], source: str, covers: str, why: str) -> Row:
        parts = [meter.domains[name] for name in names]
        long_enough = all(seconds >= shortest_s(part) for part in parts)
        watts = f"{joules / seconds:.3g} W" if joules is not None and long_enough else None
        offered, period_s, range_s = joules is not None and source != "estimated", max(p.period_s for p in parts), None
        achieved_s = [periods_s(powers, name, before.at_ns) for name in names]
        if all(achieved_s) and all(part.source == "sampled" for part in parts):
            slowest_s = max(achieved_s, key=statistics.median)
            period_s, range_s = statistics.median(slowest_s), (min(slowest_s), max(slowest_s))
        text = f"{source} (meter={name})"
        return Row(quantity, offered, text, period_s, covers, watts, period_range_s=range_s, why=why or None)

    total = meter.total(told.joules)
    lacking = "" if total is not None else "a part of it tells nothing"
    parts = f"{covers}: {' + '.join(meter.energy['domains'])}"
    whole = row("energy", total, [*meter.domains], source, parts, reason or lacking)
    yield whole._replace(sampling_core_fraction=round(cost, 4) if powers.times_ns else None)
    for domain, part in meter.domains.items():
        joules = told.joules.get(domain)
        lacking = "" if joules is not None else told.lost.get(domain, "it stands still, or cannot be read")
        yield row(f"power: {domain}", joules, [domain], part.source, part.covers, lacking)


def periods_s(powers: Powers, name: str, since_ns: int) -> list[float]:
    """Return the times between successive samples of a domain since a moment, in seconds."""
    moments = zip(powers.times_ns, powers.watts.get(name, ()), strict=False)  # a counter has no samples
    times_ns = [at_ns for at_ns, watts in moments if at_ns >= since_ns and math.isfinite(watts)]
    return [(after - before) * NANOSECOND for before, after in pairwise(times_ns)]


def knob(quantity: str, find: Callable[[], Knob | None], absent: str) -> Row:
    """A knob: where it stands, where it can be turned to, and whether this user may."""
    try:
        found = find()
        if not found:
            return Row(quantity, False, why=f"this machine has {absent}")
        how, remedy = permission(found)
        return Row(
            quantity,
            offered=bool(how),
            source=f"{found.name}, {how}" if how else found.name,
            now=found.get(),
            choices=found.choices(),
            why=None if how else f"{'root' if os.geteuid() == 0 else 'this user'} may not set it here",
            remedy=remedy,
        )
    except (OSError, RuntimeError, ValueError) as error:
        why, _, remedy = str(error).partition("\nhint: ")
        return Row(quantity, False, why=why, remedy=remedy or None)


def gauges(gpus: list[str], root: str) -> Iterator[Row]:
    """Means and peaks of what the machine does."""
    with closing(open_gauges(gpus=gpus, root=root)) as opened:
        sources, missing = opened.sources(), {absent.quantity: absent for absent in opened.missing()}
    for quantity, (name, covers) in QUANTITIES.items():
        if absent := missing.get(quantity):
            yield Row(name, False, why=absent.why, remedy=absent.remedy or None)
        else:
            own = [source for source in sources if source.quantity == quantity]
            yield Row(name, True, ", ".join(source.source for source in own), own[0].period_s, covers)


def page_cache(folder: Path) -> Row:
    """Whether it can be known what of the dataset is in the page cache: only of files that are this user's."""
    first = next(files(folder), None)
    if first and cached_share([first]) is None:
        why = f"what is cached of another user's files is not told: {folder}"
        return Row("page cache", False, why=why, remedy=f"make them yours: sudo chown -R $USER {folder}")
    return Row("page cache", True, "mincore", covers=f"{folder}{'' if first else ', once it is made'}")


def storage(folder: Path, asked: Mapping[str, Any]) -> Row:
    """What the dataset lies on, or would, and whether that is what was asked for."""
    disk = disk_of(folder)
    facts = describe(disk)
    models = ", ".join(facts.get("model", facts.get("disks", [])))
    covers = f"{folder} on {disk.filesystem}{f', {models}' if models else ''}"
    if asked["medium"] and not serves(asked["medium"], disk):
        why = f"storage={asked['name']} was asked for, and this is {disk.medium}: runs are rehearsals"
        remedy = "name a folder of the medium: storage.root="
        return Row("storage", False, disk.medium, covers=covers, why=why, remedy=remedy)
    return Row("storage", True, disk.medium, covers=covers)


def disk_reads(folder: Path) -> Row:
    """The block device whose reads are counted."""
    disk = disk_of(folder)
    if disk.reason:
        return Row("disk reads", False, why=disk.reason, remedy="a dataset on a disk: storage.root=")
    return Row("disk reads", True, "/proc/diskstats", covers=", ".join(disk.devices))


def trace(python: str | None) -> Row:
    """Whether the interpreter that trains has torch, whose profiler takes the trace; torch itself is not imported."""
    try:
        check_interpreter(python)
    except InputError as error:
        (problem,) = error.problems
        return Row("trace", False, why=f"nothing trains: {problem.what}", remedy=problem.hint)
    return Row("trace", True, "torch's profiler", covers="a few steps after the last epoch")
