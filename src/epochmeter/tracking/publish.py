"""Publish a record as an MLflow run. Publishing adds missing parts, so it can be interrupted and repeated."""

import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from epochmeter.config.printable import printable
from epochmeter.machine.platforms import path_of_descriptor
from epochmeter.results.appended_file import WindowLog
from epochmeter.results.reuse import is_run, referenced_record
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.sweep_order import StartKey, start_key
from epochmeter.shared.process_identity import Process, is_alive
from epochmeter.shared.record import JOB_FILE, Record, before_checkpoint
from epochmeter.shared.record_files import open_file
from epochmeter.tracking import run_export
from epochmeter.tracking.client import Store
from epochmeter.tracking.run_export import MLFLOW_STATUS, Scalar, complete_files, ended_s, started_s

if TYPE_CHECKING:
    from mlflow.entities import Run

RECORD_ID = "epochmeter.record_id"
MEASURED = f"tags.`{RECORD_ID}` != ''"  # filter for runs with measurements: those that have a record
WINDOWS = "epochmeter.windows"  # tag with the number of windows already published
SWEEPS = "epochmeter.sweeps"
"""Tag with the sweeps that include a run: its own, and as `sweep/number` those that reuse it, quoted as in URLs."""
MAX_SWEEPS = 100  # number of reusing sweeps in the tag, the latest ones: the length of a tag is limited
SUMMARY = "epochmeter.published"  # tag of a run whose means, totals and curves are published
MAX_BATCH, MAX_ENTITIES = 100, 1000


class Published(NamedTuple):
    """A record's run in MLflow."""

    run_id: str
    experiment_id: str
    uri: str


def publish(record: Record, store: Store, ended: str | None = None, log: WindowLog | None = None) -> Published:
    """Publish the parts of a record that MLflow lacks, and set the run's status last.

    Of a run that may resume from a checkpoint, only the epochs before the checkpoint are published, as MLflow cannot
    delete metrics.

    Args:
        ended: How the run ended, for a record that could not be completed.
        log: The windows of the record that are not published, for a run that is published again and again.
    """
    folder, log = RunFolder(record.folder), log or WindowLog(record.folder)
    status, summary = MLFLOW_STATUS[folder.state_if(ended)], folder.summary
    log.check()  # a damaged record is not published
    with record.locked():  # of two processes, the second finds the run created by the first
        run = _find_or_create_run(folder, store)
    if not is_superseded(record):
        _delete_replaced(folder, store)
    published = Published(run.info.run_id, store.experiment_id, store.uri)
    _log_metadata(folder, store, run)
    count = int(run.data.tags.get(WINDOWS, 0))
    windows, earlier_steps = log.after(count)
    if (checkpoint := record.checkpoint()) and status != "FINISHED":
        windows, summary = before_checkpoint(windows, checkpoint["epochs"]), None
    for number, points in whole_windows(run_export.window_scalars(folder, windows, earlier_steps), count):
        _log_metrics(points, (WINDOWS, str(number)), store, run)
    if status == "RUNNING":
        if run.info.status != "RUNNING":  # it had ended, and was resumed
            store.client.update_run(run.info.run_id, "RUNNING")
        return published
    if summary and SUMMARY not in run.data.tags:
        final = [*run_export.summary_scalars(folder, summary), *run_export.curve_scalars(folder, folder.all_windows)]
        _log_metrics(final, (SUMMARY, "true"), store, run)
    _log_files(folder.path, store, run)
    # A status passed by the controller is kept if the record has none.
    if run.info.status != status and (run.info.status == "RUNNING" or ended or folder.recorded_end):
        duration_ms = _ms(ended_s(folder)) - _ms(started_s(folder))  # the record's start may have been corrected
        store.client.set_terminated(run.info.run_id, status, run.info.start_time + duration_ms)
    return published


def whole_windows(windows: Iterable[Sequence[Scalar]], count: int) -> Iterator[tuple[int, list[Scalar]]]:
    """Yield the points of as many windows as one call to MLflow takes, with the number of the last one.

    `count` is the number of the windows before them.
    """
    points, number = list[Scalar](), count
    for window in windows:
        if points and len(points) + len(window) >= MAX_ENTITIES:  # with the tag
            yield number, points
            points = []
        points, number = [*points, *window], number + 1
    if number > count:
        yield number, points


def include_reused(folder: Path, store: Store) -> Published | None:
    """Publish the run that a sweep reuses in this folder, and include it in the sweep; None if it does not exist."""
    record = referenced_record(folder)
    if record is None:
        return None
    _delete_replaced(RunFolder(record.folder), store, folder)
    published, name = publish(record, store), quote(f"{folder.parent.name}/{folder.name}")
    own_sweep, *reusing = store.client.get_run(published.run_id).data.tags[SWEEPS].split()
    if name not in reusing:
        store.client.set_tag(published.run_id, SWEEPS, " ".join([own_sweep, *[*reusing, name][-MAX_SWEEPS:]]))
    return published


def is_superseded(record: Record) -> bool:
    """Return whether a record is of an incomplete attempt that was archived before a later attempt."""
    is_attempt = record.folder.name.startswith("attempt")
    return is_attempt and not record.is_completed() and is_run(record.folder.parent)


def close_dead_runs(store: Store) -> None:
    """End this host's runs in MLflow whose process is dead, as their records say; without a record, as killed."""
    query = f"attributes.status = 'RUNNING' and tags.`epochmeter.host` = '{platform.node()}'"
    for run in store.client.search_runs([store.experiment_id], query):
        tags = run.data.tags
        identity = (tags.get(f"epochmeter.{name}") for name in ("boot_id", "start_ticks", "pid_namespace"))
        try:
            process = Process(tags["epochmeter.host"], int(tags["epochmeter.pid"]), *identity)
            record = Record(tags["epochmeter.folder"])
        except (KeyError, ValueError):  # not written by `publish`
            continue
        if is_alive(process):
            continue
        with suppress(Exception):  # one bad record must not block the next run
            if RunFolder(record.folder).run.record_id == tags[RECORD_ID]:
                publish(record, store)
                continue
        store.client.set_terminated(run.info.run_id, "KILLED")


def records_below(folder: Path) -> list[Record]:
    """Return the record in a folder, or those of the runs and sweeps below it, without superseded attempts.

    They are in the order in which the sweeps were started last.
    """
    with suppress(OSError):  # such as a name that is too long
        key_of = cache(start_key)

        def order(path: Path) -> tuple[StartKey, list[tuple[int, str]]]:
            return max(map(key_of, path.parents)), [(len(name), name) for name in path.parts]  # 9 before 10

        records = [Record(path.parent) for path in sorted(folder.glob(f"**/{JOB_FILE}"), key=order)]
        return [record for record in records if not is_superseded(record)]
    return []


def _find_or_create_run(folder: RunFolder, store: Store) -> "Run":
    """Return the MLflow run of the record; delete duplicates of a server that created a run after the timeout."""
    run = folder.run
    query = f"tags.`{RECORD_ID}` = '{run.record_id}'"
    matches = sorted(store.client.search_runs([store.experiment_id], query), key=lambda match: match.info.run_id)
    for duplicate in matches[1:]:
        store.client.delete_run(duplicate.info.run_id)
    if matches:
        return matches[0]
    name = printable(f"rehearsal {run.name}" if run.rehearsal else run.name)
    tags = {**run_export.run_tags(folder), SWEEPS: quote(run.sweep_id or "")}
    return store.client.create_run(store.experiment_id, _ms(started_s(folder)), tags, name)


def _delete_replaced(folder: RunFolder, store: Store, replaced: Path | None = None) -> None:
    """Delete the runs in MLflow of incomplete attempts in a run's folder, or another one, which this run replaces."""
    path = str((replaced or folder.path).resolve())
    mark = '"' if "'" in path else "'"
    if mark in path:  # MLflow's query language cannot express both
        return
    query = f"tags.`epochmeter.folder` = {mark}{path}{mark} and attributes.status != 'FINISHED'"
    for run in store.client.search_runs([store.experiment_id], query):
        if run.data.tags[RECORD_ID] != folder.run.record_id:
            store.client.delete_run(run.info.run_id)


def _log_metadata(folder: RunFolder, store: Store, run: "Run") -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

    expected = run_export.run_tags(folder)
    params = [Param(*item) for item in run_export.run_params(folder).items() if item[0] not in run.data.params]
    tags = [RunTag(*item) for item in expected.items() if item not in run.data.tags.items()]
    for first in range(0, len(params), MAX_BATCH):
        store.client.log_batch(run.info.run_id, params=params[first : first + MAX_BATCH])
    if tags:
        store.client.log_batch(run.info.run_id, tags=tags)
    kept = (*expected, WINDOWS, SWEEPS, *([SUMMARY] if folder.summary else []))
    for tag in run.data.tags:
        if tag.startswith("epochmeter.") and tag not in kept:  # of an earlier end or window
            store.client.delete_tag(run.info.run_id, tag)
    dataset = run_export.dataset_fields(folder)
    if dataset and not (run.inputs and run.inputs.dataset_inputs):
        dataset_input = DatasetInput(Dataset(**dataset), [InputTag("mlflow.data.context", "training")])
        store.client.log_inputs(run.info.run_id, [dataset_input])


def _log_metrics(points: Iterable[Scalar], tag: tuple[str, str], store: Store, run: "Run") -> None:
    """Log points, and then the tag that they are published; MLflow ignores points that are repeated."""
    from mlflow.entities import Metric, RunTag

    metrics = [Metric(*point) for point in points]
    while len(metrics) >= MAX_ENTITIES:  # the last batch also has the tag
        store.client.log_batch(run.info.run_id, metrics[:MAX_ENTITIES])
        metrics = metrics[MAX_ENTITIES:]
    store.client.log_batch(run.info.run_id, metrics, tags=[RunTag(*tag)])


def _log_files(folder: Path, store: Store, run: "Run") -> None:
    uploaded = {file.path: file.file_size for file in store.client.list_artifacts(run.info.run_id)}
    for path in complete_files(folder):
        if uploaded.get(path.name) != path.lstat().st_size:
            with opened_under_name(path) as opened:
                store.client.log_artifact(run.info.run_id, str(opened))


@contextmanager
def opened_under_name(path: Path) -> Iterator[Path]:
    """Open a file of a record, and yield a path of the same name that refers to this file, whatever replaces it."""
    with open_file(path) as file, TemporaryDirectory(prefix="epochmeter-") as folder:
        opened = Path(folder, path.name)
        opened.symlink_to(path_of_descriptor(file.fileno()))
        yield opened


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
