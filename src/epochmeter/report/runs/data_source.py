"""Runs of one configuration by the source of their samples, as an analysis of data stalls compares them.

Samples come from synthetic batches, from the page cache, or from storage. The measured page-cache residency shows
whether the cache was in the requested state.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from epochmeter.report.runs.run import NON_CONFIG_KEYS, Run, fingerprint

MIN_WARM, MAX_COLD = 0.98, 0.02
"""Page-cache residency before an epoch: minimum of a warm run, maximum of a cold one."""
SYNTHETIC, FROM_CACHE, FROM_STORAGE = "synthetic", "cached", "storage"
CONDITIONS = (SYNTHETIC, FROM_CACHE, FROM_STORAGE)
CACHE_STATES = {FROM_CACHE: "warm", FROM_STORAGE: "cold"}
"""State of the page cache before an epoch."""
RESIDENCY = "page_cache_residency_before"
SET_BY_DATA_SOURCE = ("synthetic_batches", "cache")
"""Keys that differ between the runs of one analysis."""


class RunsByCondition(NamedTuple):
    """The runs of one configuration on one host by condition; for conditions without runs, the hosts that have some."""

    runs: Mapping[str, list[Run]]
    elsewhere: Mapping[str, list[str]]


def condition(job: Mapping[str, Any]) -> str | None:
    """Return the condition of a configuration, if it is one of the three."""
    if job.get("synthetic_batches"):
        return SYNTHETIC
    return {"warm": FROM_CACHE, "cold_each_epoch": FROM_STORAGE}.get(str(job.get("cache")))


def by_job(runs: Sequence[Run]) -> list[RunsByCondition]:
    """Group the runs of each configuration that ran under two conditions or more, by host."""
    groups: dict[str, dict[str | None, dict[str, list[Run]]]] = {}
    for run in runs:
        if name := condition(run.job):
            hosts = groups.setdefault(fingerprint(run.job, SET_BY_DATA_SOURCE), {})
            hosts.setdefault(run.host, {}).setdefault(name, []).append(run)
    several = [hosts for hosts in groups.values() if len({name for here in hosts.values() for name in here}) > 1]
    return [RunsByCondition(here, _elsewhere(here, hosts)) for hosts in several for here in hosts.values()]


def titles(runs: Sequence[Run]) -> list[str]:
    """Return a title of each run: model, dataset, batch size, workers, and further keys that vary."""
    common = {"model", "dataset", "batch", "workers", "data_source", "experiment", *SET_BY_DATA_SOURCE}
    keys = dict.fromkeys(key for run in runs for key in run.keys if key not in (*common, *NON_CONFIG_KEYS))
    varied = [key for key in keys if len({run.keys.get(key) for run in runs}) > 1]
    hosts = len({run.host for run in runs})
    titles = []
    for run in runs:
        keys_of = naming(run)
        workers = f"{keys_of['workers']} worker{'' if keys_of['workers'] == 1 else 's'}"
        extra = [f"{key}={run.keys[key]}" for key in varied if key in run.keys]
        extra += [run.host or "unknown host"] if hosts > 1 else []
        parts = [f"{keys_of['model']} on {keys_of['dataset']}", f"batch {keys_of['batch']}", workers, *extra]
        titles.append(", ".join(parts))
    return titles


def naming(run: Run) -> dict[str, Any]:
    """Return the keys that identify a configuration in a stall analysis."""
    groups = {name: run.job[name]["name"] for name in ("model", "dataset", "storage", "device")}
    return {**groups, "batch": run.job.get("batch"), "workers": run.job.get("workers")}


def mean(runs: Sequence[Run], name: str) -> float | None:
    """Return the mean of a steady metric; None unless all runs have it."""
    values = [value for run in runs if (value := run.steady(name)) is not None]
    return statistics.fmean(values) if values and len(values) == len(runs) else None


def was_warm(runs: Mapping[str, Sequence[Run]]) -> bool:
    """Whether all warm runs with a known residency were warm."""
    return not any(_is_wrong(FROM_CACHE, run.steady(RESIDENCY)) for run in runs[FROM_CACHE])


def was_cold(runs: Mapping[str, Sequence[Run]]) -> bool:
    """Whether all cold runs with a known residency were cold."""
    return not any(_is_wrong(FROM_STORAGE, run.steady(RESIDENCY)) for run in runs[FROM_STORAGE])


def cache_violations(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return where the page cache was not in the requested state, or is not known to be."""
    return [text for name in CACHE_STATES for text in _cache_violations(name, runs[name])]


def _cache_violations(name: str, runs: Sequence[Run]) -> Iterator[str]:
    state = CACHE_STATES[name]
    for run in runs:
        residency = run.steady(RESIDENCY)
        if residency is not None and _is_wrong(name, residency):
            yield f"run {run.number} was to be {state}, and {100 * residency:.0f} % was cached"
    if unknown := [str(run.number) for run in runs if run.steady(RESIDENCY) is None]:
        yield f"whether the cache was {state} is not known (run {', '.join(unknown)}: no page-cache residency)"


def _is_wrong(name: str, residency: float | None) -> bool:
    if residency is None:
        return False
    return residency < MIN_WARM if name == FROM_CACHE else residency > MAX_COLD


def _elsewhere(
    here: Mapping[str, list[Run]], hosts: Mapping[str | None, Mapping[str, list[Run]]]
) -> dict[str, list[str]]:
    hosts_of = {name: [host or "unknown host" for host, runs in hosts.items() if name in runs]
                for name in CONDITIONS if name not in here}  # fmt: skip
    return {name: names for name, names in hosts_of.items() if names}
