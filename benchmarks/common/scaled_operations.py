"""Operations whose cost depends on one size, such as the epochs of a run, for `cost/scale.py`."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from common.grown_records import appended, dump, gauge_file, long_run, multiply, write_sweep, write_trace

from epochmeter.config.installation import ROOT
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.process_identity import identify
from epochmeter.shared.record import JOB_FILE, RANK_INTERVALS, Record

Call = Callable[[], object]
Prepare = Callable[[int, Path], Call]
TIMES = 5  # calls of an operation for one more, of which the median counts
SWEEP = "2026-01-01_00-00-00-10000000"


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


def timed(call: Call) -> float:
    """Return the processor time of a call, and of the processes that it has waited for, in seconds."""
    begun_s = processor_s()
    call()
    return processor_s() - begun_s


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


# Steps and epochs of a run.


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
    from epochmeter.run.record_end import write_summary

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
    document = read_json(record.folder / JOB_FILE)
    dump(
        record.folder / JOB_FILE, {**document, "run": {**document["run"], **identify(os.getpid())._asdict()}}
    )  # it runs
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
    Row("load_runs, one of many", "runs", (2_000, 10_000, 100_000), opened_runs),
    Row("merge ranks, an epoch of 1,000 steps", "ranks", (8, 64, 512, 1_024), merged_ranks),
    Row("gauges of a window", "hours", (1, 10, 100), sampled_gauges),
    Row("gauges for a chart", "days", (3, 10, 30), drawn_gauges, True),
    Row("open a live view with gauges", "days", (3, 10, 30), watched_gauges, True),
    Row("analyze a trace", "MB", (20, 200, 2_000), analyzed_trace),
    Row("refresh a page", "viewers", (1, 10, 100), viewed_page),
)  # fmt: skip  # fmt: skip
