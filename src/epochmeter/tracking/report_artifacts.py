"""Publish a report to MLflow: its files as artifacts of one run per sweep."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from epochmeter.shared.problem import MachineError, machine_error
from epochmeter.tracking.client import LONG_TIMEOUT_S, Store, destination_of, open_store
from epochmeter.tracking.publish import Published
from epochmeter.tracking.reasons import error_reason
from epochmeter.tracking.views import NOTE_TAG, REPORT_FILTER, REPORT_TAG, artifact_link

LIMIT_S = 120.0  # time limit for uploading a report
PICTURES = "report"  # folder of a report's pictures


def log_report(sweep: str, files: Iterable[Path], tracking: Mapping[str, Any], answer: str = "") -> str | None:
    """Upload a report's files to the MLflow run of the sweep's reports; RuntimeError if MLflow fails.

    The run's page begins with the answer, in Markdown.

    Returns the address of the first file in MLflow; None without files or with `tracking=none`.
    """
    paths = [path.absolute() for path in files]
    destination = destination_of(tracking)
    if destination is None or not paths:
        return None
    folder = os.path.commonpath([path.parent for path in paths])
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    try:
        return _log_files(sweep, names, open_store(*destination, timeout_s=LONG_TIMEOUT_S), answer)
    except Exception as error:
        raise not_published(paths, tracking, error) from error


def not_published(files: Sequence[Path], tracking: Mapping[str, Any], cause: Exception) -> MachineError:
    """Return the error of a report whose files are not in MLflow."""
    return machine_error(
        f"cannot publish the report to MLflow at {destination_of(tracking)}: {error_reason(cause)}",
        f"its files are in {files[0].absolute().parent}; create the report again when MLflow is available",
    )


def _log_files(sweep: str, paths: Mapping[str, Path], store: Store, answer: str) -> str:
    run_id = _find_or_create_run(sweep, store)
    for name, path in paths.items():
        store.client.log_artifact(run_id, str(path), os.path.dirname(name) or None)
    with suppress(Exception):  # not every storage of artifacts can delete them; they are no longer linked
        _delete_others(run_id, paths.keys(), store)
    published = Published(run_id, store.experiment_id, store.uri)
    # The first text on the run's page: the answer, links to the files, and the first picture.
    links = [f"[{name}]({artifact_link(published, name, is_relative=True)})" for name in paths if "/" not in name]
    queries = [urlencode({"path": name, "run_uuid": run_id}) for name in paths if name.endswith(".png")]
    note = [*([answer] if answer else []), " · ".join(links), *(f"![](get-artifact?{query})" for query in queries[:1])]
    store.client.set_tag(run_id, NOTE_TAG, "\n\n".join(note))
    store.client.set_terminated(run_id)
    return artifact_link(published, next(iter(paths)))


def _find_or_create_run(sweep: str, store: Store) -> str:
    """Return the ID of the sweep's oldest report, to which links exist; delete others, made at the same time."""
    # Compared here: a name may contain quotes, which MLflow's queries cannot express.
    reports = store.client.search_runs([store.experiment_id], REPORT_FILTER, order_by=["attributes.start_time ASC"])
    earlier = [report.info.run_id for report in reports if report.data.tags[REPORT_TAG] == sweep]
    for other in earlier[1:]:
        store.client.delete_run(other)
    if earlier:
        return str(earlier[0])
    tags = {REPORT_TAG: sweep, "mlflow.source.name": "src/report.py", "mlflow.source.type": "LOCAL"}
    run = store.client.create_run(store.experiment_id, run_name=f"report of {sweep}", tags=tags)
    return str(run.info.run_id)


def _delete_others(run_id: str, kept: Collection[str], store: Store) -> None:
    """Delete the files of an earlier report that a later one does not have."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    artifacts = get_artifact_repository(store.client.get_run(run_id).info.artifact_uri, tracking_uri=store.uri)
    folders = {os.path.dirname(name) for name in kept} | {"", PICTURES}
    for file in (file for folder in folders for file in artifacts.list_artifacts(folder or None)):
        if not file.is_dir and file.path not in kept:
            artifacts.delete_artifacts(file.path)
