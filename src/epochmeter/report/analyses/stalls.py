"""Data stalls by difference: the same configuration on synthetic batches, from the page cache, and from storage.

With T1, T3 and T2 the time per epoch on synthetic, cached and stored samples, the prep stall is T3 - T1 and the fetch
stall T2 - T3 (J. Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, PVLDB 14(5), 2021). The run is the
unit of the statistics, as epochs within a run are not independent. Differences are taken round by round if the repeats
are rounds of a sweep, else compared by Welch's method. They are never clipped: a negative stall is noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochmeter.report.analyses.bottleneck import (
    FETCH,
    PREPROCESSED,
    STALLED,
    check_cache_state,
    repeated,
    verdict,
)
from epochmeter.report.analyses.what_if import Pipeline, Prediction, fraction_without_stall, pipeline_of, predictions
from epochmeter.report.runs.data_source import (
    CONDITIONS,
    FROM_CACHE,
    FROM_STORAGE,
    SYNTHETIC,
    RunsByCondition,
    by_job,
    cache_violations,
    mean,
    naming,
    titles,
)
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import MIN_EFFECT, Estimate, Rounds, Samples, contrast, positive_means
from epochmeter.results.bottleneck import COMPUTE, COPY, OVERHEAD, Bottleneck
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS


@dataclass(frozen=True)
class StallDefinitions:
    """The data stall per epoch by three definitions; absent if a run did not record it.

    Attributes:
        measured_s: Idle time of the device that waiting for data explains, with preprocessing that is not overlapped.
        model_s: The stall model: max(read + preprocess - compute, 0), summed over steps.
        differential_s: T2 - T1 from storage, T3 - T1 from the page cache.
    """

    measured_s: float | None
    model_s: float | None
    differential_s: float


@dataclass(frozen=True)
class Energy:
    """Energy per epoch and of the stalls.

    Attributes:
        covers: What the energy includes.
        reason: Why there is no energy.
        synthetic_j: Energy per epoch on synthetic batches.
        cached_j: The same from the page cache.
        storage_j: The same from storage.
        preprocessing: Energy of the prep stall.
        fetch: Energy of the fetch stall.
        stall_w: Power while stalled; None if the stall is too short and idle power is not known.
        wait_w: Power that a shorter wait saves; preprocessing is still needed. None as above.
    """

    covers: str | None = None
    reason: str | None = None
    synthetic_j: float | None = None
    cached_j: float | None = None
    storage_j: float | None = None
    preprocessing: Estimate | None = None
    fetch: Estimate | None = None
    stall_w: float | None = None
    wait_w: float | None = None


@dataclass(frozen=True)
class Analysis:
    """The stall analysis of one configuration.

    Attributes:
        keys: Model, dataset and other identifying keys.
        numbers: Condition -> numbers of its runs.
        times_s: Condition -> time per epoch: T1, T3, T2.
        preprocessing: Prep stall per epoch in seconds.
        fetch: Fetch stall per epoch in seconds.
        verdict: The bottleneck.
        in_memory: The bottleneck with the dataset in memory.
        conditions: Assumptions of the verdict; empty if the page cache was in the requested states.
        in_memory_conditions: The same of the verdict in memory.
        lives_in_memory: Whether the dataset is in memory, so that there is no fetch stall.
        full_cache_share: Fraction of the dataset in memory above which no fetch stall is left; None if all of it is.
    """

    title: str
    keys: Mapping[str, Any]
    numbers: Mapping[str, Sequence[int]]
    times_s: Mapping[str, Estimate]
    preprocessing: Estimate
    fetch: Estimate
    verdict: Bottleneck
    in_memory: Bottleneck
    conditions: list[str]
    in_memory_conditions: list[str]
    notes: list[str]
    lives_in_memory: bool
    storage: StallDefinitions
    cached: StallDefinitions
    energy: Energy
    pipeline: Pipeline
    predictions: list[Prediction]
    full_cache_share: float | None


@dataclass(frozen=True)
class Incomplete:
    """A configuration without runs of some conditions.

    Attributes:
        missing: The conditions without runs.
        numbers: Condition -> numbers of its runs.
        elsewhere: Missing condition -> the hosts that have runs of it.
    """

    title: str
    missing: list[str]
    numbers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)


def analyses(rows: Sequence[Run]) -> list[Analysis | Incomplete]:
    """Analyze each configuration and host with runs of two conditions or more."""
    groups = by_job(rows)
    names = titles([next(iter(group.runs.values()))[0] for group in groups])
    return [_analyze(name, group) for name, group in zip(names, groups, strict=True)]


def energy_of(rows: Mapping[str, Sequence[Run]], times: Samples) -> Energy:
    """Return the energy of the stalls; without it, the reason: a run has none, or they cover different parts."""
    every = [row for group in rows.values() for row in group]
    unmeasured = [row for row in every if row.steady("energy_j") is None]
    if unmeasured:
        return Energy(reason=f"{len(unmeasured)} of {len(every)} runs measured none: {unmeasured[0].no_energy}")
    covers = {str(row.energy_covers) for row in every}
    if len(covers) > 1:
        return Energy(reason=f"it covers different things: {', '.join(sorted(covers))}")
    joules = {name: [row.metrics["steady/energy_j"] for row in group] for name, group in rows.items()}
    rounds = {name: [run.round for run in group] for name, group in rows.items()}
    e1, e3, e2 = (statistics.fmean(joules[name]) for name in CONDITIONS)
    t1, t3, t2 = (statistics.fmean(times[name]) for name in CONDITIONS)
    idle = [row.metrics["total/idle_power_w"] for row in every if "total/idle_power_w" in row.metrics]
    idle_w = statistics.fmean(idle) if idle else None
    stall_w = stall_power(e1, e2, t1, t2, idle_w)
    domains = {domain for row in every for domain in row.energy_domains}
    only_gpus = bool(domains) and all(domain.startswith("gpu") for domain in domains)
    return Energy(
        covers=covers.pop(),
        synthetic_j=e1,
        cached_j=e3,
        storage_j=e2,
        preprocessing=contrast(PREPROCESSED, joules, rounds),
        fetch=contrast(FETCH, joules, rounds),
        stall_w=stall_w,
        wait_w=stall_power(e3, e2, t3, t2, stall_w if only_gpus else idle_w),
    )


def stall_power(e1: float, e2: float, t1: float, t2: float, idle_w: float | None) -> float | None:
    """Return the power while stalled, (E2 - E1) / (T2 - T1); the idle power if the stall is too short."""
    if t2 - t1 > MIN_EFFECT * t2 and e2 > e1:
        return (e2 - e1) / (t2 - t1)
    return idle_w


def _analyze(title: str, group: RunsByCondition) -> Analysis | Incomplete:
    numbers = {name: [row.number for row in group.runs[name]] for name in CONDITIONS if name in group.runs}
    missing = [name for name in CONDITIONS if name not in group.runs]
    if missing:
        return Incomplete(title, missing, numbers, group.elsewhere)
    rows = {name: group.runs[name] for name in CONDITIONS}
    times = {name: [row.metrics["steady/e2e_s"] for row in rows[name]] for name in CONDITIONS}
    rounds = {name: [run.round for run in rows[name]] for name in CONDITIONS}
    in_memory = rows[FROM_STORAGE][0].job["dataset"]["layout"] != "files"
    conditions, warm_conditions = ([], []) if in_memory else cache_violations(rows)
    device = _device_parts(rows[SYNTHETIC])
    warm_verdict = verdict(times, device, rounds, in_memory=True)
    bottleneck = warm_verdict if in_memory else check_cache_state(verdict(times, device, rounds), rows)
    energy = energy_of(rows, times)
    pipeline = pipeline_of(rows, times)

    def joules(seconds: float) -> float | None:
        if energy.storage_j is None or energy.wait_w is None:
            return None
        return energy.storage_j - energy.wait_w * (pipeline.cold_s - seconds)

    return Analysis(
        title=title,
        keys=naming(rows[FROM_STORAGE][0]),
        numbers=numbers,
        times_s=dict(zip(CONDITIONS, positive_means([times[name] for name in CONDITIONS]), strict=True)),
        preprocessing=contrast(PREPROCESSED, times, rounds),
        fetch=contrast(FETCH, times, rounds),
        verdict=bottleneck,
        in_memory=check_cache_state(warm_verdict, rows, in_memory=True) if not in_memory else warm_verdict,
        conditions=conditions,
        in_memory_conditions=warm_conditions,
        notes=_notes(rows, times, rounds),
        lives_in_memory=in_memory,
        storage=_agreement(rows[FROM_STORAGE], contrast(STALLED, times).value),
        cached=_agreement(rows[FROM_CACHE], contrast(PREPROCESSED, times).value),
        energy=energy,
        pipeline=pipeline,
        predictions=predictions(pipeline, joules, storage=not in_memory),
        full_cache_share=None if in_memory else fraction_without_stall(pipeline),
    )


def _device_parts(rows: Sequence[Run]) -> dict[str, list[float]] | None:
    """Return compute, copy and overhead of each run on synthetic batches; None unless all runs measured all three."""
    parts = {part: [row.steady(f"{part}_s") for row in rows] for part in (COMPUTE, COPY, OVERHEAD)}
    measured = {part: [value for value in values if value is not None] for part, values in parts.items()}
    return measured if all(len(values) == len(rows) for values in measured.values()) else None


def _notes(rows: Mapping[str, Sequence[Run]], times: Samples, rounds: Mapping[str, Rounds]) -> list[str]:
    notes = []
    if not repeated(times):
        once = [name for name in CONDITIONS if len(times[name]) < 2]
        notes.append(f"no intervals: {', '.join(once)} ran only once; {RECOMMENDED_REPEATS} gives them")
    for name, weights in {"fetch stall": FETCH, "prep stall": PREPROCESSED}.items():
        stall = contrast(weights, times, rounds)
        if stall.is_negative:
            notes.append(f"{name} is below zero, which none can be: {_against_noise(stall)}")
    samples = {row.steady("samples") for group in rows.values() for row in group}
    if len(samples) > 1:
        notes.append("epochs do not all have the same number of samples: their times compare less well")
    skipped = sum(row.steady("skipped_samples") or 0 for group in rows.values() for row in group)
    if skipped:
        notes.append("bad samples were skipped in some runs")
    return notes


def _against_noise(stall: Estimate) -> str:
    if stall.low is None or stall.contains(0.0):
        return "noise, taken as none"
    return "more than chance; something else changed between the runs"


def _agreement(rows: Sequence[Run], differential_s: float) -> StallDefinitions:
    return StallDefinitions(mean(rows, "data_stall_s"), mean(rows, "data_stall_model_s"), differential_s)
