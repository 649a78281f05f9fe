"""A report in MLflow: its files as the artifacts of one run a sweep, which is found again and never doubled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from epochmeter.tracking.client import PATIENT_S, Store, open_store, place
from epochmeter.tracking.publish import Published
from epochmeter.tracking.publisher import reason
from epochmeter.tracking.views import NOTE, OF_REPORTS, REPORT, artifact_link, artifact_page

if TYPE_CHECKING:
    from mlflow.entities import Run


def log_report(sweep: str, files: Iterable[Path], tracking: Mapping[str, Any]) -> str | None:
    """Logs a report's files, and returns the address under which MLflow shows the first of them.

    They keep their places below the folder that holds all of them; what an earlier report of this sweep left is
    replaced, and removed where this one has no such file. None where there is nothing to log, or `tracking=none`.
    Raises RuntimeError where MLflow does not take them.
    """
    paths = [path.absolute() for path in files]
    where = place(tracking)
    if where is None or not paths:
        return None
    try:
        store = open_store(*where, patience_s=PATIENT_S)
        return _logged(sweep, _places(paths), store)
    except Exception as error:
        raise RuntimeError(
            f"MLflow at {where} does not show the report: {reason(error)}. Its files lie in "
            f"{paths[0].parent}. When MLflow is back, make the report again."
        ) from error


def _logged(sweep: str, places: Mapping[str, Path], store: Store) -> str:
    run = _found(sweep, store) or _created(sweep, store)
    for name, path in places.items():
        store.client.log_artifact(run.info.run_id, str(path), os.path.dirname(name) or None)
    _remove(_artifacts(run, store) - places.keys(), run, store)
    shown = Published(run.info.run_id, store.experiment_id, store.uri)
    store.client.set_tag(shown.run_id, NOTE, _note(list(places), shown))
    store.client.set_terminated(shown.run_id, "FINISHED", run.info.start_time)  # made again it would seem to last
    return artifact_link(shown, next(iter(places)))


def _note(names: Sequence[str], shown: Published) -> str:
    """What the run's page opens with: the way to the files, and the first picture."""
    links = [f"[{name}]({artifact_page(shown, name)})" for name in names if "/" not in name]
    queries = [urlencode({"path": name, "run_uuid": shown.run_id}) for name in names if name.endswith(".png")]
    return "\n\n".join([" · ".join(links), *(f"![](get-artifact?{query})" for query in queries[:1])])


def _places(paths: list[Path]) -> dict[str, Path]:
    """Each file by its path below the folder that holds all of them."""
    folder = os.path.commonpath([path.parent for path in paths])
    return {path.relative_to(folder).as_posix(): path for path in paths}


def _found(sweep: str, store: Store) -> Run | None:
    # Compared here: a name may hold the quotes that MLflow's grammar is made of.
    reports = store.client.search_runs([store.experiment_id], OF_REPORTS)
    return next((run for run in reports if run.data.tags[REPORT] == sweep), None)


def _created(sweep: str, store: Store) -> Run:
    tags = {
        REPORT: sweep,
        "mlflow.source.name": "src/report.py",
        "mlflow.source.type": "LOCAL",
    }
    return store.client.create_run(store.experiment_id, run_name=f"report of {sweep}", tags=tags)


def _artifacts(run: Run, store: Store, folder: str | None = None) -> set[str]:
    listed = store.client.list_artifacts(run.info.run_id, folder)
    below = [_artifacts(run, store, entry.path) for entry in listed if entry.is_dir]
    return {entry.path for entry in listed if not entry.is_dir}.union(*below)


def _remove(names: Iterable[str], run: Run, store: Store) -> None:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    repository = get_artifact_repository(run.info.artifact_uri, tracking_uri=store.uri)
    for name in names:
        with suppress(Exception):  # a store that lets nothing be removed keeps what is old
            repository.delete_artifacts(name)
