"""Where stalls come from, by difference: the same job on ready tensors, from the page cache, and from the storage.

After J. Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, PVLDB 14(5), 2021. With T1, T3 and T2 the
epoch's time on tensors, warm and cold, the preprocessing stall is T3 - T1 and the fetch stall T2 - T3. The run is the
unit of the statistics, as epochs within a run are not independent: repeats give the spread, and Welch's method the
95 % intervals. Estimates are never clipped: a negative one is noise, and shown as such.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainmeter.report.estimates import Estimate, Samples, contrast, half_width
from trainmeter.report.rows import Row

MATTERS = 0.02
"""Share of the cold epoch's time from which on a stall matters."""
WARM, COLD = 0.98, 0.02
"""Cached share before an epoch: a warm run's is at least the first, a cold run's at most the second."""
DISTURBED = (
    "a stall comes out far below zero, which none can be: something else disturbed some of the runs; measure them "
    "again with sweep.again=true"
)
MOST_REPEATS = 100
"""More are not worth counting."""
TENSORS, FROM_CACHE, FROM_STORAGE = "tensors", "warm", "cold"
CONDITIONS = (TENSORS, FROM_CACHE, FROM_STORAGE)
SET_BY_SUPPLY = ("ready_batches", "cache", "drop_caches", "repeat", "tracking", "sweep", "machine", "save_model")
"""Keys of a job in which runs of one analysis may differ."""
STORAGE, PREPROCESSING, COMPUTE, UNDECIDED = "storage-bound", "preprocessing-bound", "compute-bound", "undecided"


@dataclass(frozen=True)
class Verdict:
    """What bounds the speed; if that is undecided, why, and how many repeats of each condition would do about."""

    bound: str
    why: str | None = None
    repeats: int | None = None
    """None where no number of repeats within reason would do, or none is needed."""


@dataclass(frozen=True)
class Agreement:
    """Three definitions of the stall, seconds of an epoch; absent where a run did not tell."""

    measured_s: float | None
    """Device idle that waiting for data explains: preprocessing is in it, where it is not hidden."""
    model_s: float | None
    differential_s: float
    """T2 - T1 cold, T3 - T1 warm."""


@dataclass(frozen=True)
class Rates:
    """The what-if model's rates, samples a second; an epoch's speed is the least of F, P and G."""

    samples: float
    """D: of an epoch."""
    ingestion: float
    """G: on ready tensors."""
    preprocessing: float
    """P: of the workers used, all in the page cache."""
    storage: float
    """S: from the storage."""
    cache: float | None
    """C: from the page cache; None (taken as without limit) where the loader did not time its reads."""
    workers: int
    cores: int | None
    preprocessing_at_least: bool = False
    """Whether P is a lower bound only, as something else bounded the warm runs."""
    storage_at_least: bool = False


@dataclass(frozen=True)
class Prediction:
    """What an epoch would take."""

    question: str
    choice: str
    epoch_s: float
    bound: str | None = None
    """`at most` where a rate that holds it up is a lower bound only; `at least` where storage may not keep up."""
    energy_j: float | None = None


@dataclass(frozen=True)
class Energy:
    """Joules of an epoch and of the stalls; without any, the reason."""

    covers: str | None = None
    reason: str | None = None
    tensors_j: float | None = None
    warm_j: float | None = None
    cold_j: float | None = None
    preprocessing: Estimate | None = None
    fetch: Estimate | None = None
    stall_w: float | None = None
    """Power while stalled; None where the stall is too short to tell and idle power is not known."""


@dataclass(frozen=True)
class Analysis:
    """All that one job's runs under the three conditions tell."""

    title: str
    keys: Mapping[str, Any]
    numbers: Mapping[str, Sequence[int]]
    """Condition -> numbers of its runs."""
    times_s: Mapping[str, Estimate]
    """T1, T3, T2 by condition."""
    preprocessing: Estimate
    fetch: Estimate
    verdict: Verdict
    in_memory: Verdict
    conditions: list[str]
    """What the verdict depends on: empty where all runs were as asked."""
    in_memory_conditions: list[str]
    notes: list[str]
    lives_in_memory: bool
    cold: Agreement
    warm: Agreement
    energy: Energy
    rates: Rates
    predictions: list[Prediction]
    full_cache_share: float | None
    """x*: share of the dataset in memory from which on no fetch stall is left; None where storage plays no part."""


@dataclass(frozen=True)
class Incomplete:
    """A job that some of the three conditions were run for, and those that were not."""

    title: str
    missing: list[str]
    numbers: Mapping[str, Sequence[int]] = field(default_factory=dict)


def condition(job: Mapping[str, Any]) -> str | None:
    """Which of the three a job is, None if it is none of them."""
    if job.get("ready_batches"):
        return TENSORS
    return {"warm": FROM_CACHE, "cold_each_epoch": FROM_STORAGE}.get(job["cache"])


def analyses(rows: Sequence[Row]) -> list[Analysis | Incomplete]:
    """One for each host and job that ran under two of the conditions or more; rows are results, none left out."""
    groups: dict[tuple[str | None, str], dict[str, list[Row]]] = {}
    for row in rows:
        name = condition(row.job)
        if name:
            groups.setdefault((row.host, _same(row.job)), {}).setdefault(name, []).append(row)
    groups = {key: group for key, group in groups.items() if len(group) > 1}
    titles = _titles([_first(group) for group in groups.values()])
    return [_told(title, group) for title, group in zip(titles, groups.values(), strict=True)]


def verdict(samples: Samples) -> Verdict:
    """What bounds a job on its storage: T1, T3 and T2 of its runs."""
    matters = MATTERS * statistics.fmean(samples[FROM_STORAGE])
    if _impossible(FETCH, matters, samples) or _impossible(PREPROCESSED, matters, samples):
        return Verdict(UNDECIDED, DISTURBED)
    fetch = _weighs(FETCH, matters, samples)
    preprocessing = _weighs(PREPROCESSED, matters, samples)
    more_fetch = _weighs(MORE_FETCH, 0.0, samples)
    if fetch is False and preprocessing is False:
        return Verdict(COMPUTE)
    # What surely matters and is surely the larger decides, whatever is not known of the other.
    if fetch and (preprocessing is False or more_fetch):
        return Verdict(STORAGE)
    if preprocessing and (fetch is False or more_fetch is False):
        return Verdict(PREPROCESSING)
    if fetch or preprocessing:
        return _undecided("storage and preprocessing weigh too much alike", MORE_FETCH, 0.0, samples)
    if fetch is None:
        return _undecided("fetch stall may matter or not", FETCH, matters, samples)
    return _undecided("preprocessing may matter or not", PREPROCESSED, matters, samples)


def verdict_in_memory(samples: Samples) -> Verdict:
    """What bounds the same job with its dataset in memory."""
    matters = MATTERS * statistics.fmean(samples[FROM_CACHE])
    if _impossible(PREPROCESSED, matters, samples):
        return Verdict(UNDECIDED, DISTURBED)
    preprocessing = _weighs(PREPROCESSED, matters, samples)
    if preprocessing is None:
        return _undecided("preprocessing may matter or not", PREPROCESSED, matters, samples)
    return Verdict(PREPROCESSING if preprocessing else COMPUTE)


PREPROCESSED = {FROM_CACHE: 1.0, TENSORS: -1.0}
FETCH = {FROM_STORAGE: 1.0, FROM_CACHE: -1.0}
STALLED = {FROM_STORAGE: 1.0, TENSORS: -1.0}
MORE_FETCH = {FROM_STORAGE: 1.0, FROM_CACHE: -2.0, TENSORS: 1.0}
"""By how much the fetch stall is more than the preprocessing stall."""


def fetch_rate(rates: Rates, cached: float = 0.0, faster: float = 1.0) -> float:
    """F = D / T_f with T_f = D x / C + D (1 - x) / S, for a share x in memory and a storage so many times as fast."""
    seconds = (1 - cached) / (rates.storage * faster)
    if rates.cache:
        seconds += cached / rates.cache
    return 1 / seconds if seconds else math.inf


def speed(rates: Rates, cached: float = 0.0, faster: float = 1.0, workers: int | None = None) -> float:
    """Samples a second: min(F, P, G); P grows with the loader's processes as far as the host's cores go.

    Without any (workers=0) nothing overlaps: then the times add up.
    """
    fetched = fetch_rate(rates, cached, faster)
    if rates.workers == 0 and not workers:
        return 1 / (1 / fetched + 1 / rates.preprocessing + 1 / rates.ingestion)
    preprocessed = rates.preprocessing * _scale(rates, workers)
    return min(fetched, preprocessed, rates.ingestion)


def share_without_stall(rates: Rates) -> float:
    """x*: the share in memory from which on storage holds up nothing, memory being much faster."""
    if rates.workers == 0:
        return 1.0
    return max(0.0, 1 - rates.storage / min(rates.preprocessing, rates.ingestion))


def predictions(rates: Rates, energy: Callable[[float], float | None], storage: bool = True) -> list[Prediction]:
    """Answers to what would help: loader processes, a faster storage, more of the dataset in memory."""

    def answer(question: str, choice: str, found: float, bound: str | None) -> Prediction:
        seconds = rates.samples / found
        return Prediction(question, choice, seconds, bound, energy(seconds))

    told = []
    # What bounded nothing is known as a lower bound only: it is asked whether it would bound now.
    unknown = storage and rates.storage_at_least
    unheld = replace(rates, storage=math.inf) if rates.storage_at_least else rates
    for workers in _workers(rates):
        found = speed(unheld, workers=workers)
        fewer = _scale(rates, workers) < 1 and found < rates.ingestion
        # S is what so many processes got by reading at a time; more of them may get more from the same storage.
        held = storage and workers > rates.workers and found < speed(replace(rates, storage=math.inf), workers=workers)
        beyond = unknown and found > rates.storage
        most = held or (rates.preprocessing_at_least and fewer)
        told.append(answer("workers", str(workers), found, "at least" if beyond else "at most" if most else None))
    if storage:
        ways = [("storage", f"{faster:g} times as fast", 0.0, faster) for faster in (2.0, 10.0)]
        ways += [("in memory", f"{100 * cached:.0f} %", cached, 1.0) for cached in (0.25, 0.5, 0.75, 1.0)]
        for question, choice, cached, faster in ways:
            found = speed(rates, cached, faster)
            held = unknown and cached < 1 and found < speed(unheld, cached, faster)
            told.append(answer(question, choice, found, "at most" if held else None))
    return told


def energy_of(rows: Mapping[str, Sequence[Row]], times: Samples) -> Energy:
    """Measured joules of the stalls; absent, with the reason, where any run has none or they cover different things."""
    every = [row for group in rows.values() for row in group]
    unmeasured = [row for row in every if row.steady("energy_j") is None]
    if unmeasured:
        return Energy(reason=f"{len(unmeasured)} of {len(every)} runs measured none: {unmeasured[0].no_energy}")
    covers = {str(row.energy_covers) for row in every}
    if len(covers) > 1:
        return Energy(reason=f"it covers different things: {', '.join(sorted(covers))}")
    joules = {name: [row.metrics["steady/energy_j"] for row in group] for name, group in rows.items()}
    e1, e3, e2 = (statistics.fmean(joules[name]) for name in CONDITIONS)
    t1, t2 = (statistics.fmean(times[name]) for name in (TENSORS, FROM_STORAGE))
    idle = [row.metrics["total/idle_power_w"] for row in every if "total/idle_power_w" in row.metrics]
    return Energy(
        covers=covers.pop(),
        tensors_j=e1,
        warm_j=e3,
        cold_j=e2,
        preprocessing=contrast(PREPROCESSED, joules),
        fetch=contrast(FETCH, joules),
        stall_w=stall_power(e1, e2, t1, t2, statistics.fmean(idle) if idle else None),
    )


def stall_power(e1: float, e2: float, t1: float, t2: float, idle_w: float | None) -> float | None:
    """(E2 - E1) / (T2 - T1): watts while stalled; the idle power where the stall is too short to tell them from."""
    if t2 - t1 > MATTERS * t2 and e2 > e1:
        return (e2 - e1) / (t2 - t1)
    return idle_w


def repeats_needed(weights: Mapping[str, float], bound: float, samples: Samples) -> int | None:
    """About how many repeats of each condition tell a contrast from a bound; None for more than is worth it."""
    distance = abs(contrast(weights, samples).value - bound)
    most = max(len(samples[name]) for name in weights)
    for count in range(max(2, most + 1), MOST_REPEATS + 1):
        if half_width(weights, samples, dict.fromkeys(weights, count)) < distance:
            return count
    return None


def _told(title: str, group: Mapping[str, Sequence[Row]]) -> Analysis | Incomplete:
    numbers = {name: [row.number for row in group[name]] for name in CONDITIONS if name in group}
    missing = [name for name in CONDITIONS if name not in group]
    if missing:
        return Incomplete(title, missing, numbers)
    rows = {name: group[name] for name in CONDITIONS}
    times = {name: [row.metrics["steady/e2e_s"] for row in rows[name]] for name in CONDITIONS}
    in_memory = rows[FROM_STORAGE][0].job["dataset"]["layout"] != "files"
    conditions, warm_conditions = ([], []) if in_memory else _as_asked(rows)
    warm_verdict = verdict_in_memory(times)
    bound = warm_verdict if in_memory else _held_to(verdict(times), rows)
    energy = energy_of(rows, times)
    rates = _rates(rows, times)
    e1, t1 = energy.tensors_j, statistics.fmean(times[TENSORS])

    def joules(seconds: float) -> float | None:
        return None if e1 is None or energy.stall_w is None else e1 + energy.stall_w * (seconds - t1)

    return Analysis(
        title=title,
        keys=_naming(rows[FROM_STORAGE][0]),
        numbers=numbers,
        times_s={name: contrast({name: 1.0}, times) for name in CONDITIONS},
        preprocessing=contrast(PREPROCESSED, times),
        fetch=contrast(FETCH, times),
        verdict=bound,
        in_memory=_warm_held_to(warm_verdict, rows) if not in_memory else warm_verdict,
        conditions=conditions,
        in_memory_conditions=warm_conditions,
        notes=_notes(rows, times),
        lives_in_memory=in_memory,
        cold=_agreement(rows[FROM_STORAGE], contrast(STALLED, times).value),
        warm=_agreement(rows[FROM_CACHE], contrast(PREPROCESSED, times).value),
        energy=energy,
        rates=rates,
        predictions=predictions(rates, joules, storage=not in_memory),
        full_cache_share=None if in_memory else share_without_stall(rates),
    )


def _same(job: Mapping[str, Any]) -> str:
    """What the runs of one analysis share: all that was asked, but for what makes the three conditions."""
    return json.dumps({key: value for key, value in job.items() if key not in SET_BY_SUPPLY}, sort_keys=True)


def _first(group: Mapping[str, Sequence[Row]]) -> Row:
    return next(iter(group.values()))[0]


def _naming(row: Row) -> dict[str, Any]:
    job = row.job
    return {
        "model": job["model"]["name"],
        "dataset": job["dataset"]["name"],
        "storage": job["storage"]["name"],
        "device": job["device"]["name"],
        "batch": job["batch"],
        "workers": job["workers"],
    }


def _titles(rows: Sequence[Row]) -> list[str]:
    """How each job is called: model, dataset, batch, workers, and what else tells one from another."""
    known = {"model", "dataset", "batch", "workers", "supply", "experiment", *SET_BY_SUPPLY}
    keys = dict.fromkeys(key for row in rows for key in row.keys if key not in known)
    varied = [key for key in keys if len({row.keys.get(key) for row in rows}) > 1]
    titles, hosts = [], len({row.host for row in rows})
    for row in rows:
        name = _naming(row)
        workers = f"{name['workers']} worker{'' if name['workers'] == 1 else 's'}"
        extra = [f"{key}={row.keys[key]}" for key in varied if key in row.keys]
        extra += [row.host or "unknown host"] if hosts > 1 else []
        titles.append(", ".join([f"{name['model']} on {name['dataset']}", f"batch {name['batch']}", workers, *extra]))
    return titles


def _weighs(weights: Mapping[str, float], bound: float, samples: Samples) -> bool | None:
    """Whether a contrast is above a bound; None where its interval spans it, or, without one, where it is the bound."""
    told = contrast(weights, samples)
    if told.spans(bound) or told.value == bound:
        return None
    return told.value > bound


def _impossible(weights: Mapping[str, float], matters: float, samples: Samples) -> bool:
    """Whether a stall is below zero by more than matters, and not for want of precision."""
    told = contrast(weights, samples)
    return told.value < -matters and (told.high is None or told.high < 0)


def _undecided(why: str, weights: Mapping[str, float], bound: float, samples: Samples) -> Verdict:
    if not _repeated(samples):
        return Verdict(UNDECIDED, why)
    repeats = repeats_needed(weights, bound, samples)
    return Verdict(UNDECIDED, why if repeats else f"{why}; {MOST_REPEATS} repeats of each would not tell", repeats)


def _repeated(samples: Samples) -> bool:
    return all(len(values) > 1 for values in samples.values())


def _shares(rows: Sequence[Row]) -> list[float]:
    return [share for row in rows if (share := row.steady("cached_share_before")) is not None]


def _was_warm(rows: Mapping[str, Sequence[Row]]) -> bool:
    return all(share >= WARM for share in _shares(rows[FROM_CACHE]))


def _was_cold(rows: Mapping[str, Sequence[Row]]) -> bool:
    return all(share <= COLD for share in _shares(rows[FROM_STORAGE]))


def _as_asked(rows: Mapping[str, Sequence[Row]]) -> tuple[list[str], list[str]]:
    """What of the page cache was not as asked or is not known: for the verdict, and for that in memory."""
    told: dict[str, list[str]] = {FROM_CACHE: [], FROM_STORAGE: []}
    wrong: dict[str, Callable[[float], bool]] = {
        FROM_CACHE: lambda share: share < WARM,
        FROM_STORAGE: lambda share: share > COLD,
    }
    for name, is_wrong in wrong.items():
        for row in rows[name]:
            share = row.steady("cached_share_before")
            if share is not None and is_wrong(share):
                told[name].append(f"run {row.number} was to be {name}, and {100 * share:.0f} % was cached")
        unknown = [row.number for row in rows[name] if row.steady("cached_share_before") is None]
        if unknown:
            listed = ", ".join(map(str, unknown))
            told[name].append(f"whether {name} was {name} is not known (run {listed}: no cached share)")
    return told[FROM_CACHE] + told[FROM_STORAGE], told[FROM_CACHE]


def _held_to(found: Verdict, rows: Mapping[str, Sequence[Row]]) -> Verdict:
    """A verdict, as far as the page cache allows for it: where it was not as asked, the fetch stall is too small."""
    if found.bound in (STORAGE, UNDECIDED) or (_was_warm(rows) and _was_cold(rows)):
        return found
    wrong = "warm runs were not warm" if not _was_warm(rows) else "cold runs were not cold"
    return Verdict(UNDECIDED, f"{wrong}, so that fetch stall may be more than it seems")


def _warm_held_to(found: Verdict, rows: Mapping[str, Sequence[Row]]) -> Verdict:
    """The same for the verdict in memory: where warm was not warm, some of its stall is storage's."""
    if found.bound == PREPROCESSING and not _was_warm(rows):
        return Verdict(UNDECIDED, "warm runs were not warm, so that some of their stall may be the storage's")
    return found


def _notes(rows: Mapping[str, Sequence[Row]], times: Samples) -> list[str]:
    notes = []
    if not _repeated(times):
        once = [name for name in CONDITIONS if len(times[name]) < 2]
        notes.append(f"no intervals: {', '.join(once)} ran only once; repeat=0,1,2 gives them")
    for name, weights in {"fetch stall": FETCH, "preprocessing stall": PREPROCESSED}.items():
        told = contrast(weights, times)
        if told.noise:
            notes.append(f"{name} is below zero, which none can be: {_against_noise(told)}")
    samples = {row.steady("samples") for group in rows.values() for row in group}
    if len(samples) > 1:
        notes.append("epochs do not all have the same number of samples: their times compare less well")
    skipped = sum(row.steady("skipped_samples") or 0 for group in rows.values() for row in group)
    if skipped:
        notes.append("bad samples were skipped in some runs")
    return notes


def _against_noise(told: Estimate) -> str:
    if told.low is None or told.spans(0.0):
        return "noise, taken as none"
    return "more than chance; something else changed between the runs"


def _agreement(rows: Sequence[Row], differential_s: float) -> Agreement:
    return Agreement(_mean(rows, "fetch_stall_s"), _mean(rows, "fetch_stall_model_s"), differential_s)


def _mean(rows: Sequence[Row], name: str) -> float | None:
    values = [row.steady(name) for row in rows]
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _rates(rows: Mapping[str, Sequence[Row]], times: Samples) -> Rates:
    t1, t3, t2 = (statistics.fmean(times[name]) for name in CONDITIONS)
    samples = _mean(rows[FROM_STORAGE], "samples") or 0.0
    job = rows[FROM_STORAGE][0].job
    workers, read_s = job["workers"], _mean(rows[FROM_CACHE], "loader_read_s")
    matters = MATTERS * t2
    return Rates(
        samples=samples,
        ingestion=samples / t1,
        # Without loader processes the times add up, and each rate is that of its own share.
        preprocessing=samples / t3 if workers else _rate(samples, t3 - t1),
        storage=_storage_rate(rows, samples, t3, t2),
        cache=samples * max(1, workers) / read_s if read_s else None,
        workers=workers,
        cores=rows[FROM_STORAGE][0].cores,
        preprocessing_at_least=t3 - t1 <= matters,
        storage_at_least=t2 - t3 <= matters,
    )


def _storage_rate(rows: Mapping[str, Sequence[Row]], samples: float, t3: float, t2: float) -> float:
    job = rows[FROM_STORAGE][0].job
    if job["dataset"]["layout"] != "files":
        return math.inf
    return samples / t2 if job["workers"] else _rate(samples, t2 - t3)


def _rate(samples: float, seconds: float) -> float:
    return samples / seconds if seconds > 0 else math.inf


def _scale(rates: Rates, workers: int | None) -> float:
    """By how much P grows with so many processes: one a core works at a time, whatever their number."""
    if workers is None:
        return 1.0
    cores = rates.cores or max(workers, rates.workers)
    return min(workers, cores) / min(max(1, rates.workers), cores)


def _workers(rates: Rates) -> list[int]:
    """Numbers of processes to ask about: doubled from one, up to the cores, and what was used."""
    most = rates.cores or 2 * max(1, rates.workers)
    counts, count = {most, rates.workers}, 1
    while count < most:
        counts.add(count)
        count *= 2
    return sorted(count for count in counts if count > 0)
