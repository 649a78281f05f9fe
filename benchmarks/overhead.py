"""What measuring costs: an epoch with marks and a steward over the same epoch bare.

LeNet, batch 16, digits, no loader processes, on the CPU: steps of about a millisecond, where marks weigh most.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
from jobs import composed
from pairs import Ratio, ratio
from rich.console import Console
from rich.table import Table

from trainmeter.build import build
from trainmeter.datasets.ready import ready
from trainmeter.job import ROOT
from trainmeter.worker.clock import Clock
from trainmeter.worker.data.loader import open_split, train_loader
from trainmeter.worker.link import Link
from trainmeter.worker.loop import Tally, train
from trainmeter.worker.timeline import HostTimeline

WITHIN, MOST = 0.005, 400


class NoTally:
    """Adds nothing up."""

    def add(self, loss: object, outputs: object, targets: object) -> None:
        pass


class Bench:
    """One model and loader, trained for an epoch in each of several ways; each returns what it took in seconds."""

    def __init__(self, job: dict, link: Link) -> None:
        folder = ready(job["dataset"], job["storage"], ROOT, print)["folder"]
        self.loader = train_loader(open_split(job["dataset"], folder, "train"), job, False)
        self.model = build(job["model"])
        self.criterion = torch.nn.CrossEntropyLoss()
        self.optimizer = build(job["optimizer"], self.model.parameters())
        self.link = link
        self.clock = Clock(HostTimeline(), observe=link.progress)

    def marked(self) -> float:
        """With marks and progress, as a window's clock sees it."""
        self.link.ask("open")
        begun = time.perf_counter()
        self._marked()
        took = time.perf_counter() - begun
        self.link.ask("closed")
        return took

    def bordered(self) -> float:
        """The same, and the exchange with the other process at both borders."""
        begun = time.perf_counter()
        self.link.ask("open")
        self._marked()
        self.link.ask("closed")
        return time.perf_counter() - begun

    def bare(self) -> float:
        """The same loop, loss and accuracy added up, without marks or steward."""
        return self._timed(Tally("cpu"))

    def unsummed(self) -> float:
        """Bare, and nothing added up."""
        return self._timed(NoTally())

    def _marked(self) -> None:
        self.clock.open()
        self._train(self.clock.batches(self.loader, _stay), Tally("cpu"))
        self.clock.close()

    def _timed(self, tally: Tally | NoTally) -> float:
        begun = time.perf_counter()
        self._train(map(_stay, self.loader), tally)
        return time.perf_counter() - begun

    def _train(self, batches, tally: Tally | NoTally) -> None:
        train(self.model, batches, self.criterion, self.optimizer, tally)


def _stay(batch):
    inputs, targets = batch
    return inputs.to("cpu", non_blocking=True), targets.to("cpu", non_blocking=True)


def _steward(listener: socket.socket) -> None:
    """The other process: sleeps while an epoch runs, and answers what it is asked."""
    connection, _ = listener.accept()
    with connection.makefile("r") as messages:
        for message in messages:
            if json.loads(message)["kind"] != "progress":
                connection.sendall(b"{}\n")


def main() -> None:
    torch.set_num_threads(1)  # a step takes a millisecond then, and two threads would make it noisier, not faster
    with tempfile.TemporaryDirectory() as desk, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path = str(Path(desk) / "link")
        listener.bind(path)
        listener.listen(1)
        steward = multiprocessing.get_context("fork").Process(target=_steward, args=(listener,), daemon=True)
        steward.start()
        bench = Bench(composed("model=lenet", "dataset=digits", "batch=16", "workers=0"), Link(path))
        for warm_up in (bench.bordered, bench.bare, bench.unsummed):
            warm_up()
        rows = {
            "marks / bare": ratio(bench.marked, bench.bare, WITHIN, MOST),
            "marks and borders / bare": ratio(bench.bordered, bench.bare, WITHIN, MOST),
            "adding up loss and accuracy / not": ratio(bench.bare, bench.unsummed, WITHIN, MOST),
        }
        steward.terminate()
    show(rows, statistics.median(bench.bare() for _ in range(9)) / len(bench.loader))


def show(rows: dict[str, Ratio], step_s: float) -> None:
    table = Table("epoch time", "median", "95 % interval", "quartiles", "pairs", title_justify="left")
    table.title = f"LeNet, batch 16, digits, workers 0, one thread: {1e3 * step_s:.2f} ms a step"
    for name, row in rows.items():
        interval, quartiles = f"{row.low:.4f} .. {row.high:.4f}", f"{row.quartiles[0]:.4f} .. {row.quartiles[1]:.4f}"
        table.add_row(name, f"{row.median:.4f}", interval, quartiles, str(row.pairs))
    Console().print(table)


if __name__ == "__main__":
    main()
