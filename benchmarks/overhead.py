"""What measuring costs on the CPU: an epoch of ours, with marks and a steward, over the same epoch as one writes it by
hand, which adds up loss and accuracy too; and where it comes from.

LeNet, batch 16, digits, no loader processes: steps of about a millisecond, where marks weigh most. ResNet-18 beside it.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
from jobs import composed
from output import print_table
from pairs import COLUMNS, ratio
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler

from epochmeter.config.job import ROOT
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.shared.protocol import Proceed, WindowClosed, WindowOpening, decode, encode
from epochmeter.worker.clock import Clock
from epochmeter.worker.connection import ControllerConnection
from epochmeter.worker.data.loader import open_split, train_loader
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.loop import EpochStats, train
from epochmeter.worker.precision import NullContext, NullScaler
from epochmeter.worker.strategy import Single
from epochmeter.worker.timeline import HostTimeline
from epochmeter.worker.trainer import Trainer

CPU = torch.device("cpu")
OPENING, CLOSED = WindowOpening("epoch", 0, 1), WindowClosed(0, 1)
WITHIN, MOST = 0.004, 120
RECIPES = {"LeNet": ["model=lenet"], "ResNet-18": ["model=resnet18"]}
STEPS = {"LeNet": 90, "ResNet-18": 8}
"""Of an epoch."""


class NoTally:
    """Adds nothing up."""

    def add(self, loss: object, outputs: object, targets: object) -> None:
        pass


class Bench:
    """One model and loader, trained for an epoch in each of several ways; each returns what it took in seconds."""

    def __init__(self, job: dict, steps: int, connection: ControllerConnection) -> None:
        folder = prepare_dataset(job["dataset"], job["storage"], ROOT, print)["folder"]
        self.task = instantiate_spec(job["task"])
        self.loader = train_loader(open_split(job["dataset"], folder, "train"), job, Single(1), False)
        self.loader.limit(steps)
        self.learner = Trainer(job, self.task, Single(1), CPU)
        self.connection = connection
        self.clock = Clock(HostTimeline(), observe=connection.progress)
        # One for all ways: where in memory its weights and what is learned by lie makes up to 8 % of a step.
        self.model, self.optimizer = self.learner.model, self.learner._optimizer
        samples = instantiate_spec(
            job["dataset"]["open"]["files"], folder, "train", preprocessing(job["dataset"], "train")
        )
        order = RandomSampler(samples, num_samples=min(len(samples), steps * job["batch"]))
        self.by_hand_loader = DataLoader(samples, batch_size=job["batch"], sampler=order)

    def by_hand(self) -> float:
        """As a script would have it, whose author wants loss and accuracy of each epoch."""
        begun = time.perf_counter()
        self.model.train()
        total, right, seen = 0.0, 0, 0
        for inputs, targets in self.by_hand_loader:
            inputs, targets = inputs.to(CPU), targets.to(CPU)
            self.optimizer.zero_grad()
            outputs = self.model(inputs)
            loss = cross_entropy(outputs, targets)
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(targets)
            right += (outputs.argmax(1) == targets).sum().item()
            seen += len(targets)
        return time.perf_counter() - begun

    def marked(self) -> float:
        """With marks and progress, as a window's clock sees it."""
        self.connection.request(OPENING)
        begun = time.perf_counter()
        self._marked()
        took = time.perf_counter() - begun
        self.connection.request(CLOSED)
        return took

    def bordered(self) -> float:
        """The same, and the exchange with the other process at both borders."""
        begun = time.perf_counter()
        self.connection.request(OPENING)
        self._marked()
        self.connection.request(CLOSED)
        return time.perf_counter() - begun

    def bare(self) -> float:
        """The same loop, losses kept and what is right added up, without marks or steward."""
        return self._timed(EpochStats(self.task, CPU))

    def unsummed(self) -> float:
        """Bare, and nothing added up."""
        return self._timed(NoTally())

    def _marked(self) -> None:
        self.clock.open()
        self.learner.train_epoch(self.clock.batches(self.loader, self.learner.move))
        self.clock.close()

    def _timed(self, tally: EpochStats | NoTally) -> float:
        begun = time.perf_counter()
        batches = map(self.learner.move, self.loader)
        train(self.model, batches, self.task, self.optimizer, tally, NullContext(), NullScaler())
        return time.perf_counter() - begun


def _steward(listener: socket.socket) -> None:
    """The other process: sleeps while an epoch runs, and answers what it is asked."""
    connection, _ = listener.accept()
    with connection.makefile("r") as messages:
        for message in messages:
            if isinstance(decode(message), WindowOpening | WindowClosed):
                connection.sendall(encode(Proceed()))


def main() -> None:
    torch.set_num_threads(1)  # a step takes a millisecond then, and two threads would make it noisier, not faster
    with tempfile.TemporaryDirectory() as desk, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path = str(Path(desk) / "socket")
        listener.bind(path)
        listener.listen(1)
        steward = multiprocessing.get_context("fork").Process(target=_steward, args=(listener,), daemon=True)
        steward.start()
        connection = ControllerConnection(path)
        benches = {
            name: Bench(composed(*typed, "dataset=digits", "batch=16", "workers=0"), STEPS[name], connection)
            for name, typed in RECIPES.items()
        }
        lenet = benches["LeNet"]
        for warm_up in (lenet.bordered, lenet.bare, lenet.unsummed, *(bench.by_hand for bench in benches.values())):
            warm_up()
        rows = {f"{name}: epochmeter / by hand": ratio(bench.bordered, bench.by_hand, WITHIN, MOST)
                for name, bench in benches.items()}  # fmt: skip
        rows |= {
            "LeNet: timestamps / bare": ratio(lenet.marked, lenet.bare, WITHIN, MOST),
            "LeNet: timestamps and messages at both borders / bare": ratio(lenet.bordered, lenet.bare, WITHIN, MOST),
            "LeNet: loss and accuracy summed / not": ratio(lenet.bare, lenet.unsummed, WITHIN, MOST),
        }
        steward.terminate()
    took_s = {name: statistics.median(bench.by_hand() for _ in range(9)) for name, bench in benches.items()}
    steps = ", ".join(f"{name} {1e3 * seconds / STEPS[name]:.2f} ms per step" for name, seconds in took_s.items())
    print_table(
        f"Epoch time, batch=16, digits, workers=0, one thread: {steps}",
        ("ratio", *COLUMNS),
        [[name, *row.cells()] for name, row in rows.items()],
    )


if __name__ == "__main__":
    main()
