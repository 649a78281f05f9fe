"""What if: how fast an epoch would be with more loader processes, a faster storage, or more of the dataset in memory.

After J. Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, PVLDB 14(5), 2021: an epoch's speed is the
least of the rates at which samples are fetched, preprocessed and ingested.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trainmeter.report.estimates import MATTERS, Samples
from trainmeter.report.points import Point
from trainmeter.report.rows import Row
from trainmeter.report.supplies import CONDITIONS, FROM_CACHE, FROM_STORAGE, mean


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
    """C: from the page cache; None (taken as without limit) where the loader did not time its reads apart."""
    workers: int
    """Of each rank."""
    cores: int | None
    """Of a host."""
    ranks: int = 1
    """On a host."""
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


def rates_of(rows: Mapping[str, Sequence[Row]], times: Samples) -> Rates:
    t1, t3, t2 = (statistics.fmean(times[name]) for name in CONDITIONS)
    samples = mean(rows[FROM_STORAGE], "samples") or 0.0
    point = Point(rows[FROM_STORAGE])
    workers, cached = point.job["workers"], rows[FROM_CACHE]
    # Where decoding is not told apart, it lies in the time of reading, which is none of the page cache's then.
    read_s = None if mean(cached, "loader_decode_s") is None else mean(cached, "loader_read_s")
    matters = MATTERS * t2
    return Rates(
        samples=samples,
        ingestion=samples / t1,
        # Without loader processes the times add up, and each rate is that of its own share.
        preprocessing=samples / t3 if workers else _rate(samples, t3 - t1),
        storage=_storage_rate(rows, samples, t3, t2),
        cache=samples * max(1, workers) * point.processes / read_s if read_s else None,
        workers=workers,
        cores=rows[FROM_STORAGE][0].cores,
        ranks=point.ranks,
        preprocessing_at_least=t3 - t1 <= matters,
        storage_at_least=t2 - t3 <= matters,
    )


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


def _storage_rate(rows: Mapping[str, Sequence[Row]], samples: float, t3: float, t2: float) -> float:
    job = rows[FROM_STORAGE][0].job
    if job["dataset"]["layout"] != "files":
        return math.inf
    return samples / t2 if job["workers"] else _rate(samples, t2 - t3)


def _rate(samples: float, seconds: float) -> float:
    return samples / seconds if seconds > 0 else math.inf


def _scale(rates: Rates, workers: int | None) -> float:
    """By how much P grows with so many processes a rank: one a core works at a time, whatever their number."""
    if workers is None:
        return 1.0
    asked, used = workers * rates.ranks, max(1, rates.workers) * rates.ranks
    cores = rates.cores or max(asked, used)
    return min(asked, cores) / min(used, cores)


def _workers(rates: Rates) -> list[int]:
    """Numbers of processes a rank to ask about: doubled from one, up to the cores, and what was used."""
    most = max(1, rates.cores // rates.ranks) if rates.cores else 2 * max(1, rates.workers)
    counts, count = {most, rates.workers}, 1
    while count < most:
        counts.add(count)
        count *= 2
    return sorted(count for count in counts if count > 0)
