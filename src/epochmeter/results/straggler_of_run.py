"""The straggler of a run, from its record: the steps of all ranks, where these are, and the clocks of their devices."""

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any

import numpy as np

from epochmeter.machine.gpus import matches_uuid
from epochmeter.results.documents import StragglerFields
from epochmeter.results.rank_times import rows_of_ranks
from epochmeter.results.run_info import RankPlace, RunInfo
from epochmeter.results.stragglers import (
    MIN_STEPS,
    NO_STRAGGLER,
    TOO_FEW_STEPS,
    Straggler,
    find_straggler,
    lower_clock,
    straggler_document,
    straggler_metrics,
)
from epochmeter.results.summary import is_averaged
from epochmeter.shared.record import GAUGES, Record, rank_row_count
from epochmeter.shared.record_files import open_file


def rows_of_run(record: Record, windows: Sequence[Mapping[str, Any]], warmup_epochs: int) -> np.ndarray | None:
    """Return the steps of the epochs behind a run's means, with the axes rank, step, interval; None without any.

    Epochs without all ranks are left out.
    """
    found, since = [], 0
    most = max((len(window.get("of_ranks") or ()) for window in windows), default=0)
    for window in windows:
        count, ranks = rank_row_count([window]), len(window.get("of_ranks") or ())
        if count and ranks == most and is_averaged(window, warmup_epochs):
            found.append(rows_of_ranks(record.rank_rows(since, count), ranks, window["rank_steps"]))
        since += count
    known = [rows for rows in found if rows is not None]
    return np.concatenate(known, axis=1) if known else None


def straggler_of(
    record: Record, windows: Sequence[Mapping[str, Any]], run: RunInfo, warmup_epochs: int
) -> tuple[StragglerFields | None, dict[str, float], str]:
    """Return the straggler of a run, its metrics, and why there is none; the reason is empty for a single rank."""
    if not any(len(window.get("of_ranks") or ()) > 1 for window in windows):
        return None, {}, ""
    rows = rows_of_run(record, windows, warmup_epochs)
    if rows is None or rows.shape[1] < MIN_STEPS:
        return None, {}, TOO_FEW_STEPS
    straggler = find_straggler(rows)
    if straggler is None:
        return None, {}, NO_STRAGGLER
    numbers = _numbers(windows, rows.shape[0])
    known = {place.get("rank"): place for place in run.training.get("places") or []}
    places = [known.get(number, RankPlace(rank=number)) for number in numbers]
    document = straggler_document(straggler, rows.shape[0], places[straggler.rank])
    if any("gpu" in place for place in places):
        document |= _lower_clock(record, places, straggler, rows)
    return document, straggler_metrics(straggler), ""


def _numbers(windows: Sequence[Mapping[str, Any]], ranks: int) -> list[int]:
    """Return the numbers of the ranks in the order of their rows."""
    lines: Sequence[Mapping[str, Any]] = next(
        window["of_ranks"] for window in windows if len(window.get("of_ranks") or ()) == ranks
    )
    return [int(line["rank"]) for line in lines]


def _lower_clock(
    record: Record, places: Sequence[RankPlace], straggler: Straggler, rows: np.ndarray
) -> StragglerFields:
    """Return by how much the clock of a straggler's GPU is lower than the others', if that is why; only of one host."""
    names = gauge_names(places, record.host().get("gpus") or [])
    series = device_means(record, names) if any(names) else {}
    lower = lower_clock([series.get(f"{name}_clock_hz") for name in names], straggler, rows)
    if lower is None:
        return {}
    temperature_c = series.get(f"{names[straggler.rank]}_temperature_c")
    fields: StragglerFields = {"lower_clock": lower}
    return fields if temperature_c is None else {**fields, "temperature_c": temperature_c}


def gauge_names(places: Sequence[RankPlace], gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each rank's GPU in the columns of `gauges.csv`, which has those of the first host."""
    host, names = places[0].get("host"), []
    for place in places:
        uuid = place.get("gpu", "") if place.get("host") == host else ""
        numbers = (number for number, gpu in enumerate(gpus) if gpu.get("uuid") and matches_uuid(uuid, gpu["uuid"]))
        number = next(numbers, None) if uuid else None
        names.append("" if number is None else f"gpu{number}")
    return names


def device_means(record: Record, names: Sequence[str]) -> dict[str, float]:
    """Return the mean clock, and the mean temperature, of each device over the samples of a run, by column."""
    columns = {f"{name}_{quantity}" for name in names if name for quantity in ("clock_hz", "temperature_c")}
    values: dict[str, list[float]] = {column: [] for column in columns}
    with suppress(OSError, ValueError), open_file(record.folder / GAUGES, max_bytes=None) as file:
        for row in csv.DictReader(line.decode("utf-8") for line in file):
            for column in columns & row.keys():
                if row[column]:
                    values[column].append(float(row[column]))
    return {column: fmean(of_column) for column, of_column in values.items() if of_column}
