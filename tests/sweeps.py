"""Sweeps for tests of reports: runs as read from records, and records as written by runs."""

from __future__ import annotations

import re
from dataclasses import replace

from metadata import RUN

from epochmeter.report.runs.run import Run
from epochmeter.results.bottleneck import find_verdict
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record

DATA_SOURCES = {
    "synthetic": {"synthetic_batches": True, "cache": "cold"},
    "cached": {"synthetic_batches": False, "cache": "warm"},
    "storage": {"synthetic_batches": False, "cache": "cold_each_epoch"},
}
SHARES = {"cached": {"page_cache_residency_before": 1.0}, "storage": {"page_cache_residency_before": 0.0}}


def job(data_source="storage", layout="files", **keys):
    return {
        "model": {"name": "resnet18"}, "dataset": {"name": "jpeg", "layout": layout}, "storage": {"name": "here"},
        "device": {"name": "cpu"}, "batch": 64, "workers": 4, "repeat": 0, **DATA_SOURCES[data_source], **keys,
    }  # fmt: skip


def row(number, data_source, e2e_s, *, samples=1000.0, steady=None, total=None, job_keys=None, typed=None, **more):
    """Return a completed run of a stall experiment."""
    steady_values = {"e2e_s": e2e_s, "samples": samples, **SHARES.get(data_source, {}), **(steady or {})}
    metrics = {f"steady/{name}": value for name, value in steady_values.items() if value is not None}
    metrics.update({f"total/{name}": value for name, value in (total or {}).items()})
    joules = "energy_j" in steady_values
    facts = {"cores": 8, "energy_covers": "gpu0" if joules else None, "no_energy": None if joules else "no meter here"}
    keys = {"data_source": data_source, **(typed or {})}
    run = Run(number, job(data_source, **(job_keys or {})), keys, metrics, "completed", **{**facts, **more})
    return with_verdict(run)


def with_verdict(run):
    """Return a run with the bottleneck and the stalls of its metrics, as it is loaded."""
    measured = {name: value for name, value in run.metrics.items() if not re.search("(prep|fetch)_stall_", name)}
    verdict = find_verdict(measured, run.medium, "steady")
    metrics = {**measured, **verdict.metrics}
    return replace(run, metrics=metrics, bottleneck=verdict.bottleneck, absent=verdict.absent)


SCRIPT_SOURCES = {
    "replay": {"replay": True, "cache": "keep"}, "cached": {"cache": "warm"}, "storage": {"cache": "cold_each_epoch"},
    "unchanged": {"cache": "keep"},
}  # fmt: skip


def script_row(number, data_source, e2e_s, *, data=None, workers=1, persistent=True, **more):
    """Return a completed run of a script in a stall experiment; `data` are its files, if they are known."""
    keys = SCRIPT_SOURCES[data_source]
    name = {"name": "script"}
    measure = {"command": ["train.py"], "data": data, "replay": keys.get("replay", False)}
    job = {"model": name, "dataset": {**name, "layout": "script"}, "strategy": {"name": "single"}, "measure": measure,
           "repeat": 0, **({"cache": keys["cache"]} if data else {})}  # fmt: skip
    loader = {"batch": 4, "workers": workers, "persistent_workers": persistent}
    return replace(
        row(number, SYNTHETIC_SOURCE.get(data_source, data_source), e2e_s, typed={"data_source": data_source}, **more),
        job=job, loader=loader if data_source != "replay" else {},
    )  # fmt: skip


SYNTHETIC_SOURCE = {"replay": "synthetic", "unchanged": "synthetic"}  # whose runs have no page-cache residency


def script_rows(data=None, *, workers=1, persistent=True, steady=None, **seconds):
    """Return the runs of a script's stall experiment, from the epoch times in seconds by data source."""
    named = [(name, value) for name, values in seconds.items() for value in values]
    return [
        script_row(
            number, name, value, data=data, workers=workers, persistent=persistent, steady=(steady or {}).get(name)
        )
        for number, (name, value) in enumerate(named)
    ]


MODELS = {"resnet50": 25e6, "resnet152": 60e6}


def trained(number, samples_per_s, *, strategy="single", ranks=1, batch=64, model="resnet152", samples=1000,
            steady=None, total=None, epochs=(), typed=None, rehearsal=(), **keys):  # fmt: skip
    """Return a completed run of a strategy, with steps and epoch time from its throughput."""
    steps = -(-samples // (batch * (ranks if strategy == "ddp" else 1)))
    e2e_s = samples / samples_per_s
    steady_values = {"e2e_s": e2e_s, "samples": float(samples), "steps": float(steps), "samples_per_s": samples_per_s,
             "compute_s": 0.9 * e2e_s, **(steady or {})}  # fmt: skip
    metrics = {f"steady/{name}": value for name, value in steady_values.items() if value is not None}
    metrics.update({f"total/{name}": value for name, value in (total or {}).items() if value is not None})
    metrics["model/parameters"] = MODELS[model]
    keys = {"cache": "cold", "warmup_epochs": 1, "evaluate": True, **keys}
    configuration = job(model={"name": model}, batch=batch, strategy={"name": strategy, "ranks": ranks}, **keys)
    joules = any("energy" in name for name in metrics)
    facts = {"energy_covers": "GPUs used"} if joules else {"no_energy": "no meter here"}
    return with_verdict(
        Run(number, configuration, {"strategy": strategy, **(typed or {})}, metrics, "completed", **facts,
            epochs=dict(enumerate(epochs)), rehearsal=rehearsal, devices=ranks, samples=samples)
    )  # fmt: skip


def ddp(number, samples_per_s=190.0, **more):
    """Return a completed run on two ranks."""
    return trained(number, samples_per_s, strategy="ddp", ranks=2, **more)


def spread(mean, by=0.01):
    """Return three repeats."""
    return [mean - by, mean, mean + by]


def costing(number, time_s, energy_j=None, *, steady=None, **more):
    """Return a completed run with this time and energy per epoch."""
    return trained(number, 100.0, steady={"e2e_s": time_s, "energy_j": energy_j, **(steady or {})}, **more)


def reaching(number, time_s=None, energy_j=None, *, epochs_to_target=3.0, **more):
    """Return a completed run that reached its target with this time and energy; without a time, it never did."""
    total = {"time_to_target_s": time_s, "energy_to_target_j": energy_j, "energy_j": energy_j,
             "epochs_to_target": None if time_s is None else epochs_to_target}  # fmt: skip
    return trained(number, 100.0, total=total, **{"target_accuracy": 0.9, **more})


def rows(synthetic, cached, storage, **options):
    """Return the runs of a stall sweep, from the epoch times in seconds per data source."""
    seconds = {"synthetic": synthetic, "cached": cached, "storage": storage}
    named = [(name, value) for name, values in seconds.items() for value in values]
    return [row(number, name, value, **options) for number, (name, value) in enumerate(named)]


def write(sweep, of, rehearsal=(), state="completed", energy=None):
    """Write the record of a run into a sweep's folder."""
    folder = sweep / str(of.number)
    folder.mkdir(parents=True)
    record = Record(folder)
    run = {
        **RUN, "number": of.number, "identity": f"id{of.number}", "rehearsal": list(rehearsal),
        "overrides": [f"{key}={value}" for key, value in of.keys.items()],
        "energy": energy or {"source": "none", "covers": None, "reason": of.no_energy},
    }  # fmt: skip
    record.describe(of.job, run)
    for number, metrics in of.epochs.items():
        record.append({"window": "epoch", "epoch": number, "metrics": dict(metrics)})
    write_json(folder / "host.json", {"cpu": {"cores": of.cores}})
    record.write_summary({"state": state, "metrics": dict(of.metrics), "notes": [], "failure": None}, run["identity"])
    return record
