"""Energy and carbon of runs in the forms of others; runs without measured energy are left out.

`sci.json` has the Software Carbon Intensity (SCI) of the Green Software Foundation, ISO/IEC 21031: ((E x I) + M) per R.
`boamps_NUMBER.json` is a run in the form of BoAmps, by Boavizta: https://github.com/Boavizta/BoAmps.
"""

import math
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from epochmeter.config.schema import SCRIPT
from epochmeter.report.render import phrase
from epochmeter.report.runs.run import Run
from epochmeter.results.footprint import JOULES_PER_KWH, country_means
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.shared.atomic_files import write_json

DATA_TYPES = {"steady/images": "image", "steady/tokens": "token"}  # metric of runs with such data -> `dataType`
QUALITIES = {0.10: "high", 0.25: "medium", 0.50: "low"}  # largest relative uncertainty of the energy -> `quality`
GIGA = 1e9


def write_footprint_files(runs: Sequence[Run], folder: Path, say: Callable[..., None]) -> list[Path]:
    """Write the SCI of all runs with a carbon footprint, and a BoAmps report per run; return the files."""
    scores, written = [], []
    for run in runs:
        if not run.folder or "total/energy_j" not in run.metrics:
            continue
        try:
            report = boamps_report(run)
            if "total/co2e_g" in run.metrics:
                scores.append(software_carbon_intensity(run))
        except READ_ERRORS as error:
            say(phrase("damaged_record", number=run.number, error=error))
            continue
        written.append(folder / f"boamps_{run.number}.json")
        write_json(written[-1], report)
    if scores:
        write_json(folder / "sci.json", scores)
        return [*written, folder / "sci.json"]
    say(phrase("no_intensity" if written else "no_energy"))
    return written


def software_carbon_intensity(run: Run) -> dict[str, object]:
    """Return the SCI of a run, per run and per training sample; M is absent without `footprint.embodied_g`."""
    pue, embodied_g = (run.job["footprint"][key] for key in ("pue", "embodied_g"))
    windows = RunFolder(run.record.folder).all_windows
    samples = sum(window["metrics"].get("epoch/samples") or 0 for window in windows)
    sci_g = run.metrics["total/co2e_g"] + (embodied_g or 0.0)
    return _without_none(
        run=run.name,
        E_kwh=run.metrics["total/energy_j"] * pue / JOULES_PER_KWH,
        I_g_per_kwh=run.metrics["total/intensity_g_per_kwh"],
        M_g=embodied_g,
        includes_embodied=embodied_g is not None,
        energy_covers=run.energy_covers,
        sci_g_per_run=sci_g,
        samples=samples or None,
        sci_g_per_sample=sci_g / samples if samples else None,
    )


def boamps_report(run: Run) -> dict[str, object]:
    """Return the BoAmps report of a run with energy: a draft without publisher and kind of infrastructure."""
    folder, metrics = RunFolder(run.record.folder), run.metrics
    country = country_means().get(str(run.job.get("footprint", {}).get("intensity")).upper())
    job, recorded, host = folder.job, folder.run, folder.record.host()  # as recorded; an error without it
    training, began = recorded.training, datetime.fromisoformat(recorded.started).astimezone(timezone.utc)
    names = {group: job[group]["name"] for group in ("task", "model", "optimizer") if job[group]["name"] != SCRIPT}
    energy_j, bound_j = metrics["total/energy_j"], metrics.get("total/energy_uncertainty_j", math.inf)
    algorithm = _without_none(
        algorithmType="neuralNetwork",
        algorithmName=names.get("model"),
        parametersNumber=metrics["model/parameters"] / GIGA if "model/parameters" in metrics else None,
        framework="pytorch",
        frameworkVersion=training.get("torch"),
        epochsNumber=metrics.get("total/epochs"),
        optimizer=names.get("optimizer"),
        quantization=job.get("precision"),
    )
    data_type = next((kind for metric, kind in DATA_TYPES.items() if metric in metrics), "other")
    dataset = _without_none(dataUsage="input", dataType=data_type, dataQuantity=run.samples)
    measure = _without_none(
        measurementMethod=f"epochmeter, meter={job['meter']['name']}",
        version=host.get("packages", {}).get("epochmeter"),
        averageUtilizationCpu=metrics.get("steady/cpu_utilization"),
        averageUtilizationGpu=metrics.get("steady/gpu_utilization"),
        powerConsumption=energy_j / JOULES_PER_KWH,
        measurementDuration=metrics.get("total/e2e_s"),
        measurementDateTime=f"{began:%Y-%m-%d %H:%M:%S}",
    )
    gpus = Counter(gpu.get("model") for gpu in host.get("gpus", ()))
    components = [_without_none(componentType="gpu", componentName=name, nbComponent=gpus[name]) for name in gpus]
    components.append(_without_none(componentType="cpu", componentName=host.get("cpu", {}).get("model")))
    now, family = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}", names.get("task", "other")
    return _without_none(
        header={"reportId": str(uuid.UUID(recorded.record_id)), "reportDatetime": now, "reportStatus": "draft"},
        task={"taskStage": "training", "taskFamily": family, "algorithms": [algorithm], "dataset": [dataset]},
        measures=[measure],
        system=_without_none(os="linux", distribution=host.get("os")),
        software=_without_none(language="python", version=training.get("python")),
        infrastructure={"infraType": "other", "components": components},
        environment={"country": country[0], "powerSourceCarbonIntensity": country[2]} if country else None,
        quality=next((name for most, name in QUALITIES.items() if bound_j <= most * energy_j), None),
    )


def _without_none(**values: Any) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
