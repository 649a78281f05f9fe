"""Map a run folder to MLflow: parameters, tags, dataset, note, status, times and files, as pure functions."""

from __future__ import annotations

import json
import re
import shlex
from datetime import datetime
from pathlib import Path

from epochmeter.config.installation import with_own_commands
from epochmeter.config.job import affects_measurement
from epochmeter.config.validation import flatten, format_value
from epochmeter.results import run_status as states
from epochmeter.results.run_result import no_energy_reason
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.process_identity import Process
from epochmeter.shared.record import CHECKPOINT, PERFETTO, PROGRESS, TIME_SERIES, Record

MAX_PARAM, MAX_TAG, MAX_DIGEST = 6000, 8000, 36  # MLflow's limits of lengths
TRAIN, MEASURE = "src/train.py", "src/measure.py"
EVENTS = "events.out.tfevents."
"""Prefix of TensorBoard's event files, which are derived from the record and not part of it."""
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
