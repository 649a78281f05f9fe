"""Carbon footprint and cost of all runs that a sweep made, also with other intensities and prices than configured."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from epochmeter.config.schema import Footprint, Job
from epochmeter.report.runs.run import Run, grouped
from epochmeter.report.statistics import Estimate
from epochmeter.results.footprint import check_footprint, describe_intensity, evaluate, without_footprint
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.run_status import KILLED, RUNNING
from epochmeter.shared.problem import InputError


@dataclass(frozen=True)
class SweepFootprint:
    """Sums over the runs that a sweep made, failed ones included; their intervals are the uncertainty of the energy.

    Attributes:
        cost: None also if the runs have prices in several currencies.
        by_hour_g: CO2e of the same energy at the lowest and at the highest intensity of the hours of each run.
        missing: Why runs are not in the sums -> their numbers. The reason is a key of `reasons` in footprint.md.j2, or
            that of the record.
        covers: The parts of the machines that the energies include.
    """

    numbers: Sequence[int]
    energy_j: Estimate | None
    co2e_g: Estimate | None
    cost: Estimate | None
    currencies: Sequence[str]
    by_hour_g: tuple[float, float] | None
    missing: Mapping[str, Sequence[int]]
    sources: Sequence[str]
    pues: Sequence[float]
    covers: Sequence[str]


def analyze(runs: Sequence[Run]) -> SweepFootprint | None:
    """Add the footprints of all runs of a sweep; None if no run was configured with an intensity or a price."""
    keys = [run.job.get("footprint") or {} for run in runs]
    intensities = {of_run["intensity"] for of_run in keys if of_run.get("intensity") is not None}
    currencies = sorted({of_run["currency"] for of_run in keys if of_run.get("price") is not None})
    quantities = [*(["co2e_g"] if intensities else []), *(["cost"] if currencies else [])]
    if not quantities:
        return None
    by_reason = grouped(runs, lambda run: _missing_reason(run, quantities))
    counted = by_reason.pop("", [])
    low_g, high_g = (_carbon_at(counted, f"total/intensity_{end}_g_per_kwh") for end in ("min", "max"))
    return SweepFootprint(
        [run.number for run in counted],
        energy_j=_sum(counted, "energy_j", "energy_uncertainty_j"),
        co2e_g=_sum(counted, "co2e_g", "co2e_uncertainty_g"),
        cost=_sum(counted, "cost", "cost_uncertainty") if len(currencies) == 1 else None,
        currencies=currencies,
        by_hour_g=(low_g, high_g) if low_g < high_g else None,
        missing={reason: [run.number for run in missing] for reason, missing in by_reason.items()},
        sources=sorted(map(describe_intensity, intensities)),
        pues=sorted({run.job["footprint"]["pue"] for run in counted}),
        covers=sorted({str(run.energy_covers) for run in counted}),
    )


def with_footprint(run: Run, given: Mapping[str, Any]) -> Run:
    """Return a run with the carbon and cost of the given `footprint` keys; InputError if a value is not valid."""
    footprint = Footprint.from_dict({**run.job.get("footprint", {}), **given})
    metrics = without_footprint(run.metrics)
    try:
        check_footprint(footprint)
    except InputError:
        check_footprint(Footprint.from_dict(given))
        return replace(run, metrics=metrics)  # only a value of the record is not valid
    with suppress(*READ_ERRORS):  # of a damaged record: the run has no footprint
        run_folder = RunFolder(run.record.folder)
        job = replace(Job.from_dict(run_folder.job), footprint=footprint)
        metrics |= evaluate(run_folder.all_windows, run_folder.run, job)[0]
    return replace(run, metrics=metrics, job={**run.job, "footprint": footprint.to_dict()})


def _missing_reason(run: Run, quantities: Sequence[str]) -> str:
    """Return why a run is not in the sums; empty if it is."""
    if run.reused:
        return "reused"
    if run.state == RUNNING or (run.state == KILLED and not run.metrics):
        return "no_end"
    if "total/energy_j" not in run.metrics:
        return (run.no_energy or "no_energy").rstrip(".")
    return next((name for name in quantities if f"total/{name}" not in run.metrics), "")


def _sum(runs: Sequence[Run], name: str, uncertainty: str) -> Estimate | None:
    """Return a sum over runs; uncertainties are added too, as a meter may always err in the same direction."""
    values, bounds = ([run.metrics.get(f"total/{metric}", math.nan) for run in runs] for metric in (name, uncertainty))
    value, bound = math.fsum(values), math.fsum(bounds)
    if not values or math.isnan(value):
        return None
    return Estimate(value) if math.isnan(bound) else Estimate(value, value - bound, value + bound)


def _carbon_at(runs: Sequence[Run], intensity: str) -> float:
    """Return the CO2e of the energy of all runs at one of their intensities, in grams."""
    metrics = [run.metrics for run in runs if run.metrics.get("total/intensity_g_per_kwh")]
    return math.fsum(
        of_run["total/co2e_g"] * of_run[intensity] / of_run["total/intensity_g_per_kwh"] for of_run in metrics
    )
