"""How costs grow with the size of the work: the time and memory of each operation at several sizes, with the exponent.

    PYTHONPATH=src:tests:benchmarks python benchmarks/cost/scale.py [full] [ROW ...]

The largest size of each row is measured with `full` only: it needs an hour, 6 GB of memory and 20 GB of disk. Other
words select the rows whose names contain one of them.

Each row is an operation that depends on one size, such as the epochs of a run. The cost of a total, such as a report,
should grow in proportion to the size (exponent 1). The cost of one more, such as the publication of one more epoch,
should not depend on the earlier ones (exponent 0). The exponent is the slope of the cost over the size, both as
logarithms, from the last but one to the last size: a constant part counts least there. Costs are processor time, so
that other load disturbs less. Each size has a process of its own.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common.jobs import trained
from common.output import ARGUMENTS, print_table, sized

from epochmeter.config.installation import ROOT
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.record import INTERVALS, RANK_INTERVALS, Record

Call = Callable[[], object]
Prepare = Callable[[int, Path], Call]
REAL = ["model=lenet", "dataset=digits", "batch=64", "workers=0", "epochs=3", "cache=keep", "profiler=none"]
REPEATS = 3  # of each configuration of a sweep
TIMES = 5  # calls of an operation for one more, of which the median counts
TOLERANCE = 0.2  # of an exponent
SMALLEST_S = 1e-4  # shorter times count as this one: they do not matter, and their noise has no exponent
SHORT = 100  # divides all sizes in a short run
SWEEP = "2026-01-01_00-00-00-10000000"
COLUMNS = ("operation", "size", "of", "sizes", "seconds", "MB more", "exponent", "linear")


@dataclass(frozen=True)
class Row:
    """A cost.

    Attributes:
        name: Operation.
        of: What the sizes count.
        sizes: Ascending sizes, each a process.
        prepare: Prepares the operation at a size in an empty folder, and returns it.
        is_each: Whether the operation is for one more, whose cost should not grow.
        reason: Why the cost grows more than it should; empty if it should not.
    """

    name: str
    of: str
    sizes: Sequence[int]
    prepare: Prepare
    is_each: bool = False
    reason: str = ""

    @property
    def expected(self) -> int:
        return 0 if self.is_each else 1


# Steps of an epoch.


def timed_steps(steps: int, folder: Path) -> Call:
    """Time the steps of an epoch, which do nothing."""
    from epochmeter.worker.clock import Clock
    from epochmeter.worker.timeline import HostTimeline

    def train() -> None:
        clock = Clock(HostTimeline())
        clock.open()
        for _ in clock.batches(range(steps), lambda batch: batch):
            pass
        clock.close()
        clock.parts()

    return train


def border(steps: int, folder: Path) -> Call:
    """Record an epoch of many steps, between its last step and the first one of the next epoch."""
    from epochmeter.results.summary import step_percentiles

    record, rows = Record(folder), array("f", [0.001, 0.001, 0.0, 0.003]) * steps
    for place in range(0, len(rows), 4 * 97):  # steps of different lengths
        rows[place + 3] += place % 7 * 1e-4

    def close() -> None:
        record.append_steps(rows)
        step_percentiles(record.steps(0, steps))

    return close


# Epochs of a run.


def long_run(epochs: int, folder: Path, **ended: Any) -> Record:
    """Write the record of a run of many epochs, copies of the last one of a real run."""
    real = Record(REAL_RECORD)
    described, windows = read_json(real.folder / "job.json"), real.windows()
    last = [window for window in windows if window["epoch"] == windows[-1]["epoch"]]
    run = {**described["run"], "sweep_id": folder.parent.name, "record_id": f"{folder.parent.name}-{epochs}"}
    run["number"], run["moments"] = int(folder.name), {**described["run"]["moments"]}
    folder.mkdir(parents=True, exist_ok=True)
    dump(folder / "job.json", {**described, "job": {**described["job"], "epochs": epochs}, "run": run})
    shutil.copy(real.folder / "host.json", folder)
    draw = random.Random(0)
    period_ns = last[-1]["closed_ns"] - last[0]["opened_ns"]
    with open(folder / "epochs.jsonl", "w") as file:
        for epoch in range(epochs):
            slower = draw.gauss(1, 0.01)
            for window in last:
                times = {name: window[name] + epoch * period_ns for name in ("opened_ns", "closed_ns")}
                metrics = {name: value * slower if name.endswith("_s") else value
                           for name, value in window["metrics"].items()}  # fmt: skip
                energy = {**window["energy"], **times}
                file.write(json.dumps({**window, **times, "epoch": epoch, "metrics": metrics, "energy": energy}) + "\n")
    for name, columns in (("steps.bin", len(INTERVALS)), ("losses.bin", 1)):
        steps = int(last[0]["metrics"]["epoch/steps"])
        part = (real.folder / name).read_bytes()[-4 * columns * steps :]
        with open(folder / name, "wb") as file:
            for _ in range(epochs):
                file.write(part)
    if ended:
        for name in ("summary.json", "completed.json"):
            shutil.copy(real.folder / name, folder)
    return Record(folder)


def appended(record: Record) -> Callable[[], dict[str, Any]]:
    """Return a function that appends one more epoch, with its steps, to a record, and returns its window."""
    *_, last = record.windows()
    steps = int(last["metrics"].get("epoch/steps", 0)) or 1
    number = last["epoch"]

    def append() -> dict[str, Any]:
        nonlocal number
        number += 1
        window = {**last, "epoch": number, "window": last["window"]}
        if last["window"] == "epoch":
            record.append_steps(array("f", [0.0] * len(INTERVALS) * steps), durably=False)
            record.append_losses(array("f", [0.5] * steps))
        record.append(window)
        return window

    return append


def after_epoch(epochs: int, folder: Path) -> Call:
    """Forecast the run and check its budget after one more epoch."""
    from epochmeter.config.schema import Job
    from epochmeter.results.budget import BudgetTracker
    from epochmeter.results.forecast import Forecaster
    from epochmeter.results.run_info import read_run

    record = long_run(epochs, folder / SWEEP / "0")
    job = Job.from_dict(record.job())
    job = replace(job, epochs=None, budget=replace(job.budget, time_s=1e9))
    windows = record.windows()
    forecaster = Forecaster(windows, 1, lambda count: record.steps(0, count))
    budget = BudgetTracker(job, read_run(record), windows)
    window = next(window for window in reversed(windows) if window["window"] == "epoch")
    windows.clear()

    def add() -> None:
        forecaster.add(window)
        budget.add(window)
        budget.reached(forecaster)
        forecaster.metrics(2 * epochs)

    return add


def published_epoch(epochs: int, folder: Path) -> Call:
    """Publish one more epoch of a run to MLflow."""
    from epochmeter.results.appended_file import WindowLog
    from epochmeter.tracking.client import open_store
    from epochmeter.tracking.publish import publish

    record = long_run(epochs, folder / SWEEP / "0")
    store, log = open_store("scale", f"sqlite:///{folder / 'mlflow.db'}"), WindowLog(record.folder)
    publish(record, store, log=log)
    append = appended(record)

    def call() -> float:
        append()
        return timed(lambda: publish(record, store, log=log))

    return call


def event_file(epochs: int, folder: Path) -> Call:
    """Write one more epoch to a file of TensorBoard."""
    from epochmeter.tracking.tensorboard import Events

    record = long_run(epochs, folder / SWEEP / "0")
    events = Events(record)
    events.add()
    append = appended(record)

    def call() -> float:
        append()
        return timed(events.add)

    return call


def published_run(epochs: int, folder: Path) -> Call:
    """Publish a run of many epochs to MLflow."""
    from epochmeter.tracking.client import open_store
    from epochmeter.tracking.publish import publish

    record = long_run(epochs, folder / SWEEP / "0", ended=True)
    store = open_store("scale", f"sqlite:///{folder / 'mlflow.db'}")
    return partial(publish, record, store)


def summary(epochs: int, folder: Path) -> Call:
    """Write the summary at the end of a run."""
    from epochmeter.config.schema import Job
    from epochmeter.results.run_info import read_run
    from epochmeter.results.run_result import RunResult
    from epochmeter.run.finish import write_summary

    record = long_run(epochs, folder / SWEEP / "0")
    job, run = Job.from_dict(record.job()), read_run(record)
    return lambda: write_summary(record, job, run, RunResult(0, []))


def watched_run(epochs: int, folder: Path) -> Call:
    """Open a live view of a run, and read its state."""
    from epochmeter.watch.watcher import Watcher

    record = long_run(epochs, folder / SWEEP / "0")
    return lambda: Watcher(record.folder).read()


def watched_epoch(epochs: int, folder: Path) -> Call:
    """Refresh a live view after one more epoch."""
    from epochmeter.watch.watcher import Watcher

    record = long_run(epochs, folder / SWEEP / "0")
    watcher = Watcher(record.folder)
    watcher.read()
    append = appended(record)

    def call() -> float:
        append()
        return timed(watcher.read)

    return call


def reported_run(epochs: int, folder: Path) -> Call:
    """Report a run of many epochs."""
    long_run(epochs, folder / SWEEP / "0", ended=True)
    return report_of(folder / SWEEP)


# Runs of a sweep.


def grid(runs: int) -> Iterator[dict[str, int]]:
    """Yield the keys of `runs` runs: a grid with three repeats each, whose last axis is as long as needed."""
    points = -(-runs // REPEATS)
    limits = range(100, 100 + -(-points // 40))
    keys = ("power_limit", "batch", "workers", "repeat")
    every = product(limits, (8, 16, 32, 64, 128, 256, 512, 1024), (0, 1, 2, 4, 8), range(REPEATS))
    return (dict(zip(keys, values, strict=True)) for values in islice(every, runs))


def write_sweep(runs: int, sweep: Path) -> Path:
    """Write the records of a sweep: copies of a real one with varied keys and metrics."""
    record = Record(REAL_RECORD)
    described, ended, windows = read_json(record.folder / "job.json"), record.summary(), record.windows()
    draw = random.Random(0)
    sweep.mkdir(parents=True)
    common = {name: sweep / f".{name}" for name in ("host.json", "steps.bin", "losses.bin")}
    for name, path in common.items():
        shutil.copy(record.folder / name, path)
    points = []
    for number, keys in enumerate(grid(runs)):
        slower = 1 + 4 / keys["batch"] + 20 / keys["power_limit"] + draw.gauss(0, 0.01)
        power_w = 40 + 0.8 * keys["power_limit"] * draw.uniform(0.98, 1.02)
        folder = sweep / str(number)
        folder.mkdir()
        identity = f"{number:08x}"
        run = {**described["run"], "sweep_id": sweep.name, "number": number, "record_id": f"{sweep.name}-{number}"}
        run["overrides"] = [f"{key}={value}" for key, value in keys.items()]
        run["energy"] = {"source": "counter", "covers": "GPUs used", "reason": None}
        run["of_sweep"], run["identity"] = True, identity
        points.append(run["overrides"])
        dump(folder / "job.json", {**described, "job": {**described["job"], **keys}, "run": run})
        dump(folder / "summary.json", {**ended, "metrics": varied(ended["metrics"], slower, power_w)})
        lines = [json.dumps({**window, "metrics": varied(window["metrics"], slower, power_w)}) for window in windows]
        (folder / "epochs.jsonl").write_text("".join(f"{line}\n" for line in lines))
        dump(folder / "completed.json", {"identity": identity, "finished": "2026-01-01T00:00:00+00:00"})
        for name, path in common.items():
            with suppress(OSError):
                os.link(path, folder / name)
                continue
            shutil.copy(path, folder / name)  # more links than the file system allows
    dump(sweep / "points.json", {"points": points})
    return sweep


def varied(metrics: dict[str, float], slower: float, power_w: float) -> dict[str, float]:
    """Return the metrics of a run that is `slower` times as long, at this power."""
    times = {name: value * slower if name.endswith("_s") else value for name, value in metrics.items()}
    energy = {name.replace("e2e_s", "energy_j"): value * power_w for name, value in times.items() if "e2e_s" in name}
    return {**times, **energy}


def report_of(sweep: Path) -> Call:
    """Return a call of the command that reports a sweep."""
    command = [sys.executable, "src/report.py", f"sweep={sweep}", "tracking=none"]
    return lambda: subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


def reported_sweep(runs: int, folder: Path) -> Call:
    """Report a sweep."""
    return report_of(write_sweep(runs, folder / SWEEP))


def loaded_runs(runs: int, folder: Path) -> Call:
    """Read all runs as objects, one after the other."""
    import epochmeter

    write_sweep(runs, folder / SWEEP)
    return lambda: sum(run.metrics["steady/e2e_s"] for run in epochmeter.load_runs(folder / SWEEP))


def opened_runs(runs: int, folder: Path) -> Call:
    """Open the runs, and read one of them."""
    import epochmeter

    write_sweep(runs, folder / SWEEP)
    return lambda: epochmeter.load_runs(folder / SWEEP)[-1].metrics


def watched_sweep(runs: int, folder: Path) -> Call:
    """Refresh a live view of a sweep in which nothing has changed."""
    from epochmeter.watch.watcher import Watcher

    watcher = Watcher(write_sweep(runs, folder / SWEEP))
    watcher.read()
    return watcher.read


def ended_run(runs: int, folder: Path) -> Call:
    """Refresh a live view of a sweep after the end of one more run."""
    from epochmeter.watch.watcher import Watcher

    sweep = write_sweep(runs, folder / SWEEP)
    watcher = Watcher(sweep)
    watcher.read()
    numbers = iter(range(runs, 2 * runs + 100))

    def call() -> float:
        shutil.copytree(sweep / "0", sweep / str(next(numbers)))
        return timed(watcher.read)

    return call


def checked_sweep(runs: int, folder: Path) -> Call:
    """Compose the configurations of a sweep, and check them."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.types import RunMode

    from epochmeter.config import resolvers
    from epochmeter.run.preflight import validate_sweep
    from epochmeter.sweep.compose import SweepLoader

    resolvers.register(lambda command, many, again: folder)
    loader = SweepLoader(ConfigLoaderImpl(create_config_search_path(str(ROOT / "conf"))), lambda root: "cpu")
    master = loader.load_configuration("train", [], RunMode.MULTIRUN)
    points = [[f"seed={number}", "dataset=digits", "model=lenet"] for number in range(runs)]
    return lambda: validate_sweep(points, partial(loader.load_sweep_config, master))


def resumed_sweep(runs: int, folder: Path) -> Call:
    """Find the completed runs of a sweep whose command is started again, and those that another sweep can reuse."""
    from epochmeter.results import reuse, sweep_files

    sweep = write_sweep(runs, folder / SWEEP)
    other = folder / "2026-01-02_00-00-00-20000000"

    def check() -> None:
        sweep_files.read_points.cache_clear()
        assert len(sweep_files.read_points(sweep).completed) == runs
        assert sum(Record(sweep / str(number)).is_completed(f"{number:08x}") for number in range(runs)) == runs
        assert sum(bool(reuse.find_completed(other / "0", f"{number:08x}")) for number in range(runs)) == runs

    return check


def published_in(runs: int, folder: Path) -> Call:
    """Publish one more run, from its start to its end, to an experiment with many runs."""
    from epochmeter.tracking import views
    from epochmeter.tracking.client import open_store
    from epochmeter.tracking.publish import close_dead_runs, publish

    address = folder / "mlflow.db"
    store = open_store("scale", f"sqlite:///{address}")
    first, *others = (long_run(3, folder / SWEEP / str(number), ended=True) for number in range(1 + 2 * TIMES))
    run_id = publish(first, store).run_id
    multiply(address, run_id, runs)
    numbers = iter(others)

    def call() -> None:
        record = next(numbers)
        publish(record, store)
        views.save_views(store, SWEEP)
        close_dead_runs(store)

    return call


def multiply(database: Path, run_id: str, runs: int) -> None:
    """Add copies of a run to MLflow's database."""
    with sqlite3.connect(database) as connection:
        for table in ("runs", "params", "tags", "metrics", "latest_metrics"):
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            wanted = {
                "run_uuid": "substr(? || run_uuid, 1, 32)",
                "value": "CASE key WHEN 'epochmeter.record_id' THEN value || ? "
                "WHEN 'epochmeter.folder' THEN value || ? ELSE value END" if table == "tags" else "value",
            }  # fmt: skip
            values = ", ".join(wanted.get(column, column) for column in columns)
            insert = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} WHERE run_uuid = ?"
            count = values.count("?")
            rows = ([f"{number:08x}"] * count + [run_id] for number in range(1, runs))
            connection.executemany(insert, rows)


def dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))


# Ranks, gauges, traces, viewers.


def merged_ranks(ranks: int, folder: Path) -> Call:
    """Merge the measurements of all ranks of an epoch of 1,000 steps, with their waits for each other."""
    from epochmeter.results.rank_merge import merge_ranks
    from epochmeter.results.rank_times import ranks_document, rows_of_ranks, with_waits
    from epochmeter.shared.protocol import RankWindow

    steps, draw = 1000, random.Random(0)
    parts = {f"epoch_{name}_s": draw.random() for name in range(20)} | {"communication_s": 1.0, "e2e_s": 4.0}
    windows = [
        RankWindow(0, 4 * 10**9, rank // 8, dict(parts), [], False, 1.0, 1.0, 1.0, rank) for rank in range(ranks)
    ]
    record = Record(folder)
    record.append_rank_rows(array("f", [0.001] * len(RANK_INTERVALS) * steps * ranks))

    def merge() -> None:
        rows = rows_of_ranks(record.rank_rows(0, ranks * steps), ranks, steps)
        waiting = with_waits(windows, rows)
        merge_ranks(waiting)
        json.dumps(ranks_document(waiting))

    return merge


def gauge_file(days: int, folder: Path) -> Path:
    """Write the gauges of some days, one row per second."""
    from epochmeter.shared.record import GAUGES

    columns = ["monotonic_ns", "ram_used_bytes", *(f"cpu{core}_utilization" for core in range(8)), "disk_utilization"]
    path = folder / GAUGES
    with open(path, "w") as file:
        file.write(",".join(columns) + "\n")
        for second in range(86_400 * days):
            file.write(f"{second * 10**9},8123456789," + ",".join([f"0.{second % 97:02}1"] * 9) + "\n")
    return path


def drawn_gauges(days: int, folder: Path) -> Call:
    """Read the gauges of a run for a chart, or for MLflow."""
    from epochmeter.results.power_trace import downsample

    path = gauge_file(days, folder)
    return lambda: sum(1 for _ in downsample(path, 500))


def watched_gauges(days: int, folder: Path) -> Call:
    """Open a live view of a run with many gauges."""
    from epochmeter.watch.appended import RecentSamples

    path = gauge_file(days, folder)
    return lambda: RecentSamples(path).read(0.0)


def sampled_gauges(hours: int, folder: Path) -> Call:
    """Aggregate the samples of a window that lasts for hours: of 8 cores, two per second."""
    from epochmeter.machine.gauge_sampler import Gauges

    gauges = Gauges(gpus=())
    gauges.close()

    def window() -> None:
        count = 7200 * hours
        for _ in range(count):
            gauges._take_sample()
        gauges.window(gauges._samples[0].at_ns, gauges._samples[-1].at_ns)

    return window


def analyzed_trace(megabytes: int, folder: Path) -> Call:
    """Analyze a trace of a profiler."""
    from epochmeter.trace.analysis import analyze
    from epochmeter.trace.kineto import load

    path = folder / "trace.json"
    write_trace(path, megabytes)
    return lambda: analyze(load(path))


def write_trace(path: Path, megabytes: int) -> None:
    """Write a trace of steps with 200 operators and kernels each."""
    from kineto import Kineto

    written, step = 0, 0
    with open(path, "w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{}], "traceEvents": [')
        while written < megabytes * 10**6:
            trace, begin = Kineto(), 10_000 * step
            trace._correlation = 1000 * step
            trace.step(step, begin, 9_900)
            for number in range(200):
                at = begin + 10 + 45 * number
                trace.host(f"aten::operator{number % 40}", at, 40)
                trace.launch(f"kernel{number % 50}", at + 20, 25, launched=at + 5)
            text = ",\n".join(json.dumps(event) for event in trace.events)
            file.write((",\n" if step else "") + text)
            written, step = written + len(text), step + 1
        file.write("]}")


def viewed_page(viewers: int, folder: Path) -> Call:
    """Send a new state of a run to all viewers of one page."""
    from epochmeter.watch import server
    from epochmeter.watch.watcher import Watcher

    record = long_run(30, folder / SWEEP / "0")
    feed, append = server.Feed(Watcher(record.folder).read), appended(record)
    sent = feed.latest()

    def send() -> None:
        for _ in range(viewers):
            feed.changed_since(sent)[1].encode()

    def call() -> float:
        append()
        feed._due_s = 0.0  # the next look is a new one
        return timed(send)

    return call


ROWS = (
    Row("time steps", "steps per epoch", (10_000, 100_000, 1_000_000, 10_000_000), timed_steps),
    Row("close an epoch", "its steps", (10_000, 100_000, 1_000_000, 10_000_000), border),
    Row("forecast and budget after an epoch", "earlier epochs", (100, 1_000, 10_000, 100_000), after_epoch, True),
    Row("publish an epoch", "earlier epochs", (100, 1_000, 10_000), published_epoch, True),
    Row("TensorBoard's file, an epoch", "earlier epochs", (100, 1_000, 10_000, 100_000), event_file, True),
    Row("refresh a live view, an epoch", "earlier epochs", (100, 1_000, 10_000, 100_000), watched_epoch, True),
    Row("open a live view", "epochs", (1_000, 10_000, 100_000), watched_run),
    Row("summary of a run", "epochs", (1_000, 10_000, 100_000), summary),
    Row("publish a run", "epochs", (100, 1_000, 10_000), published_run),
    Row("report of a run", "epochs", (1_000, 10_000, 100_000), reported_run),
    Row("compose a sweep", "runs", (100, 1_000, 10_000), checked_sweep),
    Row("check what is completed", "runs", (100, 1_000, 10_000), resumed_sweep),
    Row("report of a sweep", "runs", (12, 100, 1_000, 10_000), reported_sweep),
    Row("refresh a live view of a sweep", "runs", (100, 1_000, 10_000), watched_sweep),
    Row("the same after the end of a run", "runs", (100, 1_000, 10_000), ended_run),
    Row("publish a run to MLflow", "runs in the experiment", (100, 1_000, 10_000), published_in, True),
    Row("load_runs, all", "runs", (1_000, 10_000, 100_000), loaded_runs),
    Row("load_runs, one of many", "runs", (1_000, 10_000, 100_000), opened_runs),
    Row("merge ranks, an epoch of 1,000 steps", "ranks", (8, 64, 512, 1_024), merged_ranks),
    Row("gauges of a window", "hours", (1, 10, 100), sampled_gauges),
    Row("gauges for a chart", "days", (3, 10, 30), drawn_gauges, True),
    Row("open a live view with gauges", "days", (3, 10, 30), watched_gauges, True),
    Row("analyze a trace", "MB", (20, 200, 2_000), analyzed_trace),
    Row("refresh a page", "viewers", (1, 10, 100), viewed_page),
)  # fmt: skip


# Measurement.


def timed(call: Call) -> float:
    """Return the processor time of a call, and of the processes that it has waited for, in seconds."""
    begun_s = processor_s()
    call()
    return processor_s() - begun_s


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


def cost_of(row: Row, size: int) -> tuple[float, int]:
    """Return the time of an operation in s, and the memory in bytes that it needs more, in a process of its own."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=measure, args=(row, size, sender))
    process.start()
    sender.close()
    try:
        result: tuple[float, int] = receiver.recv()
    except EOFError:
        raise RuntimeError(f"{row.name} with {size:,} {row.of} failed: see above") from None
    finally:
        process.join()
    return result


def measure(row: Row, size: int, sender: Any) -> None:
    folder = Path(tempfile.mkdtemp(prefix="epochmeter-scale-"))
    try:
        call = row.prepare(size, folder)
        before_bytes = memory_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
        times = []
        for _ in range(TIMES if row.is_each else 1):
            begun_s = processor_s()
            own_s = call()  # of a call whose preparation does not count
            times.append(own_s if isinstance(own_s, float) and row.is_each else processor_s() - begun_s)
        of_children = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        sender.send((statistics.median(times), max(memory_bytes("VmHWM") - before_bytes, of_children)))
    finally:
        shutil.rmtree(folder)


def memory_bytes(name: str) -> int:
    """Return a figure of this process's memory."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith(f"{name}:"))


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of the cost over the size, as logarithms, between the last two sizes."""
    (before, last), (earlier, latest) = sizes[-2:], [max(SMALLEST_S, cost) for cost in costs[-2:]]
    return math.log(latest / earlier) / math.log(last / before)


def cells(row: Row, sizes: Sequence[int]) -> list[str]:
    costs = []
    for size in sizes:
        costs.append(cost_of(row, size))
        print(f"{row.name}: {size:,} {row.of}: {costs[-1][0]:.4g} s, {costs[-1][1] / 1e6:.1f} MB", file=sys.stderr)
    seconds = [cost[0] for cost in costs]
    slope = exponent(sizes, seconds)
    is_linear = slope <= row.expected + TOLERANCE
    verdict = "yes" if is_linear else row.reason or "no"
    times = " ".join(f"{second:.3g}" for second in seconds)
    numbers = " ".join(f"{size:,}" for size in sizes)
    kind = "one more" if row.is_each else "all"
    return [row.name, row.of, kind, numbers, times, f"{costs[-1][1] / 1e6:.0f}", f"{slope:.2f}", verdict]


def main() -> None:
    global REAL_RECORD
    (record,) = trained(*REAL)
    REAL_RECORD = record.folder
    words = [word for word in ARGUMENTS if word != "full"]
    rows = [row for row in ROWS if not words or any(word in row.name for word in words)]
    measured, failures = [], []
    for row in rows:
        try:
            measured.append(cells(row, sizes_of(row)))
        except RuntimeError as error:  # the other rows took an hour
            failures.append(str(error))
    print_table("Costs by the size of the work", COLUMNS, measured)
    if failures:
        sys.exit("\n".join(failures))


def sizes_of(row: Row) -> Sequence[int]:
    """Return two or more sizes to measure."""
    all_sizes = row.sizes if "full" in ARGUMENTS or len(row.sizes) < 3 else row.sizes[:-1]
    short = sorted({max(1, size // SHORT) for size in row.sizes[:2]})
    return sized(all_sizes, short if len(short) > 1 else [1, 2])


REAL_RECORD = Path()


if __name__ == "__main__":
    main()
