"""Overhead of measuring: an epoch of epochmeter divided by the same epoch of a handwritten script, and its parts.

The script sums loss and accuracy too, on the device. LeNet on digits without DataLoader workers has the shortest steps,
where timestamps cost most. Trains on the first GPU if there is one, otherwise on the CPU with one thread.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch
from common.jobs import composed
from common.output import print_table, sized
from common.pairs import COLUMNS, ratio
from torch.amp import GradScaler
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler

from epochmeter.config.installation import ROOT
from epochmeter.config.schema import Dataset, Storage
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.shared.protocol import Proceed, WindowClosed, WindowOpening, decode, encode
from epochmeter.worker.clock import Clock
from epochmeter.worker.connection import ControllerConnection
from epochmeter.worker.data.loader import make_loaders
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.device import make_timeline
from epochmeter.worker.loop import EpochStats, train
from epochmeter.worker.precision import NullContext
from epochmeter.worker.strategy import Single
from epochmeter.worker.trainer import Trainer

OPENING, CLOSED = WindowOpening("epoch", 0, 1), WindowClosed(0, 1)
WITHIN, MOST = 0.004, 120
DIGITS = ["model=lenet", "dataset=digits", "batch=16", "workers=0", "evaluate=false"]
SYNTHETIC = ["dataset=jpeg", "synthetic_batches=true", "batch=64", "evaluate=false"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RECIPES = {
    "cpu": {"LeNet": (sized(90, 10), DIGITS), "ResNet-18": (sized(8, 1), [*DIGITS, "model=resnet18"])},
    "cuda": {
        "LeNet": (90, DIGITS),
        "ResNet-50": (5, [*SYNTHETIC, "model=resnet50"]),
        "Inception v3": (5, [*SYNTHETIC, "model=inception_v3", "model.aux_logits=false", "dataset.size=299"]),
    },
}[DEVICE.type]
"""Steps per epoch and configuration."""


class NoTally:
    """Adds nothing up."""

    def add(self, loss: object, outputs: object, targets: object) -> None:
        pass


class Bench:
    """One model and loader, trained for an epoch in each of several ways; each returns its time in seconds."""

    def __init__(self, job: dict, steps: int, connection: ControllerConnection) -> None:
        config, storage = Dataset.from_dict(job["dataset"]), Storage.from_dict(job["storage"])
        dataset = prepare_dataset(config, storage, ROOT, print)
        self.task = instantiate_spec(job["task"])
        (self.loader,) = make_loaders(job, dataset, self.task, Single(1), DEVICE.type == "cuda")
        self.steps = steps
        self.trainer = Trainer(job, self.task, Single(1), DEVICE)
        self.connection = connection
        self.clock = Clock(make_timeline(DEVICE), observe=connection.progress)
        self.phases = self.trainer.phases(make_timeline(DEVICE))
        # One for all ways: where in memory its weights and the optimizer's state are changes a step by up to 8 %.
        self.model, self.optimizer = self.trainer.model, self.trainer.optimizer
        if job["synthetic_batches"]:
            self.by_hand_loader = list(islice(self.loader, steps))
        else:
            files = job["dataset"]["open"]["files"]
            samples = instantiate_spec(files, dataset["folder"], "train", preprocessing(job["dataset"], "train"))
            order = RandomSampler(samples, num_samples=min(len(samples), steps * job["batch"]))
            pinned = DEVICE.type == "cuda"
            self.by_hand_loader = DataLoader(samples, batch_size=job["batch"], sampler=order, pin_memory=pinned)

    def by_hand(self) -> float:
        """As in a script whose author wants loss and accuracy of each epoch, without waiting for a GPU in each step."""
        begun = time.perf_counter()
        self.model.train()
        value = torch.Tensor.item if DEVICE.type == "cpu" else torch.Tensor.detach
        total, right, seen = 0.0, 0, 0
        for inputs, targets in self.by_hand_loader:
            inputs, targets = inputs.to(DEVICE, non_blocking=True), targets.to(DEVICE, non_blocking=True)
            self.optimizer.zero_grad()
            outputs = self.model(inputs)
            loss = cross_entropy(outputs, targets)
            loss.backward()
            self.optimizer.step()
            total += value(loss) * len(targets)
            right += value((outputs.argmax(1) == targets).sum())
            seen += len(targets)
        float(total), int(right)
        _synchronize()
        return time.perf_counter() - begun

    def marked(self) -> float:
        """With timestamps and progress, as a window's clock sees it."""
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
        """The same loop, loss and accuracy summed, without timestamps or controller."""
        return self._timed(EpochStats(self.task))

    def unsummed(self) -> float:
        """Bare, and nothing added up."""
        return self._timed(NoTally())

    def _marked(self) -> None:
        self.clock.open()
        self.phases.open()
        move = self.phases.moving(self.trainer.move)
        self.trainer.train_epoch(self.clock.batches(islice(self.loader, self.steps), move))
        self.clock.close()
        self.phases.close()

    def _timed(self, tally: EpochStats | NoTally) -> float:
        begun = time.perf_counter()
        batches = map(self.trainer.move, islice(self.loader, self.steps))
        train(self.model, batches, self.task, self.optimizer, tally, NullContext(), GradScaler(enabled=False))
        _synchronize()
        return time.perf_counter() - begun


def _synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def _controller(listener: socket.socket) -> None:
    """The other process: sleeps while an epoch runs, and replies to messages."""
    connection, _ = listener.accept()
    with connection.makefile("r") as messages:
        for message in messages:
            if isinstance(decode(message), WindowOpening | WindowClosed):
                connection.sendall(encode(Proceed()))


@contextmanager
def controller() -> Iterator[ControllerConnection]:
    """Provide the connection to a process that answers at the borders of windows."""
    with tempfile.TemporaryDirectory() as desk, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path = str(Path(desk) / "socket")
        listener.bind(path)
        listener.listen(1)
        process = multiprocessing.get_context("fork").Process(target=_controller, args=(listener,), daemon=True)
        process.start()
        yield ControllerConnection(path)
        process.terminate()


def main() -> None:
    torch.set_num_threads(1)  # a step takes a millisecond then, and two threads would make it noisier, not faster
    with controller() as connection:
        benches = {name: Bench(composed(*overrides), steps, connection) for name, (steps, overrides) in RECIPES.items()}
        lenet = benches["LeNet"]
        for warm_up in (lenet.bordered, lenet.bare, lenet.unsummed, *(bench.by_hand for bench in benches.values())):
            warm_up()
        compared = [(f"{name}: epochmeter / by hand", bench.bordered, bench.by_hand) for name, bench in benches.items()]
        compared += [
            ("LeNet: timestamps / bare", lenet.marked, lenet.bare),
            ("LeNet: timestamps and messages at both borders / bare", lenet.bordered, lenet.bare),
            ("LeNet: loss and accuracy summed / not", lenet.bare, lenet.unsummed),
        ]
        ratios = {}
        for name, first, second in compared:
            ratios[name] = ratio(first, second, WITHIN, MOST).cells()
            print(name, *ratios[name], file=sys.stderr)
    steps_ms = {
        name: 1e3 * statistics.median(bench.by_hand() for _ in range(sized(5, 1))) / RECIPES[name][0]
        for name, bench in benches.items()
    }
    print_table(
        f"Epoch time on {torch.cuda.get_device_name() if DEVICE.type == 'cuda' else 'the CPU, one thread'}",
        ("ratio", *COLUMNS, "ms per step by hand"),
        [[name, *cells, f"{steps_ms[name.partition(':')[0]]:.2f}"] for name, cells in ratios.items()],
    )


if __name__ == "__main__":
    main()
