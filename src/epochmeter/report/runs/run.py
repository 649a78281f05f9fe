"""A run and a sweep as reports use them."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from epochmeter.config.identity import NON_MEASUREMENT_KEYS
from epochmeter.config.printable import printable
from epochmeter.config.schema import DEVICE_SETTINGS
from epochmeter.config.validation import format_value
from epochmeter.machine.energy_codes import Effect, EnergyCode, EnergyReason
from epochmeter.report.formatting import join_or_more
from epochmeter.results.documents import NextStepFields, StragglerFields
from epochmeter.results.run_info import LoaderFacts
from epochmeter.results.run_status import COMPLETED
from epochmeter.shared.problem import Problem
from epochmeter.shared.record import Record

Item = TypeVar("Item")
Key = TypeVar("Key")
FAILURES, REHEARSALS, TOO_SHORT = "failures", "rehearsals", "too_short"
"""Kinds of runs that are not results. `TOO_SHORT` are runs without an epoch after the warm-up."""
MAX_TITLE_SWEEPS = 3  # sweeps that are named in a title
REPEATED = ("repeat", "seed")  # keys in which the repeats of a configuration differ
NON_CONFIG_KEYS = (*REPEATED, *NON_MEASUREMENT_KEYS, "machine", "save_model", "profiler")
"""Keys that do not distinguish configurations."""
NOT_APPLIED = (*DEVICE_SETTINGS, "auto")  # keys without effect in a rehearsal


@dataclass(frozen=True, eq=False)
class Run:
    """A run: its configuration, its measurements, and why it is not a result, if so. Equality is identity.

    Example:
        >>> import epochmeter
        >>> run = epochmeter.load_runs("multirun/*")[0]
        >>> run.state, run.job["batch"], run.metrics["steady/e2e_s"]
        ('completed', 16, 8.0)

    Attributes:
        number: Number in its sweep; runs of several sweeps are numbered consecutively, damaged records included.
        keys: Overrides as typed: `batch` -> `64`.
        metrics: `steady/`, `std/`, `total/` and `model/` values of its summary, empty without one; and `val/loss` and
            `val/accuracy` of its last evaluation.
        state: One of `results.run_status.STATES`; `running` also if its process was one of another host.
        failure: The error that ended it, if any.
        energy_covers: The parts of the machine that its energy includes; None without energy.
        energy_domains: The domains that its energy is the sum of; all other domains are parts of these.
        energy_valid: Whether the energy of its mean epoch holds; None in records of earlier versions.
        energy_reasons: What is absent or doubtful about that energy.
        epochs: Metrics by epoch number, warm-up included; unreadable epochs are absent.
        rehearsal: The settings that were not applied; empty if the run is not a rehearsal.
        power_limited_devices: Number of devices with a power limit, which applies to each; None without any.
        samples: Size of the training set.
        link: Address of its page in MLflow.
        energy_source: `counter`, `sampled`, `estimated` or `none`.
        started: ISO 8601.
        platform: Host and software: `CPU`, `kernel`, `torch`, `git commit` -> value.
        added: Keys without a default, as typed: `+note`.
        disturbed: Disturbances of the measurement: `gpu_shared` -> the process.
        diverged: The first epoch with a loss that was not finite; empty if there was none.
        oversubscribed: Why its first such epoch had too few cores for its own threads; empty if it had enough.
        bottleneck: The largest part of its mean epoch; empty if it is not known.
        absent: Why the bottleneck, or a stall by its full name, is not known.
        straggler: The rank for which the others wait; None without one.
        next_steps: What to do after it, as recorded; empty in records of earlier versions.
        reused: `sweep/number` of the run that another command measured; empty if it was measured for this sweep.
        loader: The DataLoader that trains, as far as it is known: `workers` and `persistent_workers`.
        board: Name of the Jetson; empty on other machines. `mode` is its power mode.
        mode_clocks: Power modes that need no reboot of the board -> number of CPU cores, and highest clocks of CPU, GPU
            and memory. Empty unless the clocks of all modes are known.
        loaders: The DataLoaders of a script's windows.
    """

    number: int
    job: Mapping[str, Any]
    keys: Mapping[str, str]
    metrics: Mapping[str, float]
    state: str
    failure: Problem | None = None
    energy_covers: str | None = None
    energy_domains: Sequence[str] = ()
    no_energy: str | None = None
    energy_valid: bool | None = None
    energy_reasons: Sequence[EnergyReason] = ()
    cores: int | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)
    epochs: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    rehearsal: Sequence[str] = ()
    devices: int | None = None
    power_limited_devices: int | None = None
    samples: int | None = None
    sweep: str = ""
    folder: Path | None = None
    host: str | None = None
    link: str | None = None
    experiment: str | None = None
    energy_source: str | None = None
    started: str = ""
    platform: Mapping[str, str] = field(default_factory=dict)
    added: Sequence[str] = ()
    disturbed: Mapping[str, str] = field(default_factory=dict)
    diverged: str = ""
    oversubscribed: str = ""
    read_errors: Sequence[str] = ()
    bottleneck: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)
    straggler: StragglerFields | None = None
    next_steps: Sequence[NextStepFields] = ()
    reused: str = ""
    loader: Mapping[str, Any] = field(default_factory=dict)
    board: str = ""
    mode: str = ""
    mode_clocks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    loaders: Sequence[LoaderFacts] = ()

    def __repr__(self) -> str:
        return f"<Run {' '.join([self.name, self.state, *(f'{key}={value}' for key, value in self.keys.items())])}>"

    @property
    def name(self) -> str:
        """Unique name of the record: `2026-11-20_12-00-00-1a2b3c4d/3`."""
        return self.reused or f"{self.sweep}/{self.folder.name if self.folder else self.number}"

    @property
    def record(self) -> Record:
        """Its record; ValueError if it has none."""
        if self.folder is None:
            raise ValueError(f"run {self.name} has no folder")
        return Record(self.folder)

    @property
    def medium(self) -> str | None:
        """What its samples are on, as recorded: `nvme`, `ram`, `memory`, `synthetic`; None if it is not known."""
        return self.storage.get("medium")

    @property
    def is_ideal(self) -> bool:
        """Whether its loader is ideal: synthetic batches, or the replayed ones of a script."""
        return bool(self.job.get("synthetic_batches") or (self.job.get("measure") or {}).get("replay"))

    @property
    def energy_doubt(self) -> EnergyReason | None:
        """Why its energy does not hold, if it has one: the first reason."""
        if self.energy_valid or self.energy_covers is None:
            return None
        invalid = {code.value for code in EnergyCode if code.effect is Effect.INVALID}
        return next((reason for reason in self.energy_reasons if reason["code"] in invalid), None)

    @property
    def address(self) -> str | None:
        """Its link, if a browser can open it."""
        return self.link if self.link and self.link.startswith(("http://", "https://")) else None

    @property
    def excluded_because(self) -> str | None:
        """Why the run is not a result; None if it is one."""
        if self.state != COMPLETED:
            return FAILURES
        if self.rehearsal:
            return REHEARSALS
        return None if "steady/e2e_s" in self.metrics else TOO_SHORT

    @property
    def round(self) -> tuple[str, int] | None:
        """The round of its sweep that the run is part of; None if repeats of the sweep are not rounds."""
        sweep = self.job.get("sweep") or {}
        if sweep.get("order") != "random" and sweep.get("repeats") is None:
            return None
        return self.name.partition("/")[0], self.job.get("repeat", 0)

    @cached_property
    def fingerprint(self) -> str:
        """A text that is equal for the runs of one configuration. A rehearsal applies no device settings."""
        return fingerprint(self.job, NOT_APPLIED if self.rehearsal else ())

    def steady(self, name: str) -> float | None:
        """Return the mean of a metric over the steady epochs, if known."""
        return self.metrics.get(f"steady/{name}")

    def value(self, key: str) -> str | None:
        """Return a configuration value as one types it, of a group its name; None if it is null or absent."""
        value: Any = self.job
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, Mapping):
            value = value.get("name")
        return None if value is None else format_value(value) if isinstance(value, list) else _format_scalar(value)


def fingerprint(job: Mapping[str, Any], excluded: Sequence[str] = ()) -> str:
    """Return a text that is equal for the same configuration, apart from some keys.

    Null is as absent: a key that a later version has added is null by default.
    """
    left_out = {*NON_CONFIG_KEYS, *excluded}
    keys = {key: job[key] for key in job if key not in left_out and job[key] is not None}
    return sys.intern(json.dumps(keys, sort_keys=True))


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by a key, in the order of the first ones."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


_format_scalar = lru_cache(maxsize=4096, typed=True)(format_value)


@dataclass(frozen=True)
class Sweep:
    """The runs in a folder by number; `unreadable` has the folder name and the error of damaged records."""

    folder: Path
    runs: Sequence[Run]
    unreadable: Mapping[str, str]

    @property
    def title(self) -> str:
        """The name of the sweep, or the names of the first of several."""
        names = dict.fromkeys(run.sweep for run in self.runs if run.sweep) or [printable(self.folder.name)]
        return join_or_more(names, MAX_TITLE_SWEEPS)
