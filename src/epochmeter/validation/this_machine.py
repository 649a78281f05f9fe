"""This machine, as its runs measure it, and its instruments, load and programs for the checks."""

import os
import platform
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from epochmeter.config.entries import Trial
from epochmeter.config.installation import ROOT
from epochmeter.config.schema import Device
from epochmeter.machine import host
from epochmeter.machine.gpu_counters import counter_ids
from epochmeter.machine.gpus import Gpu, find_gpus, meter_id, select_gpus
from epochmeter.machine.recorded.root import find_recording, root_folder
from epochmeter.machine.temporary_folders import temporary_folder
from epochmeter.power.instrument import Instrument
from epochmeter.power.knobs.device_settings import knob_openers
from epochmeter.power.knobs.knob import Knob
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.meter import EnergyInfo, EnergyMeter
from epochmeter.results import validation
from epochmeter.results.validation import Versions
from epochmeter.run.interpreters import check_interpreter, find_interpreter
from epochmeter.run.preflight import device_here, trains_on_gpu
from epochmeter.shared.problem import InputError, MachineError, Problem, problem_of
from epochmeter.shared.types import Document
from epochmeter.validation import settings
from epochmeter.validation.bench import Bench
from epochmeter.validation.programs import KnownPrograms, LoadProcess

COMMIT_DIGITS = 7
REPLAYED_SETTINGS = "machine.root= is a recorded machine, and the settings would be those of this machine"
REPLAYED = "machine.root= is a recorded machine, which no load of this machine changes"


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
        return validation.machine_identity(self.facts)

    @property
    def model(self) -> str:
        """Name of the device that trains."""
        cpu = self.facts.get("cpu") or {}
        return (
            str(self.gpus[0].get("model", self.gpus[0]["vendor"])) if self.gpus else str(cpu.get("model", "this CPU"))
        )

    @property
    def locks(self) -> list[str]:
        """The devices that no other run may use meanwhile."""
        return ["cpu", *(f"gpu-{gpu['bus']}" for gpu in self.gpus)]

    @property
    def is_replayed(self) -> bool:
        """Whether it is a recorded machine, rather than this one."""
        return self.config.machine.root != "/"


def find_machine(config: Trial) -> Machine:
    """Return the machine to validate."""
    root = config.machine.root
    facts = host.device_facts(root)
    device = device_here(config.device, facts, overrides=[])
    on_gpu = trains_on_gpu(device, facts)
    gpus = select_gpus(find_gpus(root_folder(root)), os.environ) if on_gpu else []
    return Machine(config, host.describe(root), device, on_gpu, gpus)


def versions_of(machine: Machine, python: str | None) -> Versions:
    """Return the versions with which lines hold."""
    torch: str | None = None
    if python == sys.executable:
        with suppress(PackageNotFoundError):
            torch = version("torch")
    return {
        "epochmeter": version_of_package(), "python": platform.python_version(), "torch": torch,
        "driver": machine.facts.get("driver"), "kernel": str(machine.facts.get("kernel", "")),
    }  # fmt: skip


def version_of_package() -> str:
    """Return the version of this package; in a checkout its commit, if that is known."""
    try:
        return version("epochmeter")
    except PackageNotFoundError:
        return (host.git_commit(ROOT) or "unknown")[:COMMIT_DIGITS]


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


def open_bench(machine: Machine, meter: EnergyMeter, journal: RestoreJournal, stack: ExitStack) -> Bench:
    """Return the bench of a machine, whose load runs until the stack is closed."""
    config, energy = machine.config, meter.energy
    measures = energy["source"] in ("counter", "sampled")
    opened: dict[str, Instrument] = meter.instruments if measures else {}
    bench = Bench(
        instruments=opened,
        total=energy["domains"] if measures else [],
        cross_checks=meter.cross_checks,
        no_energy=None if measures else _no_energy(machine, energy),
        on_gpu=bool(machine.gpus and machine.gpus[0]["vendor"] == "nvidia"),
        settings=config.settings,
        knobs=_knobs(machine, journal) if config.settings else {},
        change=lambda key, knob: settings.change_setting(key, knob, journal, on_gpu=machine.on_gpu),
        minutes=config.minutes,
    )
    python, bench.no_load = find_python(machine)
    if python is None:
        return bench
    try:
        load = LoadProcess(python, "cuda" if machine.on_gpu else "cpu")
    except MachineError as error:
        bench.no_load = problem_of(error)
        return bench
    stack.callback(load.close)
    folder = stack.enter_context(temporary_folder())
    bench.load, bench.programs = load, known_programs(machine, python, load, folder)
    return bench


def _no_energy(machine: Machine, energy: EnergyInfo) -> Problem:
    """Return why no energy is measured; the folder of a recording has the name of its archive."""
    reason, hint = energy["reason"] or "no energy is measured", energy.get("hint", "")
    if recording := find_recording(machine.config.machine.root):
        reason, hint = (text.replace(str(recording.folder), recording.name) for text in (reason, hint))
    return Problem(reason, hint)


def _knobs(machine: Machine, journal: RestoreJournal) -> dict[str, Knob | Problem]:
    """Return the settings by key; of a recorded machine, why none is changed: it would be a setting of this one."""
    openers = knob_openers(machine.on_gpu, machine.gpus, journal)
    if machine.is_replayed:
        return {key: Problem(REPLAYED_SETTINGS, "leave out `machine.root=`") for key in openers}
    return settings.permitted(openers)


def known_programs(machine: Machine, python: str, load: LoadProcess, folder: Path) -> KnownPrograms:
    """Return the programs, whose runs have the locks and the state of this command."""
    given = machine.config.machine.to_dict()
    keys = [f"machine.{key}={given[key]}" for key in ("lock_dir", "state_dir") if given[key]]
    counters = counter_ids(machine.gpus, os.environ) if machine.on_gpu else ()
    return KnownPrograms(python, load, folder, device=machine.model, keys=keys, counters=counters)
