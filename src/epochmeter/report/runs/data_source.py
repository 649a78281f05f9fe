"""The three sources of samples that a job runs on to tell where its stalls come from, and which runs are of one job.

Ready tensors; all samples in the page cache; none of them there. What the cache really held is looked at, too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from epochmeter.report.runs.configuration import NON_CONFIG_KEYS, fingerprint
from epochmeter.report.runs.run import Run

WARM, COLD = 0.98, 0.02
"""Page-cache residency before an epoch: a warm run's is at least the first, a cold run's at most the second."""
SYNTHETIC, FROM_CACHE, FROM_STORAGE = "synthetic", "cached", "storage"
CONDITIONS = (SYNTHETIC, FROM_CACHE, FROM_STORAGE)
CACHE_STATES = {FROM_CACHE: "warm", FROM_STORAGE: "cold"}
"""State of the page cache before an epoch."""
SET_BY_DATA_SOURCE = ("synthetic_batches", "cache")
"""Keys of a job in which runs of one analysis differ, beside those that make no point of their own."""


def condition(job: Mapping[str, Any]) -> str | None:
    """Which of the three a job is, None if it is none of them."""
    if job.get("synthetic_batches"):
        return SYNTHETIC
    return {"warm": FROM_CACHE, "cold_each_epoch": FROM_STORAGE}.get(job["cache"])


class RunsByCondition(NamedTuple):
    """The runs of one job on one host, by condition."""

    runs: Mapping[str, list[Run]]
    elsewhere: Mapping[str, list[str]]
    """Condition that no run here was under -> the hosts on which that job was."""


def by_job(rows: Sequence[Run]) -> list[RunsByCondition]:
    """The runs of each job that ran under two of the conditions or more, on each host by itself."""
    jobs: dict[str, dict[str | None, dict[str, list[Run]]]] = {}
    for row in rows:
        if name := condition(row.job):
            hosts = jobs.setdefault(fingerprint(row.job, SET_BY_DATA_SOURCE), {})
            hosts.setdefault(row.host, {}).setdefault(name, []).append(row)
    several = [hosts for hosts in jobs.values() if len({name for runs in hosts.values() for name in runs}) > 1]
    return [RunsByCondition(runs, _elsewhere(runs, hosts)) for hosts in several for runs in hosts.values()]


def titles(rows: Sequence[Run]) -> list[str]:
    """How each job is called: model, dataset, batch, workers, and what else tells one from another."""
    known = {"model", "dataset", "batch", "workers", "data_source", "experiment", *SET_BY_DATA_SOURCE, *NON_CONFIG_KEYS}
    keys = dict.fromkeys(key for row in rows for key in row.keys if key not in known)
    varied = [key for key in keys if len({row.keys.get(key) for row in rows}) > 1]
    titles, hosts = [], len({row.host for row in rows})
    for row in rows:
        name = naming(row)
        workers = f"{name['workers']} worker{'' if name['workers'] == 1 else 's'}"
        extra = [f"{key}={row.keys[key]}" for key in varied if key in row.keys]
        extra += [row.host or "unknown host"] if hosts > 1 else []
        titles.append(", ".join([f"{name['model']} on {name['dataset']}", f"batch {name['batch']}", workers, *extra]))
    return titles


def naming(row: Run) -> dict[str, Any]:
    job = row.job
    return {
        "model": job["model"]["name"],
        "dataset": job["dataset"]["name"],
        "storage": job["storage"]["name"],
        "device": job["device"]["name"],
        "batch": job["batch"],
        "workers": job["workers"],
    }


def mean(rows: Sequence[Run], name: str) -> float | None:
    values = [row.steady(name) for row in rows]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def was_warm(rows: Mapping[str, Sequence[Run]]) -> bool:
    return all(share >= WARM for share in _shares(rows[FROM_CACHE]))


def was_cold(rows: Mapping[str, Sequence[Run]]) -> bool:
    return all(share <= COLD for share in _shares(rows[FROM_STORAGE]))


def cache_violations(rows: Mapping[str, Sequence[Run]]) -> tuple[list[str], list[str]]:
    """What of the page cache was not as asked or is not known: for the verdict, and for that in memory."""
    told: dict[str, list[str]] = {FROM_CACHE: [], FROM_STORAGE: []}
    wrong: dict[str, Callable[[float], bool]] = {
        FROM_CACHE: lambda share: share < WARM,
        FROM_STORAGE: lambda share: share > COLD,
    }
    for name, is_wrong in wrong.items():
        for row in rows[name]:
            share = row.steady("page_cache_residency_before")
            if share is not None and is_wrong(share):
                told[name].append(
                    f"run {row.number} was to be {CACHE_STATES[name]}, and {100 * share:.0f} % was cached"
                )
        unknown = [row.number for row in rows[name] if row.steady("page_cache_residency_before") is None]
        if unknown:
            listed = ", ".join(map(str, unknown))
            told[name].append(
                f"whether the cache was {CACHE_STATES[name]} is not known (run {listed}: no page-cache residency)"
            )
    return told[FROM_CACHE] + told[FROM_STORAGE], told[FROM_CACHE]


def _elsewhere(
    here: Mapping[str, list[Run]], hosts: Mapping[str | None, Mapping[str, list[Run]]]
) -> dict[str, list[str]]:
    found = {name: [host or "unknown host" for host, runs in hosts.items() if name in runs]
             for name in CONDITIONS if name not in here}  # fmt: skip
    return {name: there for name, there in found.items() if there}


def _shares(rows: Sequence[Run]) -> list[float]:
    return [share for row in rows if (share := row.steady("page_cache_residency_before")) is not None]
