"""Publish a report to MLflow: its files as artifacts of one run per sweep."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from epochmeter.tracking.client import LONG_TIMEOUT_S, Store, destination_of, open_store
from epochmeter.tracking.publish import Published
from epochmeter.tracking.publisher import error_reason
from epochmeter.tracking.views import NOTE_TAG, REPORT_FILTER, REPORT_TAG, artifact_link


def log_report(sweep: str, files: Iterable[Path], tracking: Mapping[str, Any]) -> str | None:
    """Upload a report's files, in place of an earlier report of the same sweep; RuntimeError if MLflow fails.

    Returns the address of the first file in MLflow; None without files or with `tracking=none`.
    """
    paths = [path.absolute() for path in files]
    destination = destination_of(tracking)
    if destination is None or not paths:
        return None
    folder = os.path.commonpath([path.parent for path in paths])
    try:
        store = open_store(*destination, timeout_s=LONG_TIMEOUT_S)
        return _log_files(sweep, {path.relative_to(folder).as_posix(): path for path in paths}, store)
    except Exception as error:
        raise RuntimeError(
            f"cannot publish the report to MLflow at {destination}: {error_reason(error)}\n"
            f"  hint: its files are in {paths[0].parent}; create the report again when MLflow is available"
        ) from error


def _log_files(sweep: str, paths: Mapping[str, Path], store: Store) -> str:
    # Compared here: a name may contain quotes, which MLflow's queries cannot express.
    reports = store.client.search_runs([store.experiment_id], REPORT_FILTER)
    earlier = [report.info.run_id for report in reports if report.data.tags[REPORT_TAG] == sweep]
    tags = {REPORT_TAG: sweep, "mlflow.source.name": "src/report.py", "mlflow.source.type": "LOCAL"}
    run_id = store.client.create_run(store.experiment_id, run_name=f"report of {sweep}", tags=tags).info.run_id
    for name, path in paths.items():
        store.client.log_artifact(run_id, str(path), os.path.dirname(name) or None)
    published = Published(run_id, store.experiment_id, store.uri)
    # The first text on the run's page: links to the files, and the first picture.
    links = [f"[{name}]({artifact_link(published, name, is_relative=True)})" for name in paths if "/" not in name]
    queries = [urlencode({"path": name, "run_uuid": run_id}) for name in paths if name.endswith(".png")]
    note = [" · ".join(links), *(f"![](get-artifact?{query})" for query in queries[:1])]
    store.client.set_tag(run_id, NOTE_TAG, "\n\n".join(note))
    store.client.set_terminated(run_id)
    for report in earlier:
        store.client.delete_run(report)
    return artifact_link(published, next(iter(paths)))
