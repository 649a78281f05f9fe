"""The points of a sweep: runs of one job put together, and in what one point differs from another."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import Estimate, ratio

REPEATED = ("repeat", "seed")
"""Keys in which the repeats of one job differ."""
NON_CONFIG_KEYS = (*REPEATED, "tracking", "sweep", "machine", "save_model", "profiler")
"""Keys of a job that make no point of their own."""
NAMES = ("model", "dataset", "strategy", "batch")
"""How points are called, in this order, before what else was typed for them."""
SINGLE, DATA_PARALLEL, DISTRIBUTED = "single", "dp", "ddp"


@dataclass(frozen=True, eq=False)
class Configuration:
    """A job, and all of its runs; no other is the same."""

    runs: Sequence[Run]

    @property
    def job(self) -> Mapping[str, Any]:
        return self.runs[0].job

    @property
    def host(self) -> str | None:
        return self.runs[0].host

    @property
    def numbers(self) -> list[int]:
        return [row.number for row in self.runs]

    @property
    def runs_text(self) -> str:
        """`runs 0, 3`."""
        return f"run{'s' if len(self.runs) > 1 else ''} {', '.join(map(str, self.numbers))}"

    @property
    def strategy(self) -> str:
        return self.job.get("strategy", {}).get("name", SINGLE)

    @property
    def devices(self) -> int | None:
        """How many trained, each rank for one; None where that is not known."""
        return 1 if self.strategy == SINGLE else self.runs[0].devices

    @property
    def ranks(self) -> int:
        """How many processes train on a host, each with loader processes of its own."""
        return self.job["strategy"]["ranks"] if self._distributed else 1

    @property
    def processes(self) -> int:
        """The same, on all hosts together."""
        return (self.devices or self.ranks) if self._distributed else 1

    @property
    def device_batch(self) -> float | None:
        """Samples of a step on one device: a DataParallel splits the batch, each rank of the others has its own."""
        if self.strategy != DATA_PARALLEL:
            return self.job["batch"]
        return self.job["batch"] / self.devices if self.devices else None

    @property
    def global_batch(self) -> float | None:
        """Samples of a step on all devices together."""
        return self.device_batch * self.devices if self.device_batch and self.devices else None

    def values(self, name: str) -> list[float]:
        """A metric by its full name, a value a run; empty where any run lacks it."""
        values = [row.metrics[name] for row in self.runs if name in row.metrics]
        return values if len(values) == len(self.runs) else []

    def mean(self, name: str) -> float | None:
        values = self.values(name)
        return statistics.fmean(values) if values else None

    def per_step(self, part: str) -> list[float]:
        """Seconds of a part (`compute_s`) in a step, a value a run; empty where any run lacks it."""
        parts, steps = self.values(f"steady/{part}"), self.values("steady/steps")
        return [seconds / count for seconds, count in zip(parts, steps, strict=True)] if parts and steps else []

    def value(self, key: str) -> str:
        """What a key of its job is, in a word, or what was typed that is none of it."""
        if key == "strategy" and self.strategy != SINGLE:
            return f"{self.strategy} x {self.devices or '?'}"
        row = self.runs[0]
        found = row.value(key)
        return row.keys.get(key, "null") if found is None else found

    @property
    def _distributed(self) -> bool:
        return self.strategy not in (SINGLE, DATA_PARALLEL)

    def named(self, keys: Sequence[str], hosted: bool = False) -> str:
        """`resnet50 on mnist, ddp x 2, batch 64`: by some keys of its job, and, for others, by what was typed.

        Last comes its host, where that is asked for.
        """
        known = [key for key in keys if key in self.job or key in self.runs[0].keys]
        host = [self.host or "unknown host"] if hosted else []
        return ", ".join([*(_named(key, self) for key in known), *host]).replace(", on ", " on ")


def group_repeats(rows: Sequence[Run]) -> list[Configuration]:
    """The rows put together by their hosts and jobs, in the order of their first runs."""
    groups: dict[tuple[str | None, str], list[Run]] = {}
    for row in rows:
        groups.setdefault((row.host, fingerprint(row.job)), []).append(row)
    return [Configuration(group) for group in groups.values()]


def without_synthetic(found: Sequence[Configuration]) -> list[Configuration]:
    """Those that had their samples loaded: on ready batches, a job shows but how fast the device is; all, if all do."""
    return [point for point in found if not point.job.get("synthetic_batches")] or list(found)


def fingerprint(job: Mapping[str, Any], but: Sequence[str] = ()) -> str:
    """What makes two jobs one point, or one but for some keys."""
    return json.dumps({key: value for key, value in job.items() if key not in (*NON_CONFIG_KEYS, *but)}, sort_keys=True)


def quality_target(job: Mapping[str, Any]) -> str | None:
    """Return the quality target of a configuration as text; None without one."""
    targets = {"accuracy": job.get("target_accuracy"), "loss": job.get("target_loss")}
    bounds = {"accuracy": "at least", "loss": "at most"}
    texts = [f"{name} of {bounds[name]} {value:g}" for name, value in targets.items() if value is not None]
    where = "" if job.get("evaluate", True) else " while training"
    return f"{' and '.join(texts)}{where}" if texts else None


def device_unit(strategy: str) -> str:
    """What there are several of: the GPUs that a DataParallel splits its batch among, or ranks, which may share one."""
    return "devices" if strategy == DATA_PARALLEL else "ranks"


def titles(found: Sequence[Configuration]) -> list[str]:
    """How each point is called, no two alike: by in what they differ, or, where that is in no word, by their runs."""
    return list(_titles(tuple(found)))


def groups(found: Sequence[Configuration], but: Sequence[str]) -> list[list[Configuration]]:
    """Points of one host that differ in these keys alone, together."""
    keyed = sorted(((point.host or "", fingerprint(point.job, but)), index) for index, point in enumerate(found))
    together = [[found[index] for _, index in group] for _, group in groupby(keyed, key=lambda pair: pair[0])]
    return sorted(together, key=lambda group: group[0].numbers[0])


def varied(found: Sequence[Configuration]) -> list[str]:
    """In what the points differ: keys of the job first, then what was typed below one (`optimizer.lr`)."""
    return list(_varied(tuple(found)))


def on_several_hosts(found: Sequence[Configuration]) -> bool:
    return len({point.host for point in found}) > 1


@lru_cache(maxsize=16)  # each part of a report asks for those of the same points
def _titles(found: tuple[Configuration, ...]) -> list[str]:
    keys, hosted = varied(found) or ["model", "batch"], on_several_hosts(found)
    names = [point.named(keys, hosted) for point in found]
    counts = Counter(names)
    return [
        name if counts[name] == 1 else f"{name} ({point.runs_text})" for name, point in zip(names, found, strict=True)
    ]


@lru_cache(maxsize=16)
def _varied(found: tuple[Configuration, ...]) -> list[str]:
    jobs = [point.job for point in found]
    keys = [key for key in dict.fromkeys(key for job in jobs for key in job) if key not in NON_CONFIG_KEYS]
    differ = [key for key in keys if any(job.get(key) != jobs[0].get(key) for job in jobs)]
    # The number of devices tells strategies of one name apart: it is in the word for one.
    typed = dict.fromkeys(key for point in found for row in point.runs for key in row.keys if "." in key)
    below = [
        key
        for key in typed
        if (top := key.partition(".")[0]) in differ
        and top != "strategy"
        and len({point.runs[0].keys.get(key) for point in found}) > 1
    ]
    spoken = [key for key in differ if len({point.value(key) for point in found}) > 1]
    ordered = sorted(spoken, key=lambda key: NAMES.index(key) if key in NAMES else len(NAMES))
    return ordered + [key for key in below if key not in ordered and key != "model.name"]


def ratio_of(name: str, above: Configuration, below: Configuration) -> Estimate | None:
    """The ratio of a metric of two points; None where a run of either lacks it, or has none above zero."""
    values = above.values(name), below.values(name)
    if not all(values) or min(map(min, values)) <= 0:
        return None
    return ratio(*values, rounds=[[run.round for run in point.runs] for point in (above, below)])


def no_energy(found: Sequence[Configuration]) -> str | None:
    """Why the joules of these points cannot be put side by side; None where they can."""
    rows = [row for point in found for row in point.runs]
    unmeasured = [row for row in rows if row.energy_covers is None]
    if unmeasured:
        return f"{len(unmeasured)} of {len(rows)} runs measured none: {unmeasured[0].no_energy}"
    covers = {str(row.energy_covers) for row in rows}
    return f"it covers different things: {', '.join(sorted(covers))}" if len(covers) > 1 else None


def _named(key: str, point: Configuration) -> str:
    if key not in point.job:
        return f"{key}={point.runs[0].keys[key]}"  # as it was typed
    if key in ("model", "strategy"):
        return point.value(key)
    return f"on {point.value(key)}" if key == "dataset" else f"{key} {point.value(key)}"
