"""Configurations: runs that are repeats of each other, and the keys in which configurations differ."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from epochmeter.config.schema import SCRIPT
from epochmeter.report.runs.run import NON_CONFIG_KEYS, NOT_APPLIED, Run, fingerprint, grouped

FIRST_KEYS = ("model", "dataset", "strategy", "batch")  # keys that come first in a title
PLACEHOLDER = {"name": SCRIPT}  # group of keys of a measured script, whose optimizer is not known
SINGLE, DATA_PARALLEL, DISTRIBUTED = "single", "dp", "ddp"


@dataclass(eq=False)
class Configuration:
    """A configuration on one host, and all of its runs. Equality is identity.

    Attributes:
        title: The keys in which it differs from the configurations of other runs, and its runs if that is not enough.
    """

    runs: Sequence[Run]
    title: str = ""

    @property
    def job(self) -> Mapping[str, Any]:
        return self.runs[0].job

    @property
    def host(self) -> str | None:
        return self.runs[0].host

    @property
    def numbers(self) -> list[int]:
        return [run.number for run in self.runs]

    @property
    def energy_scope(self) -> str | None:
        """Scope of its energy; None if a run has no energy or the runs differ."""
        scopes = {run.energy_covers for run in self.runs}
        return scopes.pop() if len(scopes) == 1 else None

    @property
    def link(self) -> str | None:
        """The page in MLflow of its first run that has one."""
        return next((run.address for run in self.runs if run.address), None)

    @property
    def strategy(self) -> str:
        return str(self.job.get("strategy", {}).get("name", SINGLE))

    @property
    def devices(self) -> int | None:
        """Number of training devices, one per rank, if known."""
        return 1 if self.strategy == SINGLE else self.runs[0].devices

    @property
    def ranks(self) -> int:
        """Number of training processes per host, each with its own DataLoader workers."""
        return 1 if self.strategy in (SINGLE, DATA_PARALLEL) else self.job["strategy"].get("ranks") or 1

    @property
    def processes(self) -> int:
        """Number of training processes on all hosts."""
        return 1 if self.strategy in (SINGLE, DATA_PARALLEL) else self.devices or self.ranks

    @property
    def device_batch(self) -> float | None:
        """Samples per step on one device: DataParallel splits the batch, otherwise each rank has its own."""
        if self.strategy != DATA_PARALLEL:
            return self.job.get("batch")  # unknown for a measured script
        return self.job["batch"] / self.devices if self.devices and "batch" in self.job else None

    @property
    def global_batch(self) -> float | None:
        """Samples per step on all devices."""
        return self.device_batch * self.devices if self.device_batch and self.devices else None

    def values(self, name: str) -> list[float]:
        """Return a metric's value for each run; empty unless all runs have it."""
        values = [run.metrics[name] for run in self.runs if name in run.metrics]
        return values if len(values) == len(self.runs) else []

    def mean(self, name: str) -> float | None:
        """Return the mean of a metric over the runs; None unless all runs have it."""
        values = self.values(name)
        return statistics.fmean(values) if values else None

    def per_step(self, part: str) -> list[float]:
        """Return the seconds of a part (`compute_s`) per step for each run; empty unless all runs have it."""
        parts, steps = self.values(f"steady/{part}"), self.values("steady/steps")
        return [seconds / count for seconds, count in zip(parts, steps, strict=True)] if parts and steps else []

    def value(self, key: str) -> str:
        """Return a key's value as text: as configured, or as typed for a key without a default."""
        if key == "strategy" and self.strategy != SINGLE:
            return f"{self.strategy} x {self.devices or '?'}"
        value = self.runs[0].value(key)
        return self.runs[0].keys.get(key, "null") if value is None else value

    def named(self, keys: Sequence[str], with_host: bool = False) -> str:
        """Return a title of some keys, and optionally of the host: `resnet50 on mnist, ddp x 2, batch 64`."""
        prefixes = {"model": "", "strategy": "", "dataset": "on "}
        texts = []
        for key in keys:
            if key in self.job:
                value = self.value(key)
                texts += [prefixes.get(key, f"{key} ") + value] if key == "model" or value != SCRIPT else []
            elif key in self.runs[0].keys:
                texts.append(f"{key}={self.runs[0].keys[key]}")  # as typed
        return ", ".join([*texts, self.host or "unknown host"] if with_host else texts).replace(", on ", " on ")


class QualityTarget(NamedTuple):
    """A quality target, which ends a run: least accuracy, largest loss, and whether they are of training epochs."""

    accuracy: float | None
    loss: float | None
    is_training: bool


@dataclass(frozen=True)
class NoEnergy:
    """Why the energies of runs cannot be compared: `without` of `count` runs have none, the first for a `reason`.

    If all runs have energy, `covers` are the different parts of the machine that the energies include.
    """

    without: int
    count: int
    reason: str | None = None
    covers: tuple[str, ...] = ()


def group_repeats(runs: Sequence[Run]) -> list[Configuration]:
    """Group runs by host and configuration, in the order of the first runs."""
    return [*_grouped(tuple(runs))]


@lru_cache(maxsize=64)  # several analyses are of the same runs, whose configurations are compared by identity
def _grouped(runs: tuple[Run, ...]) -> list[Configuration]:
    repeats = grouped(runs, lambda run: (run.host, run.fingerprint))
    configurations = [Configuration(group) for group in repeats.values()]
    keys, several_hosts = varied(configurations) or ["model", "batch"], on_several_hosts(configurations)
    names = [configuration.named(keys, several_hosts) for configuration in configurations]
    counts = Counter(names)
    for name, configuration in zip(names, configurations, strict=True):
        named_runs = f"run{'s' if len(configuration.runs) > 1 else ''} {', '.join(map(str, configuration.numbers))}"
        configuration.title = name if counts[name] == 1 else f"{name} ({named_runs})"
    return configurations


def without_synthetic(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that load samples; all if none does. Ideal loaders show the device's speed only."""
    return [run for run in runs if not run.is_ideal] or list(runs)


def quality_target(job: Mapping[str, Any]) -> QualityTarget | None:
    """Return the quality target of a configuration, if any."""
    target = QualityTarget(job.get("target_accuracy"), job.get("target_loss"), not job.get("evaluate", True))
    return None if target.accuracy is None and target.loss is None else target


def on_several_hosts(configurations: Sequence[Configuration]) -> bool:
    """Whether the configurations ran on more than one host."""
    return len({configuration.host for configuration in configurations}) > 1


def groups(configurations: Sequence[Configuration], excluded: Sequence[str]) -> list[list[Configuration]]:
    """Group the configurations on one host that differ in these keys only."""
    return [
        *grouped(
            configurations, lambda configuration: (configuration.host, fingerprint(configuration.job, excluded))
        ).values()
    ]


def varied(configurations: Sequence[Configuration]) -> list[str]:
    """Return the keys in which configurations differ: top-level keys, then overrides below them (`optimizer.lr`)."""
    return [*_varied(tuple(configurations))]


@lru_cache(maxsize=16)
def _varied(configurations: tuple[Configuration, ...]) -> list[str]:
    jobs = [configuration.job for configuration in configurations]
    is_applied = not all(run.rehearsal for configuration in configurations for run in configuration.runs)
    without_effect = NON_CONFIG_KEYS if is_applied else (*NON_CONFIG_KEYS, *NOT_APPLIED)
    keys = dict.fromkeys(key for job in jobs for key in job if key not in without_effect)
    marked = [(job, (job.get("model") or {}).get("name") == SCRIPT) for job in jobs]
    # A measured script lacks the keys of a training, or has placeholders for them, which therefore do not differ.
    columns = {
        key: [
            job.get(key)
            for job, is_script in marked
            if not is_script or key == "model" or job.get(key, PLACEHOLDER) != PLACEHOLDER
        ]
        for key in keys
    }
    differing = [key for key, values in columns.items() if values and values.count(values[0]) < len(values)]
    visible = [key for key in differing if len({configuration.value(key) for configuration in configurations}) > 1]
    visible.sort(key=lambda key: FIRST_KEYS.index(key) if key in FIRST_KEYS else len(FIRST_KEYS))
    overridden = dict.fromkeys(key for point in configurations for run in point.runs for key in run.keys if "." in key)
    for key in overridden:
        is_in_titles = key.startswith(("strategy.", "model.name"))  # as the number of devices and the model
        values = {configuration.runs[0].keys.get(key) for configuration in configurations}
        if len(values) > 1 and key.partition(".")[0] in differing and not is_in_titles:
            visible.append(key)
    return visible


def no_energy(configurations: Iterable[Configuration], metric: str | None = None) -> NoEnergy | None:
    """Return why the energies of configurations, or a metric of energy, cannot be compared; None if they can."""
    runs = [run for configuration in configurations for run in configuration.runs]
    without = [run for run in runs if run.energy_covers is None or (metric and metric not in run.metrics)]
    if without:
        return NoEnergy(len(without), len(runs), next((run.no_energy for run in without if run.no_energy), None))
    covers = {str(run.energy_covers) for run in runs}
    return NoEnergy(0, len(runs), covers=tuple(sorted(covers))) if len(covers) > 1 else None
