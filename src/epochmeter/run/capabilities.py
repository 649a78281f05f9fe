"""Quantities and settings that this machine can measure and set; for all others the reason and a hint."""

import os
import platform
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from epochmeter.config.entries import Examination
from epochmeter.config.installation import ROOT
from epochmeter.config.schema import Storage
from epochmeter.datasets.ready import training_folder
from epochmeter.machine import host
from epochmeter.machine.cpu_load import CpuLoad
from epochmeter.machine.disk import satisfies
from epochmeter.machine.gauge_sampler import PERIOD_S, Gauges
from epochmeter.machine.gpu_counters import GpuCounters, counter_ids, is_amd
from epochmeter.machine.gpus import find_gpus, meter_id, select_gpus
from epochmeter.machine.page_cache import iter_files, resident_fraction
from epochmeter.machine.recorded.root import find_recording, root_folder, storage_of
from epochmeter.power.instrument import Domain, shortest_s
from epochmeter.power.knobs.device_settings import NO_KNOB_MESSAGES, knob_openers
from epochmeter.power.knobs.knob import Knob
from epochmeter.power.knobs.permission import permission
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.meter import EnergyMeter, open_meter
from epochmeter.power.window_energy import energy_of_window, take_reading
from epochmeter.results.validation import Validation, facts_of
from epochmeter.run.interpreters import check_interpreter, find_interpreter
from epochmeter.run.preflight import device_here, trains_on_gpu
from epochmeter.run.validated import find_validation, use_validated
from epochmeter.shared.problem import InputError, Problem, problem_of
from epochmeter.shared.units import NANOSECOND, percent

if TYPE_CHECKING:
    from epochmeter.machine.recorded.replay import Recording

OBSERVE_S, MAX_OBSERVE_S = 0.6, 2.5
"""How long the meter is sampled, in seconds; the longer time is for slow counters and averaging sensors."""
EXAMINED_FILES = 100  # number of files of the dataset whose page-cache residency is read
QUANTITIES = {
    "cpu_utilization": "CPU utilization",
    "gpu_utilization": "GPU utilization",
    "gpu_clock_mean_hz": "GPU clock",
    "ram_peak_bytes": "memory",
    "network_bytes": "network traffic",
    "temperature_max_c": "temperature",
    "throttling": "throttling",
}
"""Quantity of a gauge -> its name."""


KNOBS = {"gpu_clock": "locked GPU clock", "memory_clock": "locked memory clock"}
"""Key of a device setting -> its name, if that is not the key itself: the clocks are gauges as well."""


class Row(NamedTuple):
    """A quantity that can be measured or a setting that can be changed; None where a field does not apply."""

    quantity: str
    offered: bool
    source: str | None = None
    period_s: float | None = None
    covers: str | None = None
    now: str | None = None
    choices: str | None = None
    why: str | None = None  # it is not available, or not as requested
    remedy: str | None = None


def examine_machine(config: Examination, detected: str) -> Iterator[Row]:
    """Check every quantity and setting for a configuration; `detected` is the device that this machine is.

    The folder of a recording has the name of its archive.
    """
    recording = find_recording(config.machine.root)
    if recording is None:
        yield from _examine(config, detected)
        return
    yield from recording_rows(recording)
    folder, name = str(recording.folder), recording.name
    for row in _examine(config, detected):
        source, covers, why, remedy = (
            text and text.replace(folder, name) for text in (row.source, row.covers, row.why, row.remedy)
        )
        yield row._replace(source=source, covers=covers, why=why, remedy=remedy)


def _examine(config: Examination, detected: str) -> Iterator[Row]:
    root, device = config.machine.root, config.device
    facts = host.device_facts(root)
    local = device_here(device, facts, overrides=[])
    on_gpu = trains_on_gpu(local, facts)
    gpus = select_gpus(find_gpus(root_folder(root)), os.environ) if on_gpu else []
    names = [name for gpu in gpus if (name := meter_id(gpu))]
    journal = RestoreJournal(config.machine.state_dir, root=root, command="doctor")
    if local is device:
        models = [str(gpu.get("model", gpu["vendor"])) for gpu in gpus]
        title = " with ".join(filter(None, (device.title, ", ".join(models))))
        yield Row("device", True, f"device={device.name}", covers=title)
    else:
        why = f"device={device.name} requested, this machine is device={detected}: runs are rehearsals"
        yield Row("device", False, why=why, remedy="omit `device=`, or run it on that device")
    for number, problem in enumerate(journal.damaged(), 1):
        yield unavailable(f"not restored ({number})", problem)
    for setting in journal.unrestored():  # by a killed run
        why = f"a killed run left it at {setting.applied or 'an unknown setting'} ({setting.when}: {setting.command})"
        remedy = f"the next run restores {setting.original}; to restore it now: {setting.by_hand}"
        yield Row(f"not restored: {setting.knob}", False, why=why, remedy=remedy)
    found = find_validation(config.machine)
    with closing(open_meter(config.meter.to_dict(), gpus=names, root=root)) as meter:
        used = use_validated(meter, found, config.meter.name)
        yield from energy_rows(meter, config.meter.name)
    yield validation_row(found, used)
    for key, opener in knob_openers(on_gpu, gpus, journal).items():
        yield knob_row(KNOBS.get(key, key.replace("_", " ")), opener, NO_KNOB_MESSAGES[key])
    yield from gauge_rows(names, root)
    if folder := training_folder(config.dataset, config.storage, ROOT):
        yield from storage_rows(folder, config.storage, config.machine.root)
    try:
        check_interpreter(find_interpreter(local.python))  # torch, whose profiler records the trace, is not imported
        yield Row("trace", True, "PyTorch profiler", covers="a few steps after the last epoch")
    except InputError as error:
        yield unavailable("trace", problem_of(error).within("training is not possible"))
    yield counter_row(counter_ids(gpus, os.environ) if on_gpu else None)
    if root == "/":  # not a recorded machine
        yield from load_rows(CpuLoad(always_names=True))


def recording_rows(recording: "Recording") -> Iterator[Row]:
    """Yield what is replayed, and what its recording lacks."""
    why = f"this machine is {platform.machine()}" if recording.other_architecture else None
    yield Row("recording", True, recording.name, covers=recording.origin, why=why)
    if missing := recording.missing:
        remedy = None if recording.manifest.get("as_root") else "record that machine as root: sudo"
        yield Row("not recorded", False, why=missing, remedy=remedy)


def unavailable(quantity: str, problem: Problem) -> Row:
    """Return the row of a quantity that is not available."""
    return Row(quantity, False, why=problem.message, remedy=problem.hint or None)


def energy_rows(meter: EnergyMeter, name: str) -> Iterator[Row]:
    """Yield rows of the total energy and of the power of each domain, from sampling the meter for a moment."""
    source, covers, reason = meter.energy["source"], meter.energy["covers"], meter.energy["reason"] or ""
    if source == "none":
        yield Row("energy", False, why=reason, remedy=meter.energy.get("hint"))
        return
    before = take_reading(meter)
    time.sleep(min(MAX_OBSERVE_S, max(OBSERVE_S, *(1.05 * shortest_s(domain) for domain in meter.domains.values()))))
    after = take_reading(meter)
    seconds = (after.at_ns - before.at_ns) * NANOSECOND
    used = energy_of_window(before, after, meter, seconds)

    def row(quantity: str, joules: float | None, domains: Sequence[Domain], source: str, covers: str, why: str) -> Row:
        long_enough = all(seconds >= shortest_s(domain) for domain in domains)
        watts = f"{joules / seconds:.3g} W" if joules is not None and long_enough else None
        period_s = max(domain.period_s for domain in domains)
        offered = joules is not None and source != "estimated"
        return Row(quantity, offered, f"{source} (meter={name})", period_s, covers, watts, why=why or None)

    total = meter.total(used.joules)
    lacking = "; ".join(map(str, used.disagreements)) if total is not None else "one of its domains has no reading"
    parts = f"{covers}: {' + '.join(meter.energy['domains'])}"
    yield row("energy", total, [*meter.domains.values()], source, parts, reason or lacking)
    for domain, details in meter.domains.items():
        joules = used.joules.get(domain)
        lacking = "" if joules is not None else "the counter does not advance, or cannot be read"
        yield row(
            f"power: {domain}", joules, [details], details.source, details.covers, used.unavailable.get(domain, lacking)
        )


def validation_row(found: Validation | None, used: Collection[str]) -> Row:
    """Return the row of the validation with which this machine's numbers stand; `used`: domains of its responses."""
    if found is None:
        remedy = "`python src/validate.py` takes ten minutes"
        return Row("validation", False, why="this machine was not validated with its present drivers", remedy=remedy)
    facts = facts_of(found, {})
    versions = [f"epochmeter {facts['version']}", facts["driver"] and f"driver {facts['driver']}"]
    source = ", ".join(filter(None, [facts["validated"][:10], *versions]))
    covers = f"{facts['passed']} passed, {facts['failed']} failed, {facts['untested']} cannot be tested here"
    covers += f"; runs use the measured response of {', '.join(used)}" if used else ""
    return Row("validation", True, source, covers=covers)


def knob_row(quantity: str, find: Callable[[], Knob | None], absent: str) -> Row:
    """Return the row of a device setting: current value, possible values, and whether this user may change it."""
    try:
        knob = find()
        if not knob:
            return Row(quantity, False, why=f"this machine has {absent}")
        how, remedy = permission(knob)
        why = None if how else f"{'root' if os.geteuid() == 0 else 'this user'} may not change it"
        source = f"{knob.name}, {how}" if how else knob.name
        return Row(quantity, bool(how), source, now=knob.get(), choices=knob.choices(), why=why, remedy=remedy)
    except (OSError, RuntimeError, ValueError) as error:
        return unavailable(quantity, problem_of(error))


def gauge_rows(gpus: list[str], root: str) -> Iterator[Row]:
    """Yield utilization, clock, memory, temperature and throttling."""
    with closing(Gauges(gpus=gpus, root=root)) as opened:
        sources, missing = opened.sources(), opened.unavailable()
    for quantity, name in QUANTITIES.items():
        if quantity in missing:
            why, remedy = missing[quantity]
            yield Row(name, False, why=why, remedy=remedy or None)
        else:
            source_names = ", ".join(source for measured, source in sources if measured == quantity)
            yield Row(name, True, source_names, PERIOD_S)


def storage_rows(folder: Path, config: Storage, root: str) -> Iterator[Row]:
    """Yield the dataset's storage device, whether its reads are counted, and whether its cached pages are reported."""
    disk, facts = storage_of(folder, root)
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
    files, why = list(islice(iter_files(folder), EXAMINED_FILES)), ""
    try:
        if files and resident_fraction(files) is None:
            why = "Linux does not report which pages of empty files and of another user's files are cached"
    except OSError as error:
        why = f"the dataset cannot be read: {error.strerror}"
    if why:
        remedy = f"take ownership: sudo chown -R $USER {shlex.quote(str(folder))}"
        yield Row("page cache", False, why=f"{why}: {folder}", remedy=remedy)
    else:
        yield Row("page cache", True, "mincore", covers=f"{folder}{'' if files else ' (not created yet)'}")


def load_rows(load: CpuLoad) -> Iterator[Row]:
    """Yield whether other processes leave the processor idle, if that is known, and whether waits are counted."""
    begun_ns = time.monotonic_ns()
    load.mark()
    time.sleep(OBSERVE_S)
    ended_ns = time.monotonic_ns()
    load.mark()
    use = load.window(begun_ns, ended_ns)
    if use.other_fraction is not None:
        now, remedy = f"{percent(use.other_fraction)} used by other processes", "end them before you measure"
        busy = Row("idle processor", False, "/proc/stat", why=use.note, remedy=remedy)
        yield busy if use.note else Row("idle processor", True, "/proc/stat", now=now)
    yield Row("waits for a core", not load.reason, "/proc/PID/task", why=load.reason or None)


def counter_row(names: list[str] | None) -> Row:
    """Return whether the driver reports performance counters of the GPUs in a run. None: the run uses no GPU."""
    if not names:
        absent = "training does not use a GPU here" if names is None else "no driver lists the GPU used, as on a Jetson"
        return Row("GPU counters", False, why=absent)
    with closing(GpuCounters(names)) as counters:
        begun_ns = time.monotonic_ns()
        counters.mark()
        counters.mark()
        metrics = counters.window(begun_ns, time.monotonic_ns())
    measured = ", ".join(name.removeprefix("gpu_") for name in metrics)
    source = None if counters.reason else "amdsmi" if is_amd(names[0]) else "GPM (NVML)"
    why = counters.reason or None
    return Row("GPU counters", bool(measured), source, covers=measured, why=why, remedy=counters.remedy)
