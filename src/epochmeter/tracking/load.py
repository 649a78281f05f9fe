"""Find published runs in MLflow, and download their records for reports of runs whose folders are elsewhere."""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from epochmeter.results.reuse import write_reference
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.record import COMPLETED_FILE, HOST_FILE, JOB_FILE, SUMMARY_FILE, WINDOWS_FILE, Record
from epochmeter.tracking.client import EXPERIMENT, SQLITE, Store, open_existing_store
from epochmeter.tracking.publish import MEASURED, RECORD_ID, SWEEPS, Published
from epochmeter.tracking.views import run_link

if TYPE_CHECKING:
    from mlflow.entities import Run

PAGE_SIZE = 200  # runs per request; a server takes well below a second for this many
LINKS_TIMEOUT_S = 5  # timeout of a call for links, without which a report is complete
LINKS_LIMIT_S = 10.0  # time limit of all calls for links
QUERY = f"""
SELECT sweeps.value, folders.value, runs.run_uuid, runs.experiment_id
FROM experiments
JOIN runs ON runs.experiment_id = experiments.experiment_id
JOIN tags AS records ON records.run_uuid = runs.run_uuid AND records.key = '{RECORD_ID}' AND records.value != ''
JOIN tags AS sweeps ON sweeps.run_uuid = runs.run_uuid AND sweeps.key = 'epochmeter.sweep_id'
JOIN tags AS folders ON folders.run_uuid = runs.run_uuid AND folders.key = 'epochmeter.folder'
WHERE experiments.name = ? AND sweeps.value = ?
AND experiments.lifecycle_stage = 'active' AND runs.lifecycle_stage = 'active'
ORDER BY runs.start_time
"""
"""SQL for the runs of a sweep in an experiment of MLflow's database."""
REPORTED_FILES = {JOB_FILE, HOST_FILE, WINDOWS_FILE, SUMMARY_FILE, COMPLETED_FILE}


def download_records(
    folder: Path, choose: Callable[[Iterable[str]], Iterable[str]], experiment: str = EXPERIMENT, uri: str | None = None
) -> None:
    """Download records to `<folder>/<sweep>/<number>`, and write references for the runs that a sweep reuses.

    `choose` returns the sweeps to download, given the names of all. LookupError without a database or experiment.
    """
    store = open_existing_store(experiment, uri)
    by_sweep: dict[str, list[tuple[str, Run]]] = {}
    for run in _iter_pages(store):
        reusing = map(unquote, run.data.tags.get(SWEEPS, "").split())
        names = (f"{run.data.tags['epochmeter.sweep_id']}/{_number(run)}", *reusing)
        for sweep, _, number in (name.rpartition("/") for name in names):
            if sweep and sweep == _last_name(sweep) and number.isdecimal():  # not the folder of an archived attempt
                by_sweep.setdefault(sweep, []).append((number, run))
    for sweep in choose(by_sweep):
        for number, run in by_sweep[sweep]:
            record = _download(run, folder, store)
            target = folder / sweep / number
            if record.folder != target and (record.folder / JOB_FILE).exists():
                target.mkdir(parents=True, exist_ok=True)
                write_reference(target, record, RunFolder(record.folder).run.overrides)


def run_links(sweeps: Iterable[str], experiment: str = EXPERIMENT, uri: str | None = None) -> dict[str, str]:
    """Return the page address of each published run of these sweeps, by `sweep/number`."""
    store = open_existing_store(experiment, uri, LINKS_TIMEOUT_S)
    queries = (f"{MEASURED} and tags.`epochmeter.sweep_id` = '{sweep}'" for sweep in sweeps if "'" not in sweep)
    return {
        f"{run.data.tags['epochmeter.sweep_id']}/{_number(run)}": run_link(
            Published(run.info.run_id, store.experiment_id, store.uri)
        )
        for query in queries
        for run in _iter_pages(store, query)
    }


def links_in_database(sweeps: Iterable[str], experiment: str, uri: str) -> dict[str, str] | None:
    """Return the same from a SQLite database, without MLflow, whose import takes a second.

    None if this is no such database, or if it has another schema than those of MLflow 2 and 3.
    """
    if not uri.startswith(SQLITE):
        return None
    with suppress(sqlite3.Error), closing(_open_to_read(Path(uri.removeprefix(SQLITE)).absolute())) as database:
        return {
            f"{sweep}/{_last_name(folder)}": run_link(Published(run_id, str(experiment_id), uri))
            for name in sweeps
            for sweep, folder, run_id, experiment_id in database.execute(QUERY, (experiment, name))
        }
    return None


def _open_to_read(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True, timeout=LINKS_TIMEOUT_S)


def _download(run: "Run", folder: Path, store: Store) -> Record:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    record = Record(folder / _last_name(run.data.tags["epochmeter.sweep_id"]) / _number(run))
    if not record.folder.exists():
        record.folder.mkdir(parents=True)
        # The client would look up the run for each file.
        artifacts = get_artifact_repository(run.info.artifact_uri, tracking_uri=store.uri)
        for file in artifacts.list_artifacts():
            if file.path in REPORTED_FILES:
                artifacts.download_artifacts(file.path, str(record.folder))
    return record


def _number(run: "Run") -> str:
    """Return the name of a run's folder: its number in the sweep, or `attempt1` of an archived attempt."""
    return _last_name(run.data.tags["epochmeter.folder"])


def _last_name(path: str) -> str:
    """Return the last name in a path, never `..`: anyone may set a tag on a shared server."""
    return os.path.basename(os.path.normpath(f"/{path}"))


def _iter_pages(store: Store, query: str = MEASURED) -> "Iterator[Run]":
    page = None
    while page is None or page.token:
        page = store.client.search_runs(
            [store.experiment_id],
            query,
            max_results=PAGE_SIZE,
            order_by=["attributes.start_time ASC"],
            page_token=page.token if page else None,
        )
        yield from page
