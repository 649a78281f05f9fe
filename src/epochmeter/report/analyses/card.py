"""The model card of a run: its emissions, energy and time with their uncertainty, and what is absent with the reason.

The metadata are those that the Hugging Face Hub reads from the YAML at the top of a card (`co2_eq_emissions`).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from epochmeter.report.analyses.footprint import with_footprint
from epochmeter.report.analyses.trace import named_runs
from epochmeter.report.runs.load import load_run
from epochmeter.report.runs.run import Run
from epochmeter.report.statistics import Estimate
from epochmeter.results.documents import Host
from epochmeter.results.footprint import JOULES_PER_KWH, country_means
from epochmeter.results.intervals import half_width
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_info import Training
from epochmeter.results.run_status import COMPLETED
from epochmeter.shared.problem import input_error
from epochmeter.shared.record import Record

DIGITS = 4  # significant digits of the emissions in the metadata


@dataclass(frozen=True)
class Intensity:
    """The carbon intensity of a run: its mean by energy, and where it is from.

    Attributes:
        kind: The mean of a country and a year, a number that was given, or a file by hour.
        name: Of the country, or of the file without its folder.
    """

    g_per_kwh: float
    kind: Literal["country", "given", "hours"]
    name: str = ""
    year: int | None = None


@dataclass(frozen=True)
class Card:
    """What a card states of a run.

    Attributes:
        emissions_g: CO2e of the energy, times PUE; None if it is not known, as the other quantities.
        epoch_s: Mean time of an epoch after the warm-up.
        absent: Name of a quantity -> why it is not known: a key of `reasons` in card.md.j2, or a text of the record.
        covers: The parts of the machine that the energy includes.
        is_from_intensity: Whether the location is the country of the carbon intensity.
    """

    run: Run
    emissions_g: Estimate | None
    energy_j: Estimate | None
    duration_s: float | None
    epoch_s: Estimate | None
    pue: float
    intensity: Intensity | None
    hardware: str
    location: str | None
    is_from_intensity: bool
    training_type: str | None
    absent: Mapping[str, str]

    @property
    def covers(self) -> str | None:
        return self.run.energy_covers

    @property
    def energy_kwh(self) -> float | None:
        return None if self.energy_j is None else self.energy_j.value / JOULES_PER_KWH

    @property
    def measured_g(self) -> float | None:
        """The emissions for the metadata, in grams."""
        return None if self.emissions_g is None else float(f"{self.emissions_g.value:.{DIGITS}g}")

    @property
    def values(self) -> dict[str, Any]:
        """The numbers, as JSON has them."""
        names = ("emissions_g", "energy_j", "epoch_s", "intensity")
        estimates = {name: vars(value) if (value := getattr(self, name)) else None for name in names}
        others = ("duration_s", "pue", "hardware", "location", "training_type", "covers")
        return {**estimates, **{name: getattr(self, name) for name in others}, "absent": dict(self.absent)}


def find_run(name: str | None, multirun: Path) -> Record:
    """Return the one run that a name stands for: its folder, `SWEEP/NUMBER`, or a sweep of one run; ValueError."""
    _, records = named_runs(name, multirun)
    if len(records) == 1:
        return records[0]
    found = ", ".join(f"{record.folder.parent.name}/{record.folder.name}" for record in records[:5])
    if records:
        raise input_error(f"`run={name or ''}` refers to {len(records)} runs", f"give one of them: {found}")
    raise input_error(f"the run `{name or multirun}` is not found", "give the folder of a run: `run=multirun/SWEEP/0`")


def analyze(
    record: Record, footprint: Mapping[str, Any], training_type: str | None = None, location: str | None = None
) -> Card:
    """Return the card of a run, with the given `footprint` keys in place of the recorded ones.

    Raises:
        ValueError: The run was not completed, or a key is not valid.
    """
    run, folder = with_footprint(load_run(record.folder), footprint), RunFolder(record.folder)
    if run.state != COMPLETED:
        raise input_error(
            f"the run {record.folder} is not completed: it is {run.state}", "give a completed run: `run=`"
        )
    metrics, given = run.metrics, run.job.get("footprint") or {}
    absent = _missing_energy(run, folder)
    energy_j = None if absent else _estimate(metrics, "total/energy_j", "total/energy_uncertainty_j")
    if energy_j and energy_j.low is None:
        absent["energy_uncertainty_j"] = "no_uncertainty"
    intensity = given.get("intensity")
    emissions_g = _estimate(metrics, "total/co2e_g", "total/co2e_uncertainty_g") if energy_j else None
    if emissions_g is None:
        without_carbon = "no_intensity" if intensity is None else "no_hours"
        absent["emissions"] = without_carbon if energy_j else "no_energy"
    source = _source_of(intensity, metrics.get("total/intensity_g_per_kwh"))
    country = source.name if source and source.kind == "country" else None
    if training_type is None:
        absent["training_type"] = "not_stated"
    if location is None and country is None:
        absent["geographical_location"] = "no_place"
    return Card(
        run,
        emissions_g,
        energy_j,
        metrics.get("total/e2e_s"),
        _mean_epoch(run),
        given.get("pue") or 1.0,
        source,
        _hardware(folder.run.training, folder.host),
        location or country,
        location is None and country is not None,
        training_type,
        absent,
    )


def _source_of(intensity: float | str | None, g_per_kwh: float | None) -> Intensity | None:
    """Return the source of a run's carbon intensity; None if the run has none."""
    if intensity is None or g_per_kwh is None:
        return None
    if not isinstance(intensity, str):
        return Intensity(g_per_kwh, "given")
    if country := country_means().get(intensity.upper()):
        return Intensity(g_per_kwh, "country", *country[:2])
    return Intensity(g_per_kwh, "hours", Path(intensity).name)


def _missing_energy(run: Run, folder: RunFolder) -> dict[str, str]:
    """Return why the energy is not known, or does not hold; empty if it holds."""
    if "total/energy_j" not in run.metrics:
        return {"energy": "estimated" if run.energy_source == "estimated" else run.no_energy or "no_total"}
    verdict = ((folder.summary or {}).get("energy") or {}).get("total") or {}
    if verdict.get("energy_valid") is False:
        return {"energy": "; ".join(reason["text"] for reason in verdict.get("energy_reasons", [])) or "not_valid"}
    return {}


def _estimate(metrics: Mapping[str, float], name: str, uncertainty: str) -> Estimate | None:
    if name not in metrics:
        return None
    value, bound = metrics[name], metrics.get(uncertainty, math.nan)
    return Estimate(value) if math.isnan(bound) else Estimate(value, value - bound, value + bound)


def _mean_epoch(run: Run) -> Estimate | None:
    """Return the mean time of the epochs after the warm-up, with the interval of their spread."""
    value, warmup = run.metrics.get("steady/e2e_s"), run.job.get("warmup_epochs", 0)
    times_s = [of["epoch/e2e_s"] for epoch, of in run.epochs.items() if epoch >= warmup and "epoch/e2e_s" in of]
    if value is None:
        return None
    if len(times_s) < 2 or not math.isclose(sum(times_s) / len(times_s), value, rel_tol=1e-3):
        return Estimate(value)
    bound = half_width(times_s)
    return Estimate(value, value - bound, value + bound)


def _hardware(training: Training, host: Host) -> str:
    """Return the devices that trained, and the processor: `2 x NVIDIA H100, Intel Xeon (16 cores)`."""
    places = [place.get("gpu") for place in training.get("places", []) if place.get("gpu")]
    uuids = {uuid for uuid in [*training.get("gpus", []), *places] if uuid}
    gpu, cpu = training.get("gpu") or {}, host.get("cpu") or {}
    names = Counter({gpu["name"]: len(uuids) or 1}) if gpu.get("name") else Counter[str]()
    devices = [f"{count} x {name}" for name, count in names.items()]
    cores = f" ({cpu['cores']} cores)" if cpu.get("cores") else ""
    parts: Sequence[str | None] = (
        (host.get("board") or {}).get("model"),
        *devices,
        f"{cpu['model']}{cores}" if cpu.get("model") else None,
    )
    return ", ".join(part for part in parts if part)
