"""Runs of one configuration by the source of their samples: an ideal loader, the page cache, or storage."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from epochmeter.report.runs.configuration import Configuration, without_synthetic
from epochmeter.report.runs.run import Run, fingerprint, grouped

SYNTHETIC, FROM_CACHE, FROM_STORAGE = "synthetic", "cached", "storage"
CONDITIONS = (SYNTHETIC, FROM_CACHE, FROM_STORAGE)
OF_UNKNOWN_FILES = (SYNTHETIC, FROM_STORAGE)
"""Conditions of a script whose files are not known: `storage` is then the script as it is."""
CACHE_STATES = {FROM_CACHE: "warm", FROM_STORAGE: "cold"}  # state of the page cache before an epoch
RESIDENCY = "page_cache_residency_before"
RESIDENCIES = {FROM_CACHE: (0.98, 1.0), FROM_STORAGE: (0.0, 0.02)}  # range of the fraction before an epoch
SET_BY_DATA_SOURCE = ("synthetic_batches", "cache")  # keys that differ between the runs of one analysis


class CacheViolation(NamedTuple):
    """Runs whose page cache was not in the requested `state`, or is not known to be (residency None)."""

    state: str
    numbers: Sequence[int]
    residency: float | None


def is_script(job: Mapping[str, Any]) -> bool:
    """Return whether a configuration measures a script."""
    return bool((job.get("measure") or {}).get("command"))


def conditions_of(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the conditions that the stall analysis of a configuration compares."""
    return OF_UNKNOWN_FILES if is_script(job) and not job["measure"].get("data") else CONDITIONS


def source_names(job: Mapping[str, Any]) -> dict[str, str]:
    """Return condition -> the option of `data_source` that sets it."""
    names = {name: name for name in conditions_of(job)}
    if is_script(job):
        names[SYNTHETIC] = "replay"
        names[FROM_STORAGE] = "storage" if FROM_CACHE in names else "unchanged"
    return names


def condition(job: Mapping[str, Any]) -> str | None:
    """Return the condition of a configuration, if it is one of the three and has what an analysis needs."""
    by_cache = {"warm": FROM_CACHE, "cold_each_epoch": FROM_STORAGE}.get(str(job.get("cache")))
    if is_script(job):
        if job["measure"].get("replay"):
            return SYNTHETIC
        return by_cache if FROM_CACHE in conditions_of(job) else FROM_STORAGE
    if not (isinstance(job.get("workers"), int) and job.get("batch") and "layout" in job.get("dataset", {})):
        return None
    return SYNTHETIC if job.get("synthetic_batches") else by_cache


def by_job(runs: Sequence[Run]) -> list[dict[str, list[Run]]]:
    """Group the runs of each configuration that ran under two conditions or more on one host, by condition."""
    conditioned = [run for run in runs if condition(run.job)]
    jobs = grouped(conditioned, lambda run: (run.host, _common_keys(run.job))).values()
    groups = [grouped(job, lambda run: condition(run.job) or "") for job in jobs]
    return [group for group in groups if len(group) > 1]


def _common_keys(job: Mapping[str, Any]) -> str:
    """Return a text that is equal for the runs of one analysis."""
    of_script = {key: value for key, value in (job.get("measure") or {}).items() if key != "replay"}
    return fingerprint({**job, "measure": of_script or None}, SET_BY_DATA_SOURCE)


def by_stall_analysis(runs: Sequence[Run]) -> list[dict[str, list[Run]]]:
    """Group the runs of each configuration that ran under all of its conditions on one host, by condition."""
    return [group for group in by_job(runs) if {*conditions_of(next(iter(group.values()))[0].job)} == group.keys()]


def candidates(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that may be recommended: none with an ideal loader, those from storage of a stall analysis."""
    references = {run for group in by_stall_analysis(runs) for run in group.get(FROM_CACHE, ())}
    return [run for run in without_synthetic(runs) if run not in references]


def mean(runs: Sequence[Run], name: str) -> float | None:
    """Return the mean of a steady metric; None unless all runs have it."""
    return Configuration(runs).mean(f"steady/{name}")


def kept_state(runs: Mapping[str, Sequence[Run]], name: str) -> bool:
    """Whether all runs of a condition with a known residency had their page cache in its state."""
    return not any(_is_wrong(name, run.steady(RESIDENCY)) for run in runs[name])


def cache_violations(runs: Mapping[str, Sequence[Run]]) -> list[CacheViolation]:
    """Return where the page cache was not in the requested state, or is not known to be."""
    violations = []
    for name, state in CACHE_STATES.items():
        residencies = {run.number: run.steady(RESIDENCY) for run in runs[name]}
        wrong = [(number, residency) for number, residency in residencies.items() if _is_wrong(name, residency)]
        violations += [CacheViolation(state, [number], residency) for number, residency in wrong]
        if unknown := [number for number, residency in residencies.items() if residency is None]:
            violations.append(CacheViolation(state, unknown, None))
    return violations


def _is_wrong(name: str, residency: float | None) -> bool:
    low, high = RESIDENCIES[name]
    return residency is not None and not low <= residency <= high
