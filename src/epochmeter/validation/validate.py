"""Validate this machine: make the checks that are left, and keep their lines after each one."""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from epochmeter.config.entries import Trial
from epochmeter.config.schema import Device
from epochmeter.machine import host
from epochmeter.machine.cpu_load import CONTENDED, CpuLoad, describe
from epochmeter.machine.device_lock import lock_devices
from epochmeter.machine.gpu_counters import counter_ids
from epochmeter.machine.gpu_processes import GpuProcessMonitor
from epochmeter.machine.gpus import Gpu, find_gpus, meter_id, select_gpus
from epochmeter.power.instrument import Instrument
from epochmeter.power.knobs.device_settings import knob_openers
from epochmeter.power.knobs.restore import restore_after_kill
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.meter import EnergyMeter, open_meter
from epochmeter.power.uncertainty import Response
from epochmeter.results import validation
from epochmeter.results.run_info import SensorResponse
from epochmeter.results.validation import FILE, SCHEMA, UNTESTED, Line, Validation, Versions
from epochmeter.run.interpreters import check_interpreter, find_interpreter
from epochmeter.run.preflight import device_here, trains_on_gpu
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import InputError, MachineError, Problem, problem_of
from epochmeter.shared.types import Document
from epochmeter.shared.units import percent
from epochmeter.validation import settings
from epochmeter.validation.bench import Bench
from epochmeter.validation.checks import CHECKS, Check
from epochmeter.validation.line import Found, Untestable, line_of
from epochmeter.validation.programs import KnownPrograms, LoadProcess

COMMAND = "validate"
OBSERVED_S = 2.0  # for which other processes are observed, if a check takes less
REPLAYED = "machine.root= is a recorded machine, which no load of this machine changes"
CONTINUE = "start the same command again: finished lines are kept"

Say = Callable[[str], object]


@dataclass
class Machine:
    """This machine, and how its runs measure it."""

    config: Trial
    facts: Document
    device: Device
    on_gpu: bool
    gpus: list[Gpu]

    @property
    def names(self) -> list[str]:
        """The GPUs, as their meter names them."""
        return [name for gpu in self.gpus if (name := meter_id(gpu))]

    @property
    def identity(self) -> str:
        """The checksum by which runs find the validation."""
        return validation.machine_identity(self.facts, self.names)

    @property
    def model(self) -> str:
        """Name of the device that trains."""
        cpu = self.facts.get("cpu") or {}
        return str(self.gpus[0].get("model", self.gpus[0]["vendor"])) if self.gpus else str(cpu.get("model", "this CPU"))

    @property
    def locks(self) -> list[str]:
        """The devices that no other run may use meanwhile."""
        return ["cpu", *(f"gpu-{gpu['bus']}" for gpu in self.gpus)]

    @property
    def is_replayed(self) -> bool:
        """Whether it is a recorded machine, rather than this one."""
        return self.config.machine.root != "/"


@dataclass
class Progress:
    """The document so far, and the file that keeps it."""

    document: Validation
    file: Path
    fresh: set[str] = field(default_factory=set)  # checks that were made now

    def lines(self, check: str) -> list[Line]:
        """Return the lines of a check."""
        return [line for line in self.document["lines"] if line["check"] == check]

    def is_finished(self, check: str) -> bool:
        """Whether a check has lines, of which none is to be tested again."""
        lines = self.lines(check)
        return bool(lines) and not any(line["again"] for line in lines)

    def put(self, check: Check, lines: Sequence[Line]) -> None:
        """Replace the lines of a check, and write the document."""
        order = [each.name for each in CHECKS]
        others = [line for line in self.document["lines"] if line["check"] != check.name]
        self.document["lines"] = sorted([*others, *lines], key=lambda line: order.index(line["check"]))
        self.document["validated"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.fresh.add(check.name)
        write_json(self.file, self.document)


def find_machine(config: Trial) -> Machine:
    """Return the machine to validate."""
    root = config.machine.root
    facts = host.device_facts(root)
    device = device_here(config.device, facts, overrides=[])
    on_gpu = trains_on_gpu(device, facts)
    gpus = select_gpus(find_gpus(Path(root)), os.environ) if on_gpu else []
    return Machine(config, host.describe(root), device, on_gpu, gpus)


def validate(machine: Machine, folder: Path, say: Say) -> Validation:
    """Make the checks that are left, keep the validation for the runs of this machine, and return it.

    Raises:
        MachineError: A file cannot be written, or a lock not be taken.
    """
    config = machine.config
    journal = RestoreJournal(config.machine.state_dir, root=config.machine.root, command=COMMAND)
    restore_after_kill(journal, say)
    with ExitStack() as stack:
        python, no_torch = find_python(machine)
        progress = Progress(begin(machine, python, folder / FILE), folder / FILE)
        left = [check for check in CHECKS if not progress.is_finished(check.name)]
        if kept := len(CHECKS) - len(left):
            say(f"{kept} of {len(CHECKS)} checks are finished, with these versions and this machine.")
        if left:
            meter = stack.enter_context(
                closing(open_meter(config.meter.to_dict(), gpus=machine.names, root=config.machine.root))
            )
            bench = open_bench(machine, meter, journal, (python, no_torch), stack)
            make_checks(left, bench, progress, machine, say)
            progress.document["instruments"] = instruments_of(bench, progress)
            write_json(progress.file, progress.document)
    with suppress(OSError):
        validation.store(progress.document, machine.identity, config.machine.state_dir)
    return progress.document


def begin(machine: Machine, python: str | None, file: Path) -> Validation:
    """Return the earlier document if it is of this machine with the same versions, else a new one."""
    config = machine.config
    new: Validation = {
        "schema": SCHEMA, "validated": "", "minutes": config.minutes, "settings": config.settings,
        "meter": config.meter.name, "versions": versions_of(machine, python),
        "machine": validation.machine_facts(machine.facts, machine.device.name), "instruments": [], "lines": [],
    }  # fmt: skip
    with suppress(OSError, ValueError):
        earlier = validation.read(file)
        same = ("versions", "machine", "meter", "settings", "minutes")
        if all(earlier.get(key) == new.get(key) for key in same):
            return earlier
    return new


def versions_of(machine: Machine, python: str | None) -> Versions:
    """Return the versions with which lines hold."""
    torch: str | None = None
    with suppress(PackageNotFoundError):
        torch = version("torch")
    return {
        "epochmeter": version_of_package(), "python": platform.python_version(), "torch": torch,
        "driver": machine.facts.get("driver"), "kernel": str(machine.facts.get("kernel", "")),
    }  # fmt: skip


def version_of_package() -> str:
    """Return the version of this package; `source` in a checkout that is not installed."""
    try:
        return version("epochmeter")
    except PackageNotFoundError:
        return "source"


def find_python(machine: Machine) -> tuple[str | None, Problem | None]:
    """Return the Python that trains, or why there is none."""
    if machine.is_replayed:
        return None, Problem(REPLAYED, "leave out `machine.root=`")
    try:
        python = find_interpreter(machine.device.python)
        check_interpreter(python)
        return python, None
    except InputError as error:
        return None, problem_of(error)


def open_bench(
    machine: Machine, meter: EnergyMeter, journal: RestoreJournal, python: tuple[str | None, Problem | None], stack: ExitStack
) -> Bench:
    """Return the bench of a machine, whose load runs until the stack is closed."""
    config, energy = machine.config, meter.energy
    measures = energy["source"] in ("counter", "sampled")
    opened: dict[str, Instrument] = meter.instruments if measures else {}
    knobs = settings.permitted(knob_openers(machine.on_gpu, machine.gpus, journal)) if config.settings else {}
    bench = Bench(
        instruments=opened, total=energy["domains"] if measures else [], cross_checks=meter.cross_checks,
        no_energy=None if measures else Problem(energy["reason"] or "no energy is measured", energy.get("hint", "")),
        no_load=python[1], on_gpu=bool(machine.gpus and machine.gpus[0]["vendor"] == "nvidia"), settings=config.settings,
        knobs=knobs, change=lambda key, knob: settings.change_setting(key, knob, journal, on_gpu=machine.on_gpu),
        minutes=config.minutes,
    )  # fmt: skip
    if python[0]:
        try:
            load = LoadProcess(python[0], "cuda" if machine.on_gpu else "cpu")
        except MachineError as error:
            bench.no_load = problem_of(error)
            return bench
        stack.callback(load.close)
        folder = Path(tempfile.mkdtemp(prefix="epochmeter-validate-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        keys = [f"device={machine.device.name}"] if config.device.name == machine.device.name else []
        keys += [f"machine.lock_dir={config.machine.lock_dir}"] if config.machine.lock_dir else []
        counters = counter_ids(machine.gpus, os.environ) if machine.on_gpu else ()
        bench.load = load
        bench.programs = KnownPrograms(python[0], load, folder, device=machine.model, keys=keys, counters=counters)
    return bench


def make_checks(left: Sequence[Check], bench: Bench, progress: Progress, machine: Machine, say: Say) -> None:
    """Make checks in their order, as far as the time allows; each one's lines are written when it is finished."""
    ends_s = time.monotonic() + 60 * machine.config.minutes
    observer = Observer(machine)
    with closing(observer):
        for number, check in enumerate(left, 1):
            needed_s = check.seconds * bench.scale
            if time.monotonic() + needed_s > ends_s and check.seconds:
                why = f"no time was left of minutes={machine.config.minutes:g}"
                progress.put(check, [line_of(check.name, Untestable(why=why, hint=CONTINUE, again=True))])
                continue
            say(f"Check {number} of {len(left)}: {check.title}.")
            with locked(machine, check, say):
                found, disturbance = observer.during(check, lambda check=check: find(check, bench))  # type: ignore[misc]
            progress.put(check, [line_of(check.name, each, disturbance) for each in found])


@contextmanager
def locked(machine: Machine, check: Check, say: Say) -> Iterator[None]:
    """Lock the devices during a check, unless it starts runs, which lock them."""
    if check.uses_runs:
        yield
        return
    with lock_devices(machine.locks, machine.config.machine.lock_dir, COMMAND, say):
        yield


def find(check: Check, bench: Bench) -> list[Found]:
    """Return what a check finds, or why it cannot be made."""
    try:
        return list(check.find(bench))
    except MachineError as error:
        problem = problem_of(error)
        return [Untestable(why=problem.message, hint=problem.hint)]


class Observer:
    """Observes what other processes do during checks."""

    def __init__(self, machine: Machine) -> None:
        self._load, self._gpus = CpuLoad(always_names=True), GpuProcessMonitor(machine.names)
        self._last = ""

    def close(self) -> None:
        """Close the monitor of the GPUs."""
        self._gpus.close()

    def during(self, check: Check, act: Callable[[], list[Found]]) -> tuple[list[Found], str]:
        """Return what an action finds, and what others did meanwhile or when its readings were taken; empty if little."""
        self._gpus.poll()
        self._load.mark()
        begun_ns = time.monotonic_ns()
        found = act()
        has_values = any(not isinstance(each, Untestable) for each in found)
        if has_values and (time.monotonic_ns() - begun_ns) * 1e-9 < OBSERVED_S and check.seconds:
            time.sleep(OBSERVED_S)
        self._load.mark()
        self._gpus.poll()
        use = self._load.window(begun_ns, time.monotonic_ns())
        others = self._gpus.drain()
        if use.other_fraction is not None and use.other_fraction >= CONTENDED:
            names = f": {describe(use.others)}" if use.others else ""
            others.append(f"other processes used {percent(use.other_fraction)} of the processor time{names}")
        inherited = "" if check.seconds else self._last  # its readings were taken by the check before
        self._last = "; ".join(others) or inherited
        return found, self._last


def instruments_of(bench: Bench, progress: Progress) -> list[validation.Instrument]:
    """Return the instruments with the measured responses that runs use: undisturbed ones only."""
    found = {each["name"]: each for each in progress.document.get("instruments", [])}
    if "averaging" not in progress.fresh:
        return [*found.values()]
    tested = {line["subject"] for line in progress.lines("averaging") if line["state"] != UNTESTED}
    instruments: list[validation.Instrument] = []
    for name, instrument in bench.instruments.items():
        domain = instrument.domain
        one: validation.Instrument = {
            "name": name, "source": domain.source, "covers": domain.covers, "assumed": as_record(domain.response),
        }  # fmt: skip
        if name in tested and (response := bench.used_response(name)):
            one["response"] = as_record(response)
        instruments.append(one)
    return instruments


def as_record(response: Response) -> SensorResponse:
    """Return a response as recorded."""
    return {
        "averaging_s": response.averaging_s, "lag_s": response.lag_s, "renewal_s": response.renewal_s,
        "is_filter": response.is_filter,
    }  # fmt: skip
