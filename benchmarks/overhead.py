"""What measuring costs: an epoch with marks and a steward over the same epoch bare.

LeNet, batch 16, digits, no loader processes, on the CPU: steps of about a millisecond, where marks weigh most.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import tempfile
import time
from pathlib import Path

import torch
from pairs import Ratio, ratio
from rich.console import Console
from rich.table import Table

from trainmeter.datasets.ready import ready
from trainmeter.worker.clock import Clock
from trainmeter.worker.data.loader import open_split, train_loader
from trainmeter.worker.link import Link
from trainmeter.worker.loop import Tally, train
from trainmeter.worker.models.lenet import LeNet
from trainmeter.worker.timeline import HostTimeline

ROOT = Path(__file__).resolve().parents[1]
DATASET = {
    "name": "digits",
    "root": "data/digits",
    "layout": "files",
    "size": 32,
    "channels": 1,
    "normalize": {"mean": [0.5], "std": [0.5]},
    "space_bytes": 10_000_000,
    "make": {"_target_": "trainmeter.datasets.digits.make"},
    "open": {"_target_": "trainmeter.worker.data.images.ImageFiles"},
}
JOB = {"seed": 0, "batch": 16, "workers": 0, "prefetch": 2, "pin_memory": False, "persistent_workers": False}


class NoTally:
    """Adds nothing up."""

    def add(self, loss: object, outputs: object, targets: object) -> None:
        pass


class Bench:
    """One model and loader, trained for an epoch in each of three ways."""

    def __init__(self, link: Link) -> None:
        folder = ready(DATASET, {"root": "data"}, ROOT, print)["folder"]
        self.loader = train_loader(open_split(DATASET, folder, "train"), JOB, False)
        self.model = LeNet(1, 10)
        self.criterion = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.link = link
        self.clock = Clock(HostTimeline(), observe=link.progress)

    def metered(self) -> float:
        """With marks, progress and the steward's part at the borders."""
        tally = Tally("cpu")
        self.link.ask("open")
        begun = time.perf_counter()
        self.clock.open()
        self._train(self.clock.batches(self.loader, _stay), tally)
        self.clock.close()
        took = time.perf_counter() - begun
        self.link.ask("closed")
        return took

    def bare(self) -> float:
        """The same loop, loss and accuracy added up, without marks or steward."""
        return self._timed(Tally("cpu"))

    def unsummed(self) -> float:
        """Bare, and nothing added up."""
        return self._timed(NoTally())

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
    with tempfile.TemporaryDirectory() as desk, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path = str(Path(desk) / "link")
        listener.bind(path)
        listener.listen(1)
        steward = multiprocessing.get_context("fork").Process(target=_steward, args=(listener,), daemon=True)
        steward.start()
        bench = Bench(Link(path))
        for warm_up in (bench.metered, bench.bare, bench.unsummed):
            warm_up()
        rows = {
            "marks and steward / bare": ratio(bench.metered, bench.bare, within=0.005, most=400),
            "adding up loss and accuracy / not": ratio(bench.bare, bench.unsummed, within=0.005, most=400),
        }
        steward.terminate()
    show(rows, bench.bare() / len(bench.loader))


def show(rows: dict[str, Ratio], step_s: float) -> None:
    table = Table("epoch time", "median ratio", "95 % interval", "quartiles", "pairs", title_justify="left")
    table.title = f"LeNet, batch 16, digits, workers 0: {1e3 * step_s:.2f} ms a step"
    for name, row in rows.items():
        interval, quartiles = f"{row.low:.4f} .. {row.high:.4f}", f"{row.quartiles[0]:.4f} .. {row.quartiles[1]:.4f}"
        table.add_row(name, f"{row.median:.4f}", interval, quartiles, str(row.pairs))
    Console().print(table)


if __name__ == "__main__":
    main()
