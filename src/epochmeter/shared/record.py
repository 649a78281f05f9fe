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

from epochmeter.shared.atomic_files import (
    LOCK_NAME,
    append_to,
    fsync_folder,
    lock_folder,
    read_json,
    write_atomically,
    write_json,
)

INTERVALS = ("gap_s", "host_wait_s", "copy_s", "compute_s")
"""Columns of `steps.bin`: 32-bit floats in seconds, one row per step, epoch after epoch."""
ROW_FILES = {"steps.bin": len(INTERVALS), "losses.bin": 1}  # binary files of the steps, and their columns
SCHEMA = 1  # version of the record's format in `job.json`; absent means 1
POWER, GAUGES = TIME_SERIES = ("power.csv", "gauges.csv")  # samples over time, whose clock starts at boot
THROTTLING_COLUMN, NOT_THROTTLED = "throttling", "none"
"""Column of `gauges.csv` with the causes of throttling, and its content without any."""
MEMORY, NCU_CSV, TRACE, TRACE_ANALYSIS = "memory.json", "ncu.csv", "trace.json.gz", "trace_analysis.json"
PROGRESS, MAX_PROGRESS_BYTES = "progress.jsonl", 2**16
"""File of the open epoch, and the size above which it is truncated. Lines are appended, since a file that is replaced
twice per second would be written to the disk as often."""
PERFETTO = "perfetto.json.gz"  # derived from the record: its windows, steps, samples and trace on one clock
CHECKPOINT = "checkpoint.pt"
CHECKPOINTS = (CHECKPOINT, "." + CHECKPOINT)  # the checkpoint, and the partial next one of a killed writer
CHECKPOINT_METADATA = "archive/epochmeter.json"  # entry of the zip file that torch writes


class Record:
    """Read and write a run folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def job(self):
        return read_json(self.folder / "job.json")["job"]

    def run(self):
        return read_json(self.folder / "job.json")["run"]

    def host(self):
        return read_json(self.folder / "host.json")

    def summary(self):
        return self._read_if_present("summary.json")

    def trace_analysis(self):
        return self._read_if_present(TRACE_ANALYSIS)

    def _read_if_present(self, name):
        """Return a JSON file's content, or None without the file, as before the run has ended."""
        path = self.folder / name
        return read_json(path) if path.exists() else None

    def windows(self):
        """Return the closed windows in order, without a truncated last line: its number would be a different one."""
        path = self.folder / "epochs.jsonl"
        if not path.exists():
            return []
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.endswith("\n")]

    def is_completed(self, identity=None):
        with contextlib.suppress(OSError, ValueError):
            if (self.folder / "job.json").exists():
                completion = read_json(self.folder / "completed.json")
                return identity is None or completion["identity"] == identity
        return False

    def describe(self, job, run):
        write_json(self.folder / "job.json", {"schema": SCHEMA, "job": job, "run": run})

    @contextlib.contextmanager
    def locked(self):
        """Lock the run folder: one process at a time starts the run, closes it, or creates its MLflow run."""
        descriptor = lock_folder(self.folder)
        try:
            yield
        finally:
            os.close(descriptor)

    def append(self, window):
        """Append a closed window, after its steps."""
        with append_to(self.folder / "epochs.jsonl") as lines:
            lines.write((json.dumps(window) + "\n").encode("utf-8"))

    def write_summary(self, summary, identity):
        """Write the summary and then, for a completed run, `completed.json` with its identity."""
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        write_json(self.folder / "summary.json", summary)
        if summary["state"] == "completed":
            write_json(self.folder / "completed.json", {"identity": identity, "finished": now})
            with contextlib.suppress(FileNotFoundError):
                (self.folder / CHECKPOINT).unlink()

    def checkpoint(self, verify=False):
        """Return the checkpoint's metadata: `record_id` of its run, and completed `epochs`; None if it is unreadable.

        With `verify`, all of its content is compared with its checksums.
        """
        try:
            with zipfile.ZipFile(str(self.folder / CHECKPOINT)) as archive:
                if verify and archive.testzip():
                    return None
                return json.loads(archive.read(CHECKPOINT_METADATA).decode("utf-8"))
        except (OSError, ValueError, EOFError, KeyError, RuntimeError, zlib.error, zipfile.BadZipFile):
            return None

    def truncate_to_epoch(self, epochs, also=()):
        """Delete measurements after `epochs` epochs; archive the files of the premature end, and those in `also`."""
        windows = [window for window in self.windows() if window["epoch"] < epochs]
        lines = [json.dumps(window) + "\n" for window in windows]
        write_atomically(self.folder / "epochs.jsonl", lambda file: file.writelines(lines))
        for name, columns in ROW_FILES.items():
            os.truncate(self.folder / name, step_count(windows) * columns * array.array("f").itemsize)
        for path in (self.folder / name for name in TIME_SERIES):
            if path.exists():  # drop a truncated line
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        ends = [self.folder / name for name in ("summary.json", "worker.log", PROGRESS, *also)]
        self._archive_files([path for path in ends if path.exists()], self._attempt_count() + 1)

    def archive_attempt(self):
        """Delete an attempt's checkpoint, and move its other files to a new folder, or finish an interrupted move."""
        entries = [path for path in self.folder.iterdir() if not path.name.startswith(("attempt", LOCK_NAME))]
        files = [path for path in entries if path.name not in CHECKPOINTS]
        files.sort(key=lambda path: path.name != "job.json")  # moved first: without it, the rest is not a run
        attempts = self._attempt_count()
        last = self.folder / f"attempt{attempts}"
        is_interrupted = attempts and not any(path.name == "job.json" or (last / path.name).exists() for path in files)
        self._archive_files(files, attempts if is_interrupted else attempts + 1)
        for path in entries:
            if path.name in CHECKPOINTS:  # last: until job.json is moved, the run can resume from it
                path.unlink()

    def attempts(self):
        return [Record(path.parent) for path in sorted(self.folder.glob("attempt*/job.json"))]

    def _attempt_count(self):
        return next(number for number in itertools.count() if not (self.folder / f"attempt{number + 1}").exists())

    def _archive_files(self, files, number):
        if files:
            attempt = self.folder / f"attempt{number}"
            attempt.mkdir(exist_ok=True)
            for path in files:
                path.rename(attempt / path.name)
            fsync_folder(self.folder)

    def append_steps(self, rows, durably=True):
        """Append an `array('f')` of rows of `INTERVALS`, on disk when this returns if `durably`."""
        with append_to(self.folder / "steps.bin", durably) as file:
            rows.tofile(file)

    def flush_steps(self):
        """Wait until all appended steps, and the name of their file, are on disk."""
        path = self.folder / "steps.bin"
        if path.exists():
            with append_to(path):
                fsync_folder(self.folder)

    def steps(self, since=0, count=None):
        """Return the rows of `INTERVALS` after the first `since`, at most `count`, as one flat array."""
        return self._read_rows("steps.bin", since, count)

    def append_losses(self, losses):
        """Append an `array('f')` with the loss of each step."""
        with append_to(self.folder / "losses.bin") as file:
            losses.tofile(file)

    def losses(self, since=0):
        """Return the loss of each step after the first `since`."""
        return self._read_rows("losses.bin", since)

    def _read_rows(self, name, since, count=None):
        rows, remaining = array.array("f"), max(0, self._row_count(name) - since)
        if remaining:
            with open(self.folder / name, "rb") as file:
                file.seek(rows.itemsize * ROW_FILES[name] * since)
                rows.fromfile(file, ROW_FILES[name] * (remaining if count is None else min(count, remaining)))
        return rows

    def _row_count(self, name):
        path = self.folder / name
        return path.stat().st_size // (array.array("f").itemsize * ROW_FILES[name]) if path.exists() else 0

    def is_complete(self, windows, epochs, evaluate):
        """Return whether these are all windows of this many epochs, and the files have their steps and losses.

        The last evaluation may be missing, if its epoch was ended before its last step.
        """
        names = ("epoch", "val") if evaluate else ("epoch",)
        expected = [(name, epoch) for epoch in range(epochs) for name in names]
        measured = [(window["window"], window["epoch"]) for window in windows]
        rows = min(map(self._row_count, ROW_FILES))
        return rows >= step_count(windows) and measured in (expected, expected[:-1] if evaluate else expected)

    def append_power(self, times_ns, watts):
        """Append samples; `watts` has the values by domain, with NaN if a value was not read."""
        if times_ns:
            columns = ["monotonic_ns"] + [name + "_w" for name in watts]
            rows = zip(map(str, times_ns), *(map(_watts, values) for values in watts.values()))
            self._append_rows(POWER, columns, (dict(zip(columns, row)) for row in rows))

    def append_gauges(self, columns, rows, durably=True):
        """Append rows, cells by column, which may be None or absent."""
        rows = ({name: _cell(value) for name, value in row.items()} for row in rows)
        self._append_rows(GAUGES, columns, rows, durably)

    def append_progress(self, progress):
        """Append the state of the open epoch; a full disk is ignored."""
        with contextlib.suppress(OSError), open(self.folder / PROGRESS, "ab") as file:
            if file.tell() > MAX_PROGRESS_BYTES:
                file.truncate(0)
            file.write((json.dumps(progress) + "\n").encode("utf-8"))

    def end_progress(self):
        with contextlib.suppress(OSError):
            (self.folder / PROGRESS).unlink()

    def _append_rows(self, name, columns, rows, durably=True):
        """Append rows of texts by column; a file of a resumed run keeps its columns."""
        path, lines = self.folder / name, []
        if path.exists() and path.stat().st_size > 0:  # a crash may have left an empty file
            with open(path, encoding="utf-8") as file:
                columns = file.readline().rstrip("\n").split(",")
        else:
            lines.append(columns)
        lines += ([row.get(column, "") for column in columns] for row in rows)
        with append_to(path, durably) as file:
            file.write("".join(",".join(line) + "\n" for line in lines).encode("utf-8"))


def step_count(windows):
    return int(sum(window["metrics"].get("epoch/steps", 0) for window in windows))


def since_resumed(run, epoch):
    """Return the metadata of the start (the first, or a resumption) that measured this epoch; each has its clock."""
    return [run, *(start for start in run.get("resumed", []) if start["epoch"] <= epoch)][-1]


def is_steady(epoch):
    """Return whether an epoch is complete, not suspended, and no warm-up (the first after a start or resumption)."""
    return not (epoch.get("warmup") or epoch.get("paused") or is_partial(epoch))


def is_partial(window):
    return window.get("partial", False)


def _watts(value):
    return "" if value != value else f"{value:.4f}"


def _cell(value):
    """Return a cell with at least six digits, and all those before the decimal point."""
    if value is None or isinstance(value, str):
        return value or ""
    return str(round(value)) if abs(value) >= 1e5 else f"{value:.6g}"
