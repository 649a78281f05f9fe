"""Cost of watching: LeNet's time next to ten watchers divided by its time alone, and the watchers' processor time.

Two ways to watch: ten live views in terminals, and one page server with ten viewers. The browsers that draw pages are
not measured. The argument is the time limit in minutes.

Short stretches of training alternate: in one the watchers continue, and each refreshes once; in the next they are
suspended. The difference is the cost of one refresh of each watcher. Watchers refresh once per second, which is longer
than a stretch, so noise counts less than in a ratio of epochs. Before each stretch, the record gets a new epoch with
a second of samples.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlsplit

import live
import psutil
import torch
from common.jobs import composed
from common.output import ARGUMENTS, print_table, sized
from common.pairs import COLUMNS, Ratio, median
from cost.overhead import DIGITS, Bench, controller
from watched import JOB

from epochmeter.config.installation import ROOT
from epochmeter.watch import server

Processes = Sequence[subprocess.Popen[str]]

MINUTES = float(ARGUMENTS[0]) if ARGUMENTS else 10.0
WATCHERS, MIN_PAIRS = sized(10, 1), sized(20, 2)
STRETCH_S = sized(0.15, 0.05)  # duration of a stretch, in seconds: several times the duration of all refreshes
RECORDED = 30  # epochs in the record at the start: the five minutes of samples that are shown
TERMINAL = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
SERVE = f"""
import sys
from epochmeter.__main__ import start
from epochmeter.watch import server
server.PERIOD_S = {1.5 * STRETCH_S}
server.POLL_S = server.PERIOD_S / 2
sys.argv[0] = "watch"
start("watch")
"""
"""Serves with a period between one and two stretches: a server that was suspended for one refreshes at once."""


def main() -> None:
    torch.set_num_threads(1)
    rows, begun_s = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder, controller() as connection:
        bench = Bench(composed(*DIGITS), steps=90, connection=connection)
        step_s = min(bench.bare() for _ in range(sized(10, 2))) / 90  # the first epochs are longer
        steps = max(1, round(STRETCH_S / step_s))
        bench.steps = steps
        record = live.start(Path(folder) / "0", "lenet digits", job={**JOB, "epochs": 1_000_000})
        for number in range(RECORDED):
            live.append_epoch(record, number)
        numbers = count(RECORDED * live.SAMPLES)
        live.SAMPLES = 1  # from now on, an epoch has a second of samples

        def append() -> None:
            live.append_epoch(record, next(numbers))

        ways = (f"{WATCHERS} terminals", terminals), (f"1 page server, {WATCHERS} viewers", page)
        for number, (name, watchers) in enumerate(ways, 1):
            until_s = begun_s + sized(60 * MINUTES, 0) * number / len(ways)
            with watchers(record.folder) as (processes, wake):
                result, used_s = compare(processes, wake, append, bench.bare, until_s)
            rows.append([name, *result.cells(), f"{1e3 * used_s / WATCHERS:.2f} ms"])
            print(*rows[-1], file=sys.stderr)
    columns = ("watchers", *COLUMNS, "processor time per watcher and refresh")
    title = f"LeNet's time next to {WATCHERS} watchers at 1 Hz / without, in stretches of {STRETCH_S:g} s"
    print_table(title, columns, rows)


def compare(
    processes: Processes,
    wake: Callable[[], None],
    append: Callable[[], None],
    train: Callable[[], float],
    until_s: float,
) -> tuple[Ratio, float]:
    """Return the time next to watchers at 1 Hz / without, and the processor time of their refreshes in s.

    Args:
        processes: The watchers.
        wake: Makes watchers that continue refresh at once.
        append: Appends an epoch to the record.
        train: Trains for a stretch.
        until_s: Monotonic time at which the measurement ends.
    """
    watchers = [psutil.Process(process.pid) for process in processes]

    def stretch_s(command: signal.Signals) -> float:
        append()
        begun_s = time.perf_counter()
        if command == signal.SIGCONT:
            wake()
        for process in processes:
            process.send_signal(command)
        train()
        return time.perf_counter() - begun_s

    def processor_s() -> float:
        times = [watcher.cpu_times() for watcher in watchers]
        return sum(own.user + own.system for own in times)

    stretch_s(signal.SIGSTOP)
    used_s, ratios = -processor_s(), []
    while len(ratios) < MIN_PAIRS or time.monotonic() < until_s:
        ratios.append(1 + (stretch_s(signal.SIGCONT) - stretch_s(signal.SIGSTOP)) / server.PERIOD_S)
    return median(ratios), (used_s + processor_s()) / len(ratios)


@contextmanager
def terminals(folder: Path) -> Iterator[tuple[Processes, Callable[[], None]]]:
    """Show a run in terminals whose output is read and dropped; they refresh when a key is pressed."""
    pairs = [pty.openpty() for _ in range(WATCHERS)]
    watch = [sys.executable, "src/watch.py", str(folder)]
    processes = [
        subprocess.Popen(watch, cwd=ROOT, stdin=own, stdout=own, stderr=own, env=TERMINAL, text=True)
        for _, own in pairs
    ]
    screens = [screen for screen, _ in pairs]
    for screen in screens:
        os.read(screen, 1)  # the first picture
    with _dropped(screens), _running(processes):
        yield processes, lambda: [os.write(screen, b" ") for screen in screens]
    for descriptor in sum(pairs, ()):
        os.close(descriptor)


@contextmanager
def page(folder: Path) -> Iterator[tuple[Processes, Callable[[], None]]]:
    """Serve a run's page to viewers that read all events."""
    serve = [sys.executable, "-c", SERVE, str(folder), "page=true", "port=0"]
    server = subprocess.Popen(serve, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with _running([server]):
        address = urlsplit(server.stdout.readline().split()[-1]).netloc
        responses = []
        for _ in range(WATCHERS):
            connection = HTTPConnection(address)
            connection.request("GET", "/events")
            responses.append(connection.getresponse())
        with _dropped([response.fileno() for response in responses]):
            yield [server], lambda: None


@contextmanager
def _running(processes: Processes) -> Iterator[None]:
    try:
        yield
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("a watcher ended before the measurement did")
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def _dropped(descriptors: Sequence[int]) -> Iterator[None]:
    """Read everything from descriptors, in a process of their own."""

    def drop() -> None:
        while all(os.read(descriptor, 1 << 16) for descriptor in select.select(descriptors, [], [])[0]):
            pass

    reader = get_context("fork").Process(target=drop, daemon=True)
    reader.start()
    try:
        yield
    finally:
        reader.terminate()
        reader.join()


if __name__ == "__main__":
    main()
