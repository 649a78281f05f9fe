"""Data stalls by difference: the same configuration with an ideal loader, from the page cache, and from storage.

T1, T3 and T2 are the times per epoch on synthetic (of a script: replayed), cached and stored samples. The prep stall is
T3 - T1, and the fetch stall is T2 - T3 (J. Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, PVLDB
14(5), 2021). If the files of a script are not known, T2 is its time as it is, and T2 - T1 the data stall, which is not
divided. Differences are never clipped: a negative stall is noise.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from epochmeter.report.analyses.bottleneck import decide
from epochmeter.report.analyses.what_if import (
    Change,
    Pipeline,
    fraction_without_stall,
    pipeline_of,
    predictions,
    with_intervals,
)
from epochmeter.report.runs import data_source
from epochmeter.report.runs.configuration import Configuration, NoEnergy, no_energy, on_several_hosts, varied
from epochmeter.report.runs.data_source import FROM_CACHE, FROM_STORAGE, SYNTHETIC, CacheViolation, mean
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import MIN_EFFECT, Estimate, Rounds, Samples, contrast
from epochmeter.results.bottleneck import (
    COMPUTE,
    COPY,
    DATA_STALL,
    FETCH_STALL,
    IN_MEMORY,
    MIN_FRACTION,
    OVERHEAD,
    PREP_STALL,
    Bottleneck,
    Seconds,
)

PREPROCESSED = {FROM_CACHE: 1.0, SYNTHETIC: -1.0}
FETCH = {FROM_STORAGE: 1.0, FROM_CACHE: -1.0}
STALLED = {FROM_STORAGE: 1.0, SYNTHETIC: -1.0}
RunsBySource = Mapping[str, Sequence[Run]]
"""Condition -> its runs."""


@dataclass(frozen=True)
class StallEnergy:
    """Energy per epoch by condition, and of the stalls; and the power that a shorter wait saves, if known."""

    covers: str | None = None
    missing: NoEnergy | None = None
    epochs_j: Mapping[str, float] = field(default_factory=dict)
    data_stall: Estimate | None = None
    preprocessing: Estimate | None = None
    fetch: Estimate | None = None
    wait_w: float | None = None


@dataclass(frozen=True)
class StallAnalysis:
    """The stall analysis of one configuration.

    Attributes:
        sources: Condition -> the option of `data_source` that sets it.
        times_s: Condition -> time per epoch: T1, T3, T2.
        data_stall: All of the data stall per epoch in seconds.
        preprocessing: Prep stall per epoch in seconds, and `fetch` is the fetch stall; None if they are not divided.
        verdict: The bottleneck; with the dataset in memory it is `in_memory`.
        conditions: Assumptions of the verdict; empty if the page cache was in the requested states.
        definitions_s: Condition -> the data stall per epoch: as measured, by the stall model, and as the difference
            from T1; None if not recorded. The model sums max(read + preprocess - compute, 0) over the steps.
        pipeline: None if the DataLoader workers of a script are not known; then there are no predictions.
        best_change: The smallest change of those predicted to help most; None if none does, or no stall is significant.
        full_cache_fraction: Fraction of the dataset in memory above which no fetch stall remains; None if all of it is.
    """

    title: str
    is_script: bool
    sources: Mapping[str, str]
    numbers: Mapping[str, Sequence[int]]
    times_s: Mapping[str, Estimate]
    data_stall: Estimate
    preprocessing: Estimate | None
    fetch: Estimate | None
    verdict: Bottleneck
    in_memory: Bottleneck
    conditions: Sequence[CacheViolation]
    lives_in_memory: bool
    definitions_s: Mapping[str, Mapping[str, float | None]]
    energy: StallEnergy
    pipeline: Pipeline | None
    predictions: Sequence[Change]
    best_change: Change | None
    full_cache_fraction: float | None
    samples_differ: bool

    @property
    def ran_once(self) -> list[str]:
        return [self.sources[name] for name, numbers in self.numbers.items() if len(numbers) == 1]


@dataclass(frozen=True)
class Incomplete:
    """A configuration without runs of some data sources on its host."""

    title: str
    is_script: bool
    missing: Sequence[str]


def analyze(runs: Sequence[Run]) -> list[StallAnalysis | Incomplete]:
    """Analyze each configuration and host with runs of two conditions or more; each with a positive time."""
    measured = [run for run in runs if run.metrics["steady/e2e_s"] > 0]
    groups = data_source.by_job(measured)
    firsts = [Configuration(next(iter(group.values()))) for group in groups]
    keys = dict.fromkeys(["model", "dataset", "batch", "workers", *varied(firsts)])
    named = [key for key in keys if key not in data_source.SET_BY_DATA_SOURCE]
    results = list[StallAnalysis | Incomplete]()
    for first, group in zip(firsts, groups, strict=True):
        title = first.named(named, on_several_hosts(firsts))
        missing = [source for name, source in data_source.source_names(first.job).items() if name not in group]
        is_script = data_source.is_script(first.job)
        results.append(Incomplete(title, is_script, missing) if missing else _analyze(title, group))
    return results


def verdicts(results: Sequence[StallAnalysis | Incomplete]) -> dict[tuple[int, ...], Bottleneck]:
    """Return the bottlenecks that are decided, by the numbers of the runs from storage."""
    complete = [result for result in results if isinstance(result, StallAnalysis) and result.verdict.parts]
    return {tuple(result.numbers[FROM_STORAGE]): result.verdict for result in complete}


def stall_power(e1: float, e2: float, t1: float, t2: float, idle_w: float | None) -> float | None:
    """Return the power while stalled, (E2 - E1) / (T2 - T1); the idle power if the stall is too short."""
    if t2 - t1 > MIN_EFFECT * t2 and e2 > e1:
        return (e2 - e1) / (t2 - t1)
    return idle_w


def _analyze(title: str, runs: RunsBySource) -> StallAnalysis:
    job = runs[FROM_STORAGE][0].job
    sources = data_source.source_names(job)
    rows = {name: runs[name] for name in sources}
    every = [run for runs in rows.values() for run in runs]
    times = {name: [run.metrics["steady/e2e_s"] for run in runs] for name, runs in rows.items()}
    rounds = {name: [run.round for run in runs] for name, runs in rows.items()}
    is_divided, in_memory = FROM_CACHE in rows, not _reads_files(rows)
    warm = _verdict(rows, times, rounds, in_memory=True)
    bottleneck = warm if in_memory else _verdict(rows, times, rounds, in_memory=False)
    energy, pipeline = _energy(rows, times, rounds), pipeline_of(rows)
    stall = contrast(STALLED, times, rounds)
    preprocessing, fetch = (
        contrast(weights, times, rounds) if is_divided else None for weights in (PREPROCESSED, FETCH)
    )
    reads = is_divided and not in_memory
    changes = _predictions(rows, pipeline, energy, reads=reads) if pipeline else []
    helpful = {"workers": stall.is_positive, "storage": bool(fetch and fetch.is_positive)}
    helpful |= {"in memory": helpful["storage"], "prepared": False}  # no setting
    useful = [change for change in changes if helpful[change.change]]
    return StallAnalysis(
        title=title,
        is_script=data_source.is_script(job),
        sources=sources,
        numbers={name: [run.number for run in runs] for name, runs in rows.items()},
        times_s={name: contrast({name: 1.0}, times) for name in times},
        data_stall=stall,
        preprocessing=preprocessing,
        fetch=fetch,
        verdict=bottleneck,
        in_memory=warm,
        conditions=data_source.cache_violations(rows) if reads else [],
        lives_in_memory=in_memory,
        definitions_s={
            name: {
                "measured": mean(rows[name], "data_stall_s"),
                "model": mean(rows[name], "data_stall_model_s"),
                "differential": contrast(weights, times).value,
            }
            for name, weights in {FROM_STORAGE: STALLED, FROM_CACHE: PREPROCESSED}.items()
            if name in rows
        },
        energy=energy,
        pipeline=pipeline,
        predictions=changes,
        best_change=_best_change(useful, statistics.fmean(times[FROM_STORAGE])) if bottleneck.parts else None,
        full_cache_fraction=fraction_without_stall(pipeline) if reads and pipeline else None,
        samples_differ=len({run.steady("samples") for run in every}) > 1,
    )


def _predictions(rows: RunsBySource, pipeline: Pipeline, energy: StallEnergy, *, reads: bool) -> list[Change]:
    """Return the predictions with their intervals, if each condition ran equally often; `reads`: from storage."""
    changes = predictions(pipeline, reads, energy.epochs_j.get(FROM_STORAGE), energy.wait_w)
    if len({len(runs) for runs in rows.values()}) > 1:
        return changes
    rounds = []
    for runs in zip(*rows.values(), strict=True):
        of_round = {name: [run] for name, run in zip(rows, runs, strict=True)}
        cold_j = of_round[FROM_STORAGE][0].steady("energy_j") if energy.epochs_j else None
        if part := pipeline_of(of_round):
            rounds.append(predictions(part, reads, cold_j, energy.wait_w))
    return with_intervals(changes, rounds, exact=pipeline.exact)


def _verdict(rows: RunsBySource, times: Samples, rounds: Mapping[str, Rounds], *, in_memory: bool) -> Bottleneck:
    """Decide the bottleneck of reading from storage, or of the same configuration with its dataset in memory.

    All of T1 counts as compute, unless all runs with an ideal loader measured their parts. If the page cache was not in
    the configured state, the fetch stall is larger than measured: only a verdict that names it remains valid. In memory
    there is none, but if warm runs were not warm, part of their prep stall is fetch stall.
    """
    is_divided = FROM_CACHE in rows
    differences = {PREP_STALL: PREPROCESSED} if in_memory else {PREP_STALL: PREPROCESSED, FETCH_STALL: FETCH}
    differences = differences if is_divided else {DATA_STALL: STALLED}
    neglected_s = MIN_FRACTION * statistics.fmean(times[FROM_STORAGE])
    stalls = [contrast(weights, times, rounds) for weights in differences.values()]
    if any(stall.value < -neglected_s and (stall.high is None or stall.high < 0) for stall in stalls):
        return Bottleneck((), {}, why="disturbed")
    parts_of_device = (
        (COMPUTE, OVERHEAD) if data_source.is_script(rows[SYNTHETIC][0].job) else (COMPUTE, COPY, OVERHEAD)
    )
    device = {part: Configuration(rows[SYNTHETIC]).values(f"steady/{part}_s") for part in parts_of_device}
    on_device = device if all(device.values()) else {COMPUTE: times[SYNTHETIC]}
    parts: dict[str, Seconds] = {part: {SYNTHETIC: seconds} for part, seconds in on_device.items()}
    for part, weights in differences.items():
        parts[part] = {name: [weight * seconds for seconds in times[name]] for name, weight in weights.items()}
    e2e_s = statistics.fmean(times[FROM_CACHE if in_memory and is_divided else FROM_STORAGE])
    bottleneck = decide(parts, e2e_s, rounds) or Bottleneck((), {}, why="unmeasured")
    if not is_divided:
        return bottleneck
    was_warm, was_cold = (data_source.kept_state(rows, name) for name in (FROM_CACHE, FROM_STORAGE))
    if in_memory:
        is_valid = was_warm or PREP_STALL not in bottleneck.parts or not _reads_files(rows)
    else:
        is_valid = (was_warm and was_cold) or bottleneck.parts == (FETCH_STALL,)
    return bottleneck if is_valid else Bottleneck((), {}, why="not cold" if was_warm else "not warm")


def _reads_files(rows: RunsBySource) -> bool:
    return rows[FROM_STORAGE][0].medium not in IN_MEMORY


def _best_change(changes: Sequence[Change], epoch_s: float) -> Change | None:
    """Return the first and smallest of the changes that help most; more workers by their time on saturated storage."""
    least_s = min((change.worst_s for change in changes), default=epoch_s)
    if least_s > (1 - MIN_EFFECT) * epoch_s:
        return None
    return next(change for change in changes if change.worst_s <= (1 + MIN_EFFECT) * least_s)


def _energy(rows: RunsBySource, times: Samples, rounds: Mapping[str, Rounds]) -> StallEnergy:
    """Return the energy of the stalls; without it, the reason: a run has none, or they cover different parts."""
    every = [run for runs in rows.values() for run in runs]
    if missing := no_energy([Configuration(every)], "steady/energy_j"):
        return StallEnergy(missing=missing)
    joules = {name: [run.metrics["steady/energy_j"] for run in runs] for name, runs in rows.items()}
    e1, e2 = (statistics.fmean(joules[name]) for name in (SYNTHETIC, FROM_STORAGE))
    t1, t2 = (statistics.fmean(times[name]) for name in (SYNTHETIC, FROM_STORAGE))
    idle = [run.metrics["total/idle_power_w"] for run in every if "total/idle_power_w" in run.metrics]
    wait_w = statistics.fmean(idle) if idle else None
    domains = {domain for run in every for domain in run.energy_domains}
    if domains and all(domain.startswith("gpu") for domain in domains):
        wait_w = stall_power(e1, e2, t1, t2, wait_w)  # GPUs do not preprocess
    data_stall = contrast(STALLED, joules, rounds)
    if FROM_CACHE not in rows:
        return StallEnergy(
            covers=every[0].energy_covers,
            epochs_j={SYNTHETIC: e1, FROM_STORAGE: e2},
            data_stall=data_stall,
            wait_w=wait_w,
        )
    e3, t3 = statistics.fmean(joules[FROM_CACHE]), statistics.fmean(times[FROM_CACHE])
    return StallEnergy(
        covers=every[0].energy_covers,
        epochs_j={SYNTHETIC: e1, FROM_CACHE: e3, FROM_STORAGE: e2},
        data_stall=data_stall,
        preprocessing=contrast(PREPROCESSED, joules, rounds),
        fetch=contrast(FETCH, joules, rounds),
        wait_w=stall_power(e3, e2, t3, t2, wait_w),
    )
