"""Map a run folder to MLflow: parameters, tags, dataset, note, status, times, files and scalars, as pure functions.

TensorBoard gets the same scalars.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.config.identity import affects_measurement
from epochmeter.config.installation import with_own_commands
from epochmeter.config.validation import flatten, format_value
from epochmeter.results import run_status as states
from epochmeter.results.power_trace import downsample
from epochmeter.results.run_result import no_energy_reason
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.process_identity import Process
from epochmeter.shared.record import CHECKPOINT, PERFETTO, PROGRESS, TIME_SERIES, Record, since_resumed, step_count

MAX_PARAM, MAX_TAG, MAX_DIGEST = 6000, 8000, 36  # MLflow's limits of lengths
TRAIN, MEASURE = "src/train.py", "src/measure.py"
EVENTS = "events.out.tfevents."
"""Prefix of TensorBoard's event files, which are derived from the record and not part of it."""
POWER, LOSS = "power/total_w", "step/train_loss"
SYSTEM = "system/"  # prefix of the metrics that MLflow shows as system metrics
CORE = re.compile(r"cpu\d+_utilization")  # not published: a machine may have hundreds of cores
MAX_POINTS, STEPS_PER_POINT = 500, 100  # points of each curve of power or a gauge; steps per point of the loss
NS_PER_MS = 1_000_000
MLFLOW_STATUS = {
    states.PLANNED: "SCHEDULED",
    states.RUNNING: "RUNNING",
    states.COMPLETED: "FINISHED",
    states.FAILED: "FAILED",
    states.KILLED: "KILLED",
}


def run_params(record: Record) -> dict[str, str]:
    """Return the configuration in Hydra's syntax, as `model=lenet`, `model.name=resnet18` and `pin_memory=true`.

    Null values have no param: MLflow's parallel coordinates would mix text and numbers, and drop runs.
    """
    items = [*flatten(record.job()), *record.run()["choices"].items()]
    return {
        legal_name(key): format_value(value)[:MAX_PARAM]
        for key, value in items
        if value is not None and affects_measurement(key)
    }


def run_tags(record: Record) -> dict[str, str]:
    """Return the run's tags: identifiers and the conditions of the measurement; unknown values have no tag."""
    run, failure = record.run(), (record.summary() or {}).get("failure") or {}
    host = record.host() if (record.folder / "host.json").exists() else {}
    footprint = record.job().get("footprint", {})
    tags = {
        **{key: run.get(key) for key in ("record_id", "sweep_id", "identity", *Process._fields)},
        "folder": str(record.folder.resolve()),
        "device": run["choices"].get("device"),
        "rehearsal": bool(run["rehearsal"]),
        "not_applied": "; ".join(run["rehearsal"]) or None,
        "medium": run.get("storage", {}).get("medium"),
        **{f"energy_{key}": run["energy"].get(key) for key in ("source", "covers", "reason")},
        **{f"footprint_{key}": footprint.get(key) for key in ("intensity", "price", "currency")},
        "power_limit_applied": run["power_limit_applied"],
        **run.get("flags", {}),
        "failure": failure.get("kind"),
    }
    mlflow_tags = {
        "mlflow.source.name": source_file(record),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": host.get("git", {}).get("commit"),
        "mlflow.note.content": run_note(record),
    }
    named = {**{f"epochmeter.{key}": value for key, value in tags.items()}, **mlflow_tags}
    return {key: format_value(value)[:MAX_TAG] for key, value in named.items() if value is not None}


def source_file(record: Record) -> str:
    return MEASURE if record.job().get("measure", {}).get("command") else TRAIN


def run_note(record: Record) -> str:
    """Return the first text on a run's page in MLflow, in Markdown."""
    run, summary = record.run(), record.summary() or {}
    failure, no_energy = summary.get("failure"), no_energy_reason(run)
    source = source_file(record)
    script = ["--", *record.job()["measure"]["command"]] if source == MEASURE else []
    rehearsal = " ".join(f"{text.rstrip('.')}." for text in run["rehearsal"])
    paragraphs = [
        f"**Rehearsal, not a result.** {rehearsal}" if rehearsal else "",
        f"**Failed** ({failure['kind']}): {failure['message']}" if failure else "",
        f"```\n{shlex.join([*with_own_commands(f'python {source}').split(), *run['overrides'], *script])}\n```",
        f"No measured energy: {no_energy}" if no_energy else "",
        *summary.get("notes", []),
        f"Measured on `{run['host']}`. Record: `{record.folder.resolve()}`",
    ]
    return "\n\n".join(filter(None, paragraphs))


def dataset_fields(record: Record) -> dict[str, str] | None:
    """Return the fields of MLflow's dataset from the manifest; None if the run has none."""
    manifest = record.run().get("dataset")
    if not manifest:
        return None
    source = str(manifest.get("source", ""))
    is_web = source.startswith(("http://", "https://"))
    return {
        "name": manifest["name"],
        "digest": manifest["digest"][:MAX_DIGEST],
        "source_type": "http" if is_web else "local",
        "source": json.dumps({"url" if is_web else "uri": source}),
        "profile": json.dumps({key: manifest[key] for key in ("count", "bytes", "classes") if key in manifest}),
    }


def legal_name(name: str) -> str:
    """Return a name with only characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def started_s(record: Record) -> float:
    return datetime.fromisoformat(record.run()["started"]).timestamp()


def ended_s(record: Record) -> float:
    """Return the run's end as Unix time: as recorded, else the last write, as a dead run is closed late."""
    completion = read_json(record.folder / "completed.json") if record.is_completed() else {}
    if ended := completion.get("finished") or (record.summary() or {}).get("ended"):
        return datetime.fromisoformat(ended).timestamp()
    written = [path.stat().st_mtime for path in complete_files(record) if path.name in ("epochs.jsonl", *TIME_SERIES)]
    return max(written, default=started_s(record))


def complete_files(record: Record) -> list[Path]:
    """Return the record's complete files, without temporary and derived ones."""
    files = sorted(path for path in record.folder.iterdir() if path.is_file())
    others = CHECKPOINT, PERFETTO, PROGRESS
    return [path for path in files if path.name not in others and not path.name.startswith((".", EVENTS))]


class Scalar(NamedTuple):
    """A point of a curve; `step` is an epoch, a training step or ms, depending on the metric."""

    name: str
    value: float
    when_ms: int
    step: int


def window_scalars(record: Record, windows: Sequence[Mapping[str, Any]], published: int = 0) -> Iterator[list[Scalar]]:
    """Yield the scalars of each window after the first `published`: its metrics by epoch, and its losses by step.

    All have their window's time, so that a repeated point is one point in MLflow's database.
    """
    first = end = step_count(windows[:published])
    losses = record.losses(first)
    for window in windows[published:]:
        begin, end = end, end + step_count([window])
        own = losses[begin - first : end - first]
        curve = loss_curve(own if len(own) == end - begin else (), begin)
        when_ms = _boot_ms(record, window["epoch"]) + window["closed_ns"] // NS_PER_MS
        metrics = publishable(window["metrics"]).items()
        yield [
            *(Scalar(name, value, when_ms, window["epoch"]) for name, value in metrics),
            *(Scalar(LOSS, loss, when_ms, step) for step, loss in curve),
        ]


def summary_scalars(record: Record, summary: Mapping[str, Any]) -> list[Scalar]:
    """Return means, standard deviations and totals, at the time of the run's end."""
    when_ms = round(ended_s(record) * 1000)
    return [Scalar(name, value, when_ms, 0) for name, value in publishable(summary["metrics"]).items()]


def curve_scalars(record: Record, windows: Sequence[Mapping[str, Any]]) -> Iterator[Scalar]:
    """Yield power in W and the gauges over ms since the first sample; nothing that was not recorded."""
    if not windows:
        return
    boot_ms = _boot_ms(record, windows[-1]["epoch"])
    for prefix, file in zip(("power/", SYSTEM), TIME_SERIES, strict=True):
        start_ns = None
        for at_ns, _, means in downsample(record.folder / file, MAX_POINTS):
            start_ns = at_ns if start_ns is None else start_ns
            when_ms, step = boot_ms + at_ns // NS_PER_MS, (at_ns - start_ns) // NS_PER_MS
            for column, mean in means.items():
                if prefix + column == POWER or (prefix == SYSTEM and not CORE.fullmatch(column)):
                    yield Scalar(legal_name(prefix + column), mean, when_ms, step)


def loss_curve(losses: Sequence[float], begin: int) -> Iterator[tuple[int, float]]:
    """Yield (step of the run, mean loss of up to 100 steps), finite ones; `begin` steps were earlier."""
    for first in range(0, len(losses), STEPS_PER_POINT):
        part = losses[first : first + STEPS_PER_POINT]
        mean = math.fsum(part) / len(part)
        if math.isfinite(mean):
            yield begin + first + len(part), mean


def publishable(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return metrics under legal names, without missing and infinite values, which MLflow would store as 1.8e308."""
    return {
        legal_name(name): float(value) for name, value in metrics.items() if value is not None and not math.isinf(value)
    }


def _boot_ms(record: Record, epoch: int) -> int:
    """Return the wall time of zero on the monotonic clock that timed an epoch, in ms."""
    clock = since_resumed(record.run(), epoch)["clock"]
    return round(clock["wall_s"] * 1000) - clock["monotonic_ns"] // NS_PER_MS
