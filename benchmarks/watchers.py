"""Cost of watching: LeNet's epochs next to ten watchers divided by the same epochs without; and processor time.

Two ways to watch: ten live views in terminals, and one page server with ten viewers. The record has a new epoch with
ten seconds of samples before each measured stretch of epochs, so that each watcher draws within it. Without watchers
means that their processes are suspended. The browsers that draw pages are not measured.
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
from jobs import composed
from output import print_table, sized
from overhead import DIGITS, Bench, controller
from pairs import COLUMNS, ratio
from watched import JOB

from epochmeter.config.job import ROOT

WATCHERS = sized(10, 1)
WITHIN, MOST = 0.0005, 60
EPOCHS_S = sized(1.0, 0.1)
"""Duration of the epochs of one measurement, in seconds: each watcher looks once."""
SETTLE_S = sized(0.5, 0.05)
"""Time after which watchers that continue have looked, all at once, in seconds."""
RECORDED = 30
"""Epochs in the record at the start: the five minutes of samples that are shown."""
TERMINAL = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder, controller() as connection:
        bench = Bench(composed(*DIGITS), steps=90, connection=connection)
        shortest_s = min(bench.bare() for _ in range(sized(10, 2)))  # the first epochs are longer
        repeats = max(1, round(EPOCHS_S / shortest_s))
        record = live.start(Path(folder) / "0", "lenet digits", job={**JOB, "epochs": 10_000})
        numbers = count()

        def append() -> None:
            live.append_epoch(record, next(numbers))

        for _ in range(RECORDED):
            append()
        ways = (f"{WATCHERS} terminals", terminals), (f"1 page server, {WATCHERS} viewers", page)
        for name, watchers in ways:
            with watchers(record.folder) as processes:
                measured = Measured(processes, append, lambda: sum(bench.bare() for _ in range(repeats)))
                result = ratio(measured.next_to_watchers, measured.without, WITHIN, MOST)
            rows.append([name, *result.cells(), f"{1e3 * measured.used_s / measured.watched_s / WATCHERS:.2f} ms"])
            print(*rows[-1], file=sys.stderr)
    columns = ("watchers", *COLUMNS, "processor time per watcher and second")
    print_table(f"LeNet's epochs next to {WATCHERS} watchers at 1 Hz / without ({repeats} epochs each)", columns, rows)


class Measured:
    """Epochs with and without watchers; `used_s` and `watched_s` are processor time of the watchers, and time."""

    def __init__(
        self, processes: Sequence[subprocess.Popen[str]], append: Callable[[], None], train: Callable[[], float]
    ) -> None:
        self._watchers = [psutil.Process(process.pid) for process in processes]
        self._append, self._train = append, train
        self.used_s = self.watched_s = 0.0

    def next_to_watchers(self) -> float:
        """Return the duration of the epochs, in seconds."""
        self._prepare(signal.SIGCONT)
        used_s = self._processor_s()
        took_s = self._train()
        self.used_s += self._processor_s() - used_s
        self.watched_s += took_s
        return took_s

    def without(self) -> float:
        """Return the same next to suspended watchers."""
        self._prepare(signal.SIGSTOP)
        return self._train()

    def _prepare(self, command: signal.Signals) -> None:
        for watcher in self._watchers:
            watcher.send_signal(command)
        time.sleep(SETTLE_S)
        self._append()

    def _processor_s(self) -> float:
        times = [watcher.cpu_times() for watcher in self._watchers]
        return sum(own.user + own.system for own in times)


@contextmanager
def terminals(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Show a run in terminals whose output is read and dropped."""
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
        yield processes
    for descriptor in sum(pairs, ()):
        os.close(descriptor)


@contextmanager
def page(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Serve a run's page to viewers that read all events."""
    serve = [sys.executable, "src/watch.py", str(folder), "page=true", "port=0"]
    server = subprocess.Popen(serve, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with _running([server]):
        address = urlsplit(server.stdout.readline().split()[-1]).netloc
        responses = []
        for _ in range(WATCHERS):
            connection = HTTPConnection(address)
            connection.request("GET", "/events")
            responses.append(connection.getresponse())
        with _dropped([response.fileno() for response in responses]):
            yield [server]


@contextmanager
def _running(processes: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
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
