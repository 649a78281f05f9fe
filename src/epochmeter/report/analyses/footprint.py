"""Carbon footprint and cost of all runs that a sweep made; those of each run are in the table of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from epochmeter.report.runs.footprint import footprint_of
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import Estimate
from epochmeter.results.footprint import describe_intensity


@dataclass(frozen=True)
class SweepFootprint:
    """Sums over the runs that a sweep made, failed ones included; their intervals are the uncertainty of the energy.

    Attributes:
        cost: None also if the runs have prices in several currencies.
        by_hour_g: CO2e of the same energy at the lowest and at the highest intensity of the hours of each run.
        missing: Why runs are not in the sums -> their numbers.
        covers: The parts of the machines that the energies include.
    """

    numbers: Sequence[int]
    energy_j: Estimate | None
    co2e_g: Estimate | None
    cost: Estimate | None
    currency: str | None
    by_hour_g: tuple[float, float] | None
    missing: Mapping[str, Sequence[int]]
    sources: Sequence[str]
    pues: Sequence[float]
    covers: Sequence[str]


def analyze(runs: Sequence[Run]) -> SweepFootprint | None:
    """Add the footprints of all runs of a sweep; None if no run was configured with an intensity or a price."""
    configured = {run: footprint_of(run) for run in runs if _is_configured(run)}
    if not configured:
        return None
    missing: dict[str, list[int]] = {}
    for run, own in configured.items():
        missing.setdefault(_missing_reason(run, own.intensity is not None), []).append(run.number)
    numbers = missing.pop("", [])
    counted = [run for run in configured if run.number in numbers]
    currencies = {configured[run].currency for run in counted}
    low_g, high_g = (_carbon_at(counted, f"total/intensity_{end}_g_per_kwh") for end in ("min", "max"))
    return SweepFootprint(
        numbers,
        energy_j=_sum(counted, "energy_j", "energy_uncertainty_j"),
        co2e_g=_sum(counted, "co2e_g", "co2e_uncertainty_g"),
        cost=_sum(counted, "cost", "cost_uncertainty") if len(currencies) == 1 else None,
        currency=currencies.pop() if len(currencies) == 1 else None,
        by_hour_g=(low_g, high_g) if low_g < high_g else None,
        missing=missing,
        sources=sorted({describe_intensity(own.intensity) for own in configured.values() if own.intensity is not None}),
        pues=sorted({own.pue for own in configured.values()}),
        covers=sorted({str(run.energy_covers) for run in counted}),
    )


def _is_configured(run: Run) -> bool:
    keys = run.job.get("footprint") or {}
    return keys.get("intensity") is not None or keys.get("price") is not None


def _missing_reason(run: Run, has_intensity: bool) -> str:
    """Return why a run is not in the sums; empty if it is."""
    if run.reused:
        return "measured by another sweep"
    if "total/energy_j" not in run.metrics:
        return (run.no_energy or "the energy of a window is not known").rstrip(".")
    return "no intensity for the hours of the run" if has_intensity and "total/co2e_g" not in run.metrics else ""


def _sum(runs: Sequence[Run], name: str, uncertainty: str) -> Estimate | None:
    """Return a sum over runs; uncertainties are added too, as a meter may always err in the same direction."""
    values, bounds = ([run.metrics.get(f"total/{part}") for run in runs] for part in (name, uncertainty))
    if not values or None in values:
        return None
    value = math.fsum(filter(None, values))
    bound = None if None in bounds else math.fsum(filter(None, bounds))
    return Estimate(value) if bound is None else Estimate(value, value - bound, value + bound)


def _carbon_at(runs: Sequence[Run], intensity: str) -> float:
    """Return the CO2e of the energy of all runs at one of their intensities, in grams."""
    metrics = [run.metrics for run in runs if run.metrics.get("total/intensity_g_per_kwh")]
    return math.fsum(own["total/co2e_g"] * own[intensity] / own["total/intensity_g_per_kwh"] for own in metrics)
