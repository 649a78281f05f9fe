"""The record of a run: a folder of plain files, which is the truth that everything else is an index of.

    job.json      the composed job, and what is known of this run of it
    host.json     what the machine is
    epochs.jsonl  a line for each window: what was measured, and what there is to say of it
    steps.bin     the intervals of each step
    losses.bin    the loss of each step
    power.csv     sampled power, where something samples it
    checkpoint.pt what the run goes on from, should it be ended before its end; gone once it is whole
    summary.json  means, spreads, totals, and how the run ended
    whole.json    written last: the job was measured to its end

Wherever a crash breaks off what writes here, the folder has one state that can be read. A file of JSON is there whole
or not at all, lines and rows are only ever added, and `job.json` is the first that leaves and the last that comes:
without it, whatever else lies there tells of no run. What has been written is on the disk, so that a power cut is no
worse than a crash; all of that is waited for between windows. See `atomic_files`.

Runs on a board's own Python: 3.6 and the standard library.
"""

import array
import contextlib
import datetime
import json
import os
import pathlib
import sys
import zipfile

from epochmeter.shared.atomic_files import LOCK, added, hold, read_json, sync, write_json, write_whole

INTERVALS = ("gap_s", "host_wait_s", "copy_s", "compute_s")
"""The columns of `steps.bin`: little-endian 32-bit floats, one row a step, epoch after epoch."""
SCHEMA = 1
"""What `job.json` says of the form of the record; one that says nothing is of the first."""
CHECKPOINT = "checkpoint.pt"
CHECKPOINTS = (CHECKPOINT, "." + CHECKPOINT)
"""It, and what a writer that was killed has left of the next one."""
CHECKPOINT_TOLD = "archive/epochmeter.json"
"""What a checkpoint tells of itself, among the entries of the zip file that torch makes of it."""


class Record:
    """A run's folder, read and written."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def job(self):
        return read_json(self.folder / "job.json")["job"]

    def run(self):
        """What is known of this run beside its job: sweep, number, identity, rehearsal, energy, dataset."""
        return read_json(self.folder / "job.json")["run"]

    def host(self):
        return read_json(self.folder / "host.json")

    def summary(self):
        """The summary, or None while the run has none."""
        path = self.folder / "summary.json"
        return read_json(path) if path.exists() else None

    def windows(self):
        """The closed windows in order; a last line that was cut short is left out."""
        path = self.folder / "epochs.jsonl"
        if not path.exists():
            return []
        with open(str(path), encoding="utf-8") as lines:
            return [json.loads(line) for line in _whole_lines(lines)]

    def is_whole(self, identity=None):
        """Whether the run was measured to its end, and, where an identity is given, is that very job's."""
        try:
            if not (self.folder / "job.json").exists():
                return False
            whole = read_json(self.folder / "whole.json")
        except (OSError, ValueError):
            return False
        return identity is None or whole["identity"] == identity

    def describe(self, job, run):
        write_json(self.folder / "job.json", {"schema": SCHEMA, "job": job, "run": run})

    @contextlib.contextmanager
    def alone(self):
        """Has one process at a time begin this run, close it for one that died, or make its place in MLflow."""
        descriptor = hold(self.folder)
        try:
            yield
        finally:
            os.close(descriptor)

    def append(self, window):
        """Adds a closed window, whose steps were added before; it is on the disk when this returns."""
        with added(self.folder / "epochs.jsonl") as lines:
            lines.write((json.dumps(window) + "\n").encode("utf-8"))

    def conclude(self, summary, identity, configuration=None):
        """Write the summary and then, for a completed run, `whole.json`.

        `configuration` is the identity of the first repeat of the same configuration, by which other sweeps find it.
        """
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        write_json(self.folder / "summary.json", summary)
        if summary["state"] == "whole":
            kind = {"configuration": configuration} if configuration else {}
            write_json(self.folder / "whole.json", {"identity": identity, "finished": now, **kind})
            if (self.folder / CHECKPOINT).exists():
                (self.folder / CHECKPOINT).unlink()

    def checkpoint(self):
        """What the checkpoint tells: the `record_id` of its run and how many `epochs` that had trained.

        None where there is no checkpoint, or none that can be opened.
        """
        try:
            with zipfile.ZipFile(str(self.folder / CHECKPOINT)) as archive:
                return json.loads(archive.read(CHECKPOINT_TOLD).decode("utf-8"))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None

    def cut(self, epochs, also=()):
        """Goes back to where so many epochs were measured.

        What was measured since is gone; what told of an end that was none is set aside, and files that are named also.
        """
        kept = [window for window in self.windows() if window["epoch"] < epochs]
        steps = steps_of(kept)
        lines = [json.dumps(window) + "\n" for window in kept]
        write_whole(self.folder / "epochs.jsonl", lambda file: file.writelines(lines))
        for name, columns in (("steps.bin", len(INTERVALS)), ("losses.bin", 1)):
            os.truncate(str(self.folder / name), steps * columns * array.array("f").itemsize)
        power = self.folder / "power.csv"
        if power.exists():  # what is added must not begin in the middle of a line
            os.truncate(str(power), power.read_bytes().rfind(b"\n") + 1)
        ends = [self.folder / name for name in ("summary.json", "worker.log", *also)]
        self._aside([path for path in ends if path.exists()], self._new_attempt())

    def set_aside(self):
        """Moves what an earlier attempt left here into a folder of its own: nothing measured is lost, nothing is mixed.

        Its checkpoint is removed: nothing goes on from there. What an earlier call that was broken off has left here
        follows the rest to where that is.
        """
        there = [path for path in self.folder.iterdir() if not path.name.startswith(("attempt", LOCK))]
        left = [path for path in there if path.name not in CHECKPOINTS]
        left.sort(key=lambda path: path.name != "job.json")  # the first to go: what is left then tells of no run
        new = self._new_attempt()
        last = new.with_name("attempt{}".format(int(new.name[len("attempt") :]) - 1))
        broken_off = last.exists() and not any(path.name == "job.json" or (last / path.name).exists() for path in left)
        self._aside(left, last if broken_off else new)
        for path in there:
            if path.name in CHECKPOINTS:  # last: until its job has left, a run may go on from it
                path.unlink()

    def attempts(self):
        """The records that earlier attempts have left."""
        return [Record(path.parent) for path in sorted(self.folder.glob("attempt*/job.json"))]

    def _new_attempt(self):
        attempt = 1
        while (self.folder / f"attempt{attempt}").exists():
            attempt += 1
        return self.folder / f"attempt{attempt}"

    def _aside(self, left, attempt):
        if left:
            attempt.mkdir(exist_ok=True)
            for path in left:
                path.rename(attempt / path.name)
            sync(self.folder)

    def append_steps(self, rows):
        """Adds an epoch's steps: an `array('f')` of rows of `INTERVALS`."""
        with added(self.folder / "steps.bin") as file:
            _little_endian(rows).tofile(file)

    def steps(self):
        """All rows of `INTERVALS` as one flat `array('f')`."""
        return self._last(None)

    def last_steps(self, count):
        """The last `count` rows."""
        return self._last(count)

    def append_losses(self, losses):
        """Adds an epoch's losses: an `array('f')` of one for each row of its steps."""
        with added(self.folder / "losses.bin") as file:
            _little_endian(losses).tofile(file)

    def losses(self, since=0):
        """The loss of each step but the first so many, epoch after epoch, as an `array('f')`."""
        losses = array.array("f")
        path = self.folder / "losses.bin"
        if path.exists():
            with open(str(path), "rb") as file:
                file.seek(losses.itemsize * since)
                there = path.stat().st_size // losses.itemsize
                losses.fromfile(file, max(0, there - since))
        return _little_endian(losses)

    def append_power(self, times_ns, watts):
        """Adds samples of power: their moments, and columns of watts by domain; NaN, where one was not read, is empty.

        The columns are the same each time.
        """
        if not times_ns:
            return
        path = self.folder / "power.csv"
        begun = path.exists() and path.stat().st_size  # a crash may have cut the line of its columns off
        lines = [] if begun else [",".join(["monotonic_ns"] + [name + "_w" for name in watts]) + "\n"]
        for row in zip(times_ns, *watts.values()):
            lines.append(",".join([str(row[0])] + ["" if w != w else f"{w:.4f}" for w in row[1:]]) + "\n")
        with added(path) as file:
            file.write("".join(lines).encode("utf-8"))

    def _last(self, count):
        rows = array.array("f")
        path = self.folder / "steps.bin"
        if not path.exists():
            return rows
        row_bytes = rows.itemsize * len(INTERVALS)
        there = path.stat().st_size // row_bytes
        wanted = there if count is None else min(count, there)
        with open(str(path), "rb") as file:
            file.seek(row_bytes * (there - wanted))
            rows.fromfile(file, len(INTERVALS) * wanted)
        return _little_endian(rows)


def steps_of(windows):
    """How many rows of `steps.bin` and `losses.bin` are those of these windows."""
    return int(sum(window["metrics"].get("epoch/steps", 0) for window in windows))


def has_all_windows(measured, epochs, evaluate):
    """Return whether the (name, epoch) pairs are all windows of this many epochs.

    The last epoch may lack its evaluation, if it was ended before its last step.
    """
    names = ("epoch", "val") if evaluate else ("epoch",)
    wanted = [(name, epoch) for epoch in range(epochs) for name in names]
    return list(measured) in (wanted, wanted[:-1] if evaluate else wanted)


def since_resumed(run, epoch):
    """Return the entry of the start (the first, or a resumption) that measured this epoch, with its own clock."""
    starts = [run] + [start for start in run.get("resumed", []) if start["epoch"] <= epoch]
    return starts[-1]


def is_steady(epoch):
    """Whether nothing is known of an epoch's window that makes it unlike the others: that it is the first after the run
    was resumed, was ended in part, or that the run was paused in it."""
    return not (epoch.get("warmup") or epoch.get("paused") or is_partial(epoch))


def is_partial(window):
    """Whether a window's epoch was ended before its last step."""
    return window.get("partial", False)


def _whole_lines(lines):
    """Those that were written to their end: a number that was cut short would be another number."""
    return (line for line in lines if line.endswith("\n"))


def _little_endian(rows):
    if sys.byteorder == "big":
        rows = array.array(rows.typecode, rows)
        rows.byteswap()
    return rows
