"""The run folder: plain files, which are the source of truth for everything else. docs/run-folder.md lists them.

A crash at any time leaves a readable folder. JSON files are written atomically, lines and rows are only appended, and
`job.json` is the first file moved away and the last one moved in: a folder without it holds no run. Everything written
is flushed to disk, between windows, so that a power cut loses no more than a crash. See `atomic_files`.
"""

import array
import contextlib
import datetime
import itertools
import json
import os
import pathlib
import zipfile
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, TypeVar, Union

from epochmeter.shared.atomic_files import (
    LOCK_NAME,
    append_to,
    fsync_folder,
    lock_folder,
    write_atomically,
    write_json,
)
from epochmeter.shared.record_files import MAX_JSON_BYTES, open_file, parse_json, read_bytes, read_document
from epochmeter.shared.renamed import current_keys, current_metrics
from epochmeter.shared.types import Document, FloatArray, StrPath

INTERVALS = ("gap_s", "host_wait_s", "copy_s", "compute_s")
"""Columns of `steps.bin`: 32-bit floats in seconds, one row per step, epoch after epoch."""
ROW_FILES = {"steps.bin": len(INTERVALS), "losses.bin": 1}  # binary files of the steps, and their columns
RANK_INTERVALS = ("gap_s", "stall_s", "busy_s", "communication_s")
"""Columns of `ranks.bin`, likewise: one row per step and rank. The device is idle in the gap, of which `stall_s` is the
wait for data. Copy and compute are `busy_s`. The exposed communication is a part of gap and busy time."""
RANKS_FILE = "ranks.bin"
COLUMNS = {**ROW_FILES, RANKS_FILE: len(RANK_INTERVALS)}
JOB_FILE, HOST_FILE, WINDOWS_FILE = "job.json", "host.json", "epochs.jsonl"
SUMMARY_FILE, COMPLETED_FILE = "summary.json", "completed.json"  # written at the end
REFERENCE_FILE = "reused.json"  # in place of a record, in the folder of a reused run
SCHEMA = 1  # version of the record's format in `job.json`; absent means 1
POWER, GAUGES = TIME_SERIES = ("power.csv", "gauges.csv")  # samples over time, whose clock starts at boot
THROTTLING_COLUMN, NOT_THROTTLED = "throttling", "none"
"""Column of `gauges.csv` with the causes of throttling, and its content without any."""
MEMORY, NCU_CSV, TRACE, TRACE_ANALYSIS = "memory.json", "ncu.csv", "trace.json.gz", "trace_analysis.json"
PROGRESS, MAX_PROGRESS_BYTES = "progress.jsonl", 2**16
"""File of the open epoch, and the size above which it is truncated. Lines are appended, since a file that is replaced
twice per second would be written to the disk as often."""
WORKER_LOG = "worker.log"  # output of the training process, with the traceback of an error
PERFETTO = "perfetto.json.gz"  # derived from the record: its windows, steps, samples and trace on one clock
CHECKPOINT = "checkpoint.pt"
CHECKPOINTS = (CHECKPOINT, "." + CHECKPOINT)  # the checkpoint, and the partial next one of a killed writer
CHECKPOINT_METADATA = "archive/epochmeter.json"  # entry of the zip file that torch writes
Cell = Union[str, float, None]  # of `gauges.csv`
AnyWindow = TypeVar("AnyWindow", bound=Document)


class Record:
    """Read and write a run folder."""

    def __init__(self, folder: StrPath) -> None:
        self.folder = pathlib.Path(folder)

    def job(self) -> Document:
        job: Dict[str, Any] = read_document(self.folder / JOB_FILE)["job"]
        return current_keys(job)

    def run(self) -> Document:
        """Return the run's metadata as in the file; the controller reads them by `results.run_info.read_run`."""
        run: Document = read_document(self.folder / JOB_FILE)["run"]
        return run

    def host(self) -> Document:
        host: Document = read_document(self.folder / HOST_FILE)
        return host

    def summary(self) -> Optional[Document]:
        summary = self._read_if_present(SUMMARY_FILE)
        for part in (summary, *(_listed(summary, "trainings"))):
            _rename_metrics(part)
        return summary

    def trace_analysis(self) -> Optional[Document]:
        return self._read_if_present(TRACE_ANALYSIS)

    def _read_if_present(self, name: str) -> Optional[Document]:
        """Return a JSON file's content, or None without the file, as before the run has ended."""
        path = self.folder / name
        document: Optional[Document] = read_document(path) if path.exists() else None
        return document

    def windows(self) -> List[Document]:
        """Return the closed windows in order, without a truncated last line: its number would be a different one."""
        path = self.folder / WINDOWS_FILE
        if not path.exists():
            return []
        with open_file(path) as lines:
            windows = [parse_json(line) for line in lines if line.endswith(b"\n")]
        for window in windows:
            if not isinstance(window, dict):
                raise ValueError("{}: a line is no object".format(WINDOWS_FILE))
            _rename_metrics(window)
        return windows

    def is_completed(self, identity: Optional[str] = None) -> bool:
        with contextlib.suppress(OSError, ValueError):
            if (self.folder / JOB_FILE).exists():
                completion = read_document(self.folder / COMPLETED_FILE)
                return identity is None or bool(completion["identity"] == identity)
        return False

    def describe(self, job: Document, run: Document, durably: bool = True) -> None:
        write_json(self.folder / JOB_FILE, {"schema": SCHEMA, "job": job, "run": run}, durably=durably)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run folder: one process at a time starts the run, closes it, or creates its MLflow run."""
        descriptor = lock_folder(self.folder)
        try:
            yield
        finally:
            os.close(descriptor)

    def append(self, window: Document) -> None:
        """Append a closed window, after its steps."""
        with append_to(self.folder / WINDOWS_FILE) as lines:
            lines.write((json.dumps(window) + "\n").encode("utf-8"))

    def renumber_trainings(self, numbers: Sequence[int]) -> None:
        """Replace the number of each window's training by the entry of `numbers` at its place."""
        windows = [
            dict(window, training=numbers[training_of(window)]) if "training" in window else window
            for window in self.windows()
        ]
        self._write_windows(windows)

    def _write_windows(self, windows: Iterable[Document]) -> None:
        lines = [json.dumps(window) + "\n" for window in windows]
        write_atomically(self.folder / WINDOWS_FILE, lambda file: file.writelines(lines))

    def write_summary(self, summary: Document, identity: str) -> None:
        """Write the summary and then, for a completed run, `completed.json` with its identity."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        write_json(self.folder / SUMMARY_FILE, summary)
        if summary["state"] == "completed":
            finished = summary.get("ended", now)
            write_json(self.folder / COMPLETED_FILE, {"identity": identity, "finished": finished})
            with contextlib.suppress(FileNotFoundError):
                (self.folder / CHECKPOINT).unlink()

    def checkpoint(self, verify: bool = False) -> Optional[Document]:
        """Return the checkpoint's metadata: `record_id` of its run, and completed `epochs`; None if it is unreadable.

        With `verify`, all of its content is compared with its checksums.
        """
        try:
            with open_file(self.folder / CHECKPOINT, max_bytes=None) as file, zipfile.ZipFile(file) as archive:
                is_damaged = verify and archive.testzip()
                if is_damaged or archive.getinfo(CHECKPOINT_METADATA).file_size > MAX_JSON_BYTES:
                    return None
                metadata: Document = parse_json(archive.read(CHECKPOINT_METADATA))
                return metadata
        except (OSError, ValueError, EOFError, KeyError, RuntimeError, zlib.error, zipfile.BadZipFile):
            return None

    def truncate_to_epoch(self, epochs: int, also: Sequence[str] = ()) -> None:
        """Delete measurements after the checkpoint of `epochs` epochs; archive the end's files, and those in `also`."""
        self._keep(before_checkpoint(self.windows(), epochs))
        for path in (self.folder / name for name in TIME_SERIES):
            if path.exists():  # drop a truncated line
                os.truncate(path, read_bytes(path, max_bytes=None).rfind(b"\n") + 1)
        ends = [self.folder / name for name in (SUMMARY_FILE, WORKER_LOG, PROGRESS, *also)]
        self._archive_files([path for path in ends if path.exists()], self._attempt_count() + 1)

    def drop_incomplete(self) -> None:
        """Delete what a killed writer has written in part: a line without an end, and steps of no closed window."""
        self._keep(self.windows())

    def _keep(self, windows: Sequence[Document]) -> None:
        """Delete all other windows, and the rows of their steps."""
        self._write_windows(windows)
        for name, columns in ROW_FILES.items():
            path = self.folder / name
            if path.exists():  # a script has no losses
                os.truncate(path, step_count(windows) * columns * array.array("f").itemsize)
        path = self.folder / RANKS_FILE
        if path.exists():
            os.truncate(path, rank_row_count(windows) * len(RANK_INTERVALS) * array.array("f").itemsize)

    def archive_attempt(self) -> None:
        """Delete an attempt's checkpoint, and move its other files to a new folder, or finish an interrupted move."""
        entries = [path for path in self.folder.iterdir() if not path.name.startswith(("attempt", LOCK_NAME))]
        files = [path for path in entries if path.name not in CHECKPOINTS]
        files.sort(key=lambda path: path.name != JOB_FILE)  # moved first: without it, the rest is not a run
        attempts = self._attempt_count()
        last = self.folder / f"attempt{attempts}"
        is_interrupted = attempts and not any(path.name == JOB_FILE or (last / path.name).exists() for path in files)
        self._archive_files(files, attempts if is_interrupted else attempts + 1)
        for path in entries:
            if path.name in CHECKPOINTS:  # last: until job.json is moved, the run can resume from it
                path.unlink()

    def attempts(self) -> "List[Record]":
        return [Record(path.parent) for path in sorted(self.folder.glob(f"attempt*/{JOB_FILE}"))]

    def _attempt_count(self) -> int:
        return next(number for number in itertools.count() if not (self.folder / f"attempt{number + 1}").exists())

    def _archive_files(self, files: Sequence[pathlib.Path], number: int) -> None:
        if files:
            attempt = self.folder / f"attempt{number}"
            attempt.mkdir(exist_ok=True)
            for path in files:
                path.rename(attempt / path.name)
            fsync_folder(self.folder)

    def append_steps(self, rows: FloatArray, durably: bool = True) -> None:
        """Append an `array('f')` of rows of `INTERVALS`, on disk when this returns if `durably`."""
        with append_to(self.folder / "steps.bin", durably) as file:
            rows.tofile(file)

    def flush_steps(self) -> None:
        """Wait until all appended steps, and the name of their file, are on disk."""
        path = self.folder / "steps.bin"
        if path.exists():
            with append_to(path):
                fsync_folder(self.folder)

    def steps(self, since: int = 0, count: Optional[int] = None) -> FloatArray:
        """Return the rows of `INTERVALS` after the first `since`, at most `count`, as one flat array."""
        return self._read_rows("steps.bin", since, count)

    def append_losses(self, losses: FloatArray) -> None:
        """Append an `array('f')` with the loss of each step."""
        with append_to(self.folder / "losses.bin") as file:
            losses.tofile(file)

    def losses(self, since: int = 0) -> FloatArray:
        """Return the loss of each step after the first `since`."""
        return self._read_rows("losses.bin", since)

    def append_rank_rows(self, rows: FloatArray) -> None:
        """Append an `array('f')` of rows of `RANK_INTERVALS` of one epoch: those of the first rank, then the others."""
        if rows:
            with append_to(self.folder / RANKS_FILE) as file:
                rows.tofile(file)

    def rank_rows(self, since: int = 0, count: Optional[int] = None) -> FloatArray:
        """Return the rows of `RANK_INTERVALS` after the first `since`, at most `count`, as one flat array."""
        return self._read_rows(RANKS_FILE, since, count)

    def _read_rows(self, name: str, since: int, count: Optional[int] = None) -> FloatArray:
        rows: FloatArray = array.array("f")
        remaining = max(0, self._row_count(name) - since)
        if remaining:
            with open_file(self.folder / name) as file:
                file.seek(rows.itemsize * COLUMNS[name] * since)
                rows.fromfile(file, COLUMNS[name] * (remaining if count is None else min(count, remaining)))
        return rows

    def _row_count(self, name: str) -> int:
        path = self.folder / name
        return path.stat().st_size // (array.array("f").itemsize * COLUMNS[name]) if path.exists() else 0

    def is_complete(self, windows: Sequence[Document], epochs: int, evaluate: bool) -> bool:
        """Return whether these are all windows of this many epochs, and the files have their steps and losses.

        The last evaluation may be missing, if its epoch was ended before its last step.
        """
        names = ("epoch", "val") if evaluate else ("epoch",)
        expected = [(name, epoch) for epoch in range(epochs) for name in names]
        measured = [(window["window"], window["epoch"]) for window in windows]
        rows = min(map(self._row_count, ROW_FILES))
        return rows >= step_count(windows) and measured in (expected, expected[:-1] if evaluate else expected)

    def append_power(self, times_ns: Sequence[int], watts: Mapping[str, Iterable[float]]) -> None:
        """Append samples; `watts` has the values by domain, with NaN if a value was not read."""
        if times_ns:
            columns = ["monotonic_ns"] + [name + "_w" for name in watts]
            rows = zip(map(str, times_ns), *(map(_watts, values) for values in watts.values()))
            self._append_rows(POWER, columns, (dict(zip(columns, row)) for row in rows))

    def append_gauges(self, columns: Sequence[str], rows: Iterable[Mapping[str, Cell]], durably: bool = True) -> None:
        """Append rows, cells by column, which may be None or absent."""
        texts = ({name: _cell(value) for name, value in row.items()} for row in rows)
        self._append_rows(GAUGES, columns, texts, durably)

    def append_progress(self, progress: Document) -> None:
        """Append the state of the open epoch; a full disk is ignored."""
        with contextlib.suppress(OSError), open(self.folder / PROGRESS, "ab") as file:
            if file.tell() > MAX_PROGRESS_BYTES:
                file.truncate(0)
            file.write((json.dumps(progress) + "\n").encode("utf-8"))

    def end_progress(self) -> None:
        with contextlib.suppress(OSError):
            (self.folder / PROGRESS).unlink()

    def _append_rows(
        self, name: str, columns: Sequence[str], rows: Iterable[Dict[str, str]], durably: bool = True
    ) -> None:
        """Append rows of texts by column; a file of a resumed run keeps its columns."""
        path = self.folder / name
        lines: List[Sequence[str]] = []
        if path.exists() and path.stat().st_size > 0:  # a crash may have left an empty file
            with open_file(path) as file:
                columns = file.readline().decode("utf-8").rstrip("\n").split(",")
        else:
            lines.append(columns)
        lines += ([row.get(column, "") for column in columns] for row in rows)
        with append_to(path, durably) as file:
            file.write("".join(",".join(line) + "\n" for line in lines).encode("utf-8"))


def step_count(windows: Iterable[Document]) -> int:
    return int(sum(window["metrics"].get("epoch/steps", 0) for window in windows))


def rank_row_count(windows: Iterable[Document]) -> int:
    """Return the number of rows of `ranks.bin` that windows have; `rank_steps` is that of each of their ranks."""
    return sum(len(window["of_ranks"]) * window["rank_steps"] for window in windows if window.get("rank_steps"))


def before_checkpoint(windows: Iterable[AnyWindow], epochs: int) -> List[AnyWindow]:
    """Return the windows before the checkpoint of this many epochs: the evaluation of the last one follows it."""
    return [window for window in windows if window["epoch"] < epochs - (window["window"] == "val")]


def is_steady(epoch: Document) -> bool:
    """Return whether an epoch is complete, not suspended, and no warm-up (the first after a start or resumption)."""
    return not (epoch.get("warmup") or epoch.get("paused") or is_partial(epoch))


def training_of(window: Document) -> int:
    """Return the number of the training that a window belongs to: only scripts may have several in one run."""
    return int(window.get("training", 0))


def is_partial(window: Document) -> bool:
    return bool(window.get("partial", False))


def _watts(value: float) -> str:
    return "" if value != value else f"{value:.4f}"


def _cell(value: Cell) -> str:
    """Return a cell with at least six digits, and all those before the decimal point."""
    if value is None or isinstance(value, str):
        return value or ""
    return str(round(value)) if abs(value) >= 1e5 else f"{value:.6g}"


def _listed(document: Optional[Document], key: str) -> List[Any]:
    """Return a list in a document that may be damaged; empty if there is none."""
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, list) else []


def _rename_metrics(document: object) -> None:
    """Give the metrics of a window or a summary, which may be damaged, their new names."""
    if isinstance(document, dict) and isinstance(document.get("metrics"), dict):
        document["metrics"] = current_metrics(document["metrics"])
