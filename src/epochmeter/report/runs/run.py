"""Runs as plain rows: what can be told from them, and what is left out and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochmeter.config.validation import format_value

COMPLETED = "completed"
TOO_SHORT = "no epoch after its warm-up: give more epochs"
NOT_COMPLETED = "not completed"
NAMED = 3
"""So many sweeps are named in a title."""
ESTIMATED = "estimated"


@dataclass(frozen=True)
class Run:
    """A run: what was asked of it, what was measured, and why it is no result, if it is none."""

    number: int
    """What a report calls it by: of one sweep its own, of several counted through."""
    job: Mapping[str, Any]
    keys: Mapping[str, str]
    """What was typed for it: `batch` -> `64`."""
    metrics: Mapping[str, float]
    """`steady/`, `std/`, `total/` and `model/` values of its summary; empty while it has none."""
    state: str
    """How it ended: completed, failed, killed; `unfinished` where it has not, or was cut off."""
    excluded_because: str | None = None
    energy_covers: str | None = None
    """What its energy covers, None where none was measured."""
    energy_domains: Sequence[str] = ()
    """The domains that make it up: what else is metered lies within these."""
    no_energy: str | None = None
    """Why there is none."""
    cores: int | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)
    epochs: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Number of an epoch -> what is told of it, in order, warm-up included; one that was lost is not there."""
    rehearsal: Sequence[str] = ()
    """In what it was one."""
    devices: int | None = None
    """How many trained; None where that was not written down."""
    power_limited_devices: int | None = None
    """On how many devices a power limit was set, each of them its watts; None where none was, or none is known."""
    samples: int | None = None
    """How many there are to train on."""
    sweep: str = ""
    """The name of its sweep."""
    folder: Path | None = None
    """Where its record lies; None where that is not here."""
    host: str | None = None
    link: str | None = None
    """The address of its page in MLflow."""
    experiment: str | None = None
    energy_source: str | None = None
    """`counter`, `sampled`, `estimated` or `none`."""
    platform: Mapping[str, str] = field(default_factory=dict)
    """What it ran on and with: `CPU`, `kernel`, `torch`, `git commit` -> what that was."""
    added: Sequence[str] = ()
    """The keys that no default has, as they were typed: `+note`."""
    disturbed: Mapping[str, str] = field(default_factory=dict)
    """Disturbances of its measurement, by the run's tags: `gpu_shared` -> the process."""
    read_errors: Sequence[str] = ()
    """What of its record could not be read, and is left out, while the rest is good."""

    reused: str = ""
    """`sweep/number` of the reused run that another command measured; empty if it was measured itself."""

    @property
    def name(self) -> str:
        """`2026-11-20_12-00-00-1a2b3c4d/3`: no two records have the same."""
        return self.reused or f"{self.sweep}/{self.folder.name if self.folder else self.number}"

    @property
    def round(self) -> tuple[str, int] | None:
        """The round of its sweep that the run is part of; None if repeats of the sweep are not rounds."""
        sweep = self.job.get("sweep") or {}
        if sweep.get("order") != "random" and sweep.get("repeats") is None:
            return None
        return self.name.partition("/")[0], self.job.get("repeat", 0)

    def steady(self, name: str) -> float | None:
        """The mean over the measured epochs; None where it is not known."""
        return self.metrics.get(f"steady/{name}")

    def value(self, key: str) -> str | None:
        """What a key of its job is as one types it, a group by its name; None where it is null or there is none."""
        found: Any = self.job
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            found = found.get("name")
        return None if found is None else format_value(found)

    def override_or_value(self, key: str) -> str | None:
        """The same, but as it was typed where it was."""
        return self.keys[key] if key in self.keys else self.value(key)


@dataclass(frozen=True)
class Sweep:
    """All rows of a folder, in the order of their numbers, and the runs whose records cannot be read."""

    folder: Path
    runs: Sequence[Run]
    unreadable: Mapping[str, str]
    """Name of the run's folder -> what is wrong with its record."""

    @property
    def title(self) -> str:
        """The name of its sweep, or the names of the first few of several."""
        names = list(dict.fromkeys(row.sweep for row in self.runs if row.sweep)) or [self.folder.name]
        more = len(names) - NAMED
        return ", ".join([*names[:NAMED], *([f"and {more} more"] if more > 0 else [])])

    def varied(self) -> list[str]:
        """The keys that were typed and are not the same in all rows."""
        keys = dict.fromkeys(key for row in self.runs for key in row.keys)
        return [key for key in keys if len({row.keys.get(key) for row in self.runs}) > 1]
