"""Carbon footprint and cost of measured energy, never of rated power.

Grams of CO2e are kWh x PUE x carbon intensity, and the cost is kWh x PUE x price. If the intensity is given by hour, a
window's energy is divided between its hours in proportion to time. Estimated energy has neither carbon nor cost.

`carbon_intensity.csv` has greenhouse gas per unit of generated electricity, the yearly mean of 207 countries in 2022 or
2023. Source: Our World in Data (CC BY 4.0) after Ember and the Energy Institute, as in codecarbon 3.3.2.
"""

import csv
import math
import os
import statistics
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path

from epochmeter.config.schema import Footprint, Job
from epochmeter.results.run_info import RunInfo
from epochmeter.results.summary import Window, summarize, training_windows, windows_to_target
from epochmeter.shared.problem import InputError, input_error

TABLE = Path(__file__).with_name("carbon_intensity.csv")
JOULES_PER_KWH = 3.6e6
HOUR_S = 3600
TIME, GRAMS = "utc", "g_per_kwh"
"""Columns of an hourly file: start of the hour (ISO 8601; UTC if it has no offset), and grams of CO2e per kWh."""
MAX_SUGGESTIONS = 5
MAX_BYTES = 10_000_000  # largest hourly file: 40 years
QUANTITIES = {
    "energy_j": ("co2e_g", "cost"),
    "energy_uncertainty_j": ("co2e_uncertainty_g", "cost_uncertainty"),
    "energy_to_target_j": ("co2e_to_target_g", "cost_to_target"),
}
"""Energy in `total/` -> its carbon and cost."""
INTENSITIES = ("intensity_g_per_kwh", "intensity_min_g_per_kwh", "intensity_max_g_per_kwh")
METRICS = {*INTENSITIES, *(name for names in QUANTITIES.values() for name in names)}


def check_footprint(footprint: Footprint) -> None:
    """Refuse an unknown country, a file that is not valid, and a price without currency; raises InputError."""
    if footprint.price is not None and footprint.currency is None:
        raise input_error(f"`footprint.price={footprint.price:g}` has no currency", "add it: `footprint.currency=EUR`")
    if footprint.intensity is not None:
        load_intensity(footprint.intensity)


@lru_cache(maxsize=8)
def load_intensity(value: float | str) -> float | Mapping[int, float]:
    """Return the grams of CO2e per kWh of `footprint.intensity`: a constant, or by hour since 1970 (UTC)."""
    if not isinstance(value, str):
        return value
    countries = country_means()
    if mean := countries.get(value.upper()):
        return mean[2]
    if os.path.isfile(value):
        return _read_hours(value)
    codes = {name.casefold(): code for code, (name, *_) in countries.items()}
    similar = [codes[name] for name in get_close_matches(value.casefold(), codes)][:MAX_SUGGESTIONS]
    guess = "".join(f"`footprint.intensity={code}` ({countries[code][0]}), " for code in similar)
    hint = f"give {guess}a number, a country by its three letters (ISO 3166), or a CSV file"
    raise input_error(f"`footprint.intensity={value}` is neither a country of the table nor a file", hint)


def describe_intensity(value: float | str) -> str:
    """Return the source of an intensity for people."""
    if not isinstance(value, str):
        return f"{value:g} g/kWh"
    mean = country_means().get(value.upper())
    return f"{mean[0]}, mean of {mean[1]}, {mean[2]:g} g/kWh (Our World in Data)" if mean else value


@cache
def country_means() -> Mapping[str, tuple[str, int, float]]:
    """Return for each country code its name, and the year and intensity of its mean."""
    with open(TABLE, newline="", encoding="utf-8") as file:
        return {row["country"]: (row["name"], int(row["year"]), float(row[GRAMS])) for row in csv.DictReader(file)}


def epoch_footprint(window: Window, run: RunInfo, footprint: Footprint) -> dict[str, float]:
    """Return carbon and cost of an epoch by their full names; empty without measured energy."""
    if "epoch/energy_j" not in window["metrics"]:
        return {}
    kwh = window["metrics"]["epoch/energy_j"] * footprint.pue / JOULES_PER_KWH
    values = {} if footprint.price is None else {"epoch/cost": kwh * footprint.price}
    if footprint.intensity is not None:
        with suppress(InputError):  # an hour is missing: a note of the run has the reason
            values["epoch/co2e_g"] = kwh * _mean_intensity([window], run, footprint.intensity)[0]
    return values


def forecast_cost(forecast: Mapping[str, float], footprint: Footprint) -> dict[str, float]:
    """Return the cost of a run's forecast energy, with its 95 % interval; empty without energy or price."""
    if footprint.price is None:
        return {}
    costs = {f"forecast/{energy}": f"forecast/{cost}" for energy, (_, cost) in QUANTITIES.items()}
    per_joule = footprint.price * footprint.pue / JOULES_PER_KWH
    return {cost: forecast[energy] * per_joule for energy, cost in costs.items() if energy in forecast}


def evaluate(windows: Sequence[Window], run: RunInfo, job: Job) -> tuple[dict[str, float], list[str]]:
    """Return all metrics of carbon and cost of a run (also of its epochs) by its `footprint` keys, and why any lack."""
    footprint = job.footprint
    if footprint.price is None and footprint.intensity is None:
        return {}, []
    windows = [
        {**window, "metrics": without_footprint(window["metrics"]) | epoch_footprint(window, run, footprint)}
        for window in training_windows(windows)
    ]
    summary = summarize(windows, array("f"), job)
    metrics = {name: value for name, value in summary.items() if name.partition("/")[2] in METRICS}
    if "total/energy_j" not in summary:
        return metrics, ["no carbon footprint and no cost: the run has no measured total energy"]
    energies_j = {name: summary[f"total/{name}"] for name in QUANTITIES if f"total/{name}" in summary}
    kwh = {name: energy_j * footprint.pue / JOULES_PER_KWH for name, energy_j in energies_j.items()}
    if footprint.price is not None:
        metrics |= {f"total/{QUANTITIES[name][1]}": value * footprint.price for name, value in kwh.items()}
    if footprint.intensity is not None:
        try:
            means = dict.fromkeys(kwh, _mean_intensity(windows, run, footprint.intensity))
            if reaching := windows_to_target(windows, job):
                means["energy_to_target_j"] = _mean_intensity(reaching, run, footprint.intensity)
        except InputError as error:
            return metrics, [f"no carbon footprint: {error.problems[0].message}"]
        metrics |= {f"total/{name}": value for name, value in zip(INTENSITIES, means["energy_j"], strict=True)}
        metrics |= {f"total/{QUANTITIES[name][0]}": value * means[name][0] for name, value in kwh.items()}
    return metrics, []


def without_footprint(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are not of carbon or cost."""
    return {name: value for name, value in metrics.items() if name.partition("/")[2] not in METRICS}


def _mean_intensity(windows: Sequence[Window], run: RunInfo, value: float | str) -> tuple[float, float, float]:
    """Return the mean intensity by energy, the lowest and the highest; raises InputError if the file lacks an hour."""
    intensity, joules = load_intensity(value), dict[float, float]()
    if not isinstance(intensity, Mapping):
        return intensity, intensity, intensity
    for window in windows:
        clock, energy = run.clock_of(window["epoch"]), window["energy"]
        # Of a window in which the machine was suspended, the energy counts as used after that.
        begin_s, end_s = (clock.unix_s(energy[at], window.get("suspended_s", 0.0)) for at in ("opened_ns", "closed_ns"))
        for hour in range(int(begin_s // HOUR_S), math.ceil(end_s / HOUR_S)):
            if (grams := intensity.get(hour)) is None:
                missing = datetime.fromtimestamp(hour * HOUR_S, timezone.utc)
                raise input_error(f"`{value}` has no hour {missing:%Y-%m-%dT%H:%MZ}", "give a file with all hours")
            fraction = (min(end_s, (hour + 1) * HOUR_S) - max(begin_s, hour * HOUR_S)) / (end_s - begin_s)
            joules[grams] = joules.get(grams, 0.0) + fraction * energy["term"]["energy_j"]
    weighted, total_j = math.fsum(grams * energy_j for grams, energy_j in joules.items()), math.fsum(joules.values())
    return weighted / total_j if total_j else statistics.fmean(joules), min(joules), max(joules)


def _read_hours(path: str) -> Mapping[int, float]:
    """Return the intensity by hour since 1970 of a file; raises InputError."""
    hours: dict[int, float] = {}
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
        with open(path, newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file, restval=""):
                at, grams = datetime.fromisoformat(row[TIME].strip().replace("Z", "+00:00")), float(row[GRAMS])
                hour, rest_s = divmod(at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp(), HOUR_S)
                if rest_s or hour in hours or not 0 <= grams < math.inf:
                    raise ValueError(f"`{row[TIME]},{row[GRAMS]}` is not a full hour, is repeated, or is below 0")
                hours[int(hour)] = grams
        if not hours:
            raise ValueError("it has no hours")
    except (OSError, ValueError, KeyError, csv.Error) as error:
        why = f"it has no column {error}" if isinstance(error, KeyError) else str(error)
        hint = f"give the columns {TIME},{GRAMS} and one line per hour, such as 2026-11-23T07:00Z,56.2"
        raise input_error(f"`footprint.intensity={path}` cannot be used: {why}", hint) from error
    return hours
