"""A record in MLflow's terms: parameters, tags, a dataset and a note, as pure functions of what it holds."""

from __future__ import annotations

import base64
import json
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from epochmeter.config.job import measures
from epochmeter.machine.process_identity import Process
from epochmeter.results.run_info import Facts, facts
from epochmeter.results.run_result import no_energy
from epochmeter.shared.record import Record

LONGEST_PARAM, LONGEST_TAG, LONGEST_DIGEST = 6000, 8000, 36
ENERGY_TAGS = {"source": "energy_source", "covers": "energy_covers", "reason": "energy_reason"}


def name(record: Record) -> str:
    """The run's name, which every chart shows: a rehearsal says there too that it is one."""
    run = record.run()
    return f"rehearsal {run['name']}" if run["rehearsal"] else run["name"]


def params(record: Record) -> dict[str, str]:
    """The job as one types it: `model=lenet batch=16` are params `model` and `batch`, the rest is `model.name`.

    Values are written as one types them too: `true`, `0.01`. What is null has no param: MLflow's parallel coordinates
    take the word for a value among numbers, and drop either the runs that have it or those that have a number.
    """
    asked = [*flat(record.job()), *record.run()["choices"].items()]
    return {legal(key): typed(value)[:LONGEST_PARAM] for key, value in asked if value is not None and measures(key)}


FACTS = "mlflow.epochmeter.facts"
"""The tag of a run's facts, packed: MLflow's pages show none of its own tags, of which people could read nothing."""


def tags(record: Record) -> dict[str, str]:
    """What a run is found by, and what is known of how it was measured; what is not known has no tag."""
    run, host, failure = record.run(), _host(record), (record.summary() or {}).get("failure") or {}
    ours = {
        **{key: run[key] for key in ("record_id", "sweep_id", "identity", *Process._fields) if key in run},
        "folder": str(record.folder.resolve()),
        "device": run["choices"].get("device"),
        "rehearsal": bool(run["rehearsal"]),
        "not_applied": "; ".join(run["rehearsal"]) or None,
        "medium": run.get("storage", {}).get("medium"),
        **{tag: run["energy"].get(key) for key, tag in ENERGY_TAGS.items()},
        "power_limit_applied": run["power_limit_applied"],
        **run.get("marks", {}),
        "failure": failure.get("kind"),
    }
    mlflow = {
        "source.name": "src/train.py",
        "source.type": "LOCAL",
        "source.git.commit": host.get("git", {}).get("commit"),
        "note.content": note(record),
        "epochmeter.facts": told(record),
    }
    named = [(f"epochmeter.{key}", value) for key, value in ours.items()]
    named += [(f"mlflow.{key}", value) for key, value in mlflow.items()]
    return {key: typed(value)[:LONGEST_TAG] for key, value in named if value is not None}


def told(record: Record) -> str | None:
    """A run's facts, packed: without its epochs while it has not ended or where they are too many; None of very many.

    Whatever the epochs, MLflow's own metrics have them; those cannot be asked of many runs at once.
    """
    summary = record.summary()
    found = facts(record.job(), record.run(), _host(record), record.windows() if summary else [], summary)
    for each in (found, {**found, "epochs": {}}):
        if len(text := packed(each)) <= LONGEST_TAG:
            return text
    return None


def packed(told: Mapping[str, Any]) -> str:
    return base64.b64encode(zlib.compress(json.dumps(told, separators=(",", ":")).encode())).decode()


def unpacked(text: str) -> Facts:
    """The facts that a tag holds; ValueError where it holds none."""
    try:
        told: Facts = json.loads(zlib.decompress(base64.b64decode(text)))
        told["epochs"] = {int(number): metrics for number, metrics in told["epochs"].items()}
    except (zlib.error, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"tag {FACTS} holds no facts: {error}") from error
    return told


def note(record: Record) -> str:
    """What a run's page in MLflow opens with, in Markdown."""
    run, summary = record.run(), record.summary() or {}
    failure = summary.get("failure")
    command = shlex.join(["python", "src/train.py", *run["overrides"]])
    told = [
        *(
            ["**Rehearsal, not a result.** " + " ".join(f"{text.rstrip('.')}." for text in run["rehearsal"])]
            if run["rehearsal"]
            else []
        ),
        *([f"**Failed** ({failure['kind']}): {failure['message']}"] if failure else []),
        f"```\n{command}\n```",
        *([f"No measured energy: {why}"] if (why := no_energy(run)) else []),
        *summary.get("notes", []),
        f"Measured on `{run['host']}`. Record: `{record.folder.resolve()}`",
    ]
    return "\n\n".join(told)


def dataset(record: Record) -> dict[str, str] | None:
    """The fields of MLflow's dataset, from the manifest alone; None where the run has none."""
    manifest = record.run().get("dataset")
    if not manifest:
        return None
    source = str(manifest.get("source", ""))
    web = source.startswith(("http://", "https://"))
    return {
        "name": manifest["name"],
        "digest": manifest["digest"][:LONGEST_DIGEST],
        "source_type": "http" if web else "local",
        "source": json.dumps({"url" if web else "uri": source}),
        "profile": json.dumps({key: manifest[key] for key in ("count", "bytes", "classes") if key in manifest}),
    }


def flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def legal(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name)


def _host(record: Record) -> dict[str, Any]:
    try:
        return record.host()
    except FileNotFoundError:
        return {}
