"""Ranks of test_strategy, each in its own process, and a rank for which a value replaces the other rank."""

import json
import math
import os
import time

import torch
from torch import nn
from worker.test_trainer import JOB

from epochmeter.shared.protocol import Recorded, decode, encode
from epochmeter.shared.record import Record
from epochmeter.worker.clock import Clock
from epochmeter.worker.communication import ExposedCommunication
from epochmeter.worker.connection import RankedConnection
from epochmeter.worker.data.timed_dataset import TimedDataset, TimedLoader
from epochmeter.worker.phases import StepPhases
from epochmeter.worker.strategy import Distributed, Single
from epochmeter.worker.tasks import Classification
from epochmeter.worker.timeline import HostTimeline
from epochmeter.worker.trainer import Trainer
from epochmeter.worker.windows import SuspendCounter, WindowRunner

EPOCHS, SAMPLES, NAP_S, NAPS = 2, 24, 0.02, 8


class Rank(Single):
    """One of two ranks, with the value of the other rank."""

    def __init__(self, rank, other=None):
        super().__init__(2)
        self.rank, self.other = rank, other

    def all_gather(self, value):
        return [value, self.other] if self.rank == 0 else [self.other, value]

    def broadcast(self, value):
        return value if self.rank == 0 else self.other


class Numbers(list):
    """Samples of random inputs, and their classes."""

    def __init__(self, count, nap_s=0.0):
        inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
        super().__init__((row, number % 3) for number, row in enumerate(inputs))
        self.nap_s = nap_s

    def __getitem__(self, index):
        time.sleep(self.nap_s)
        return super().__getitem__(index)


class Rows(Classification):
    """Classification of rows of numbers."""

    def example(self, dataset, count, numbers):
        return torch.randn(count, 6, generator=numbers), torch.zeros(count, dtype=torch.long)


def model(norm=False):
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.ReLU(), nn.Linear(8, 3))


def make_trainer(strategy, **keys):
    torch.manual_seed(0)
    sgd = {**JOB["optimizer"], "momentum": 0.9}
    network = {"_target_": "worker.ranked.model", "name": "rows", **keys}
    job = {**JOB, "model": network, "dataset": {"name": "rows"}, "optimizer": sgd}
    return Trainer(job, Rows(auxiliary=0), strategy, torch.device("cpu"))


def loader(strategy, samples, batch, shuffled=True):
    order = strategy.shard(samples, torch.Generator().manual_seed(5) if shuffled else None)
    timed = TimedDataset(lambda transform: samples, None)
    return TimedLoader(timed, order, batch)


class Controller:
    """Keeps the requests of the first rank as lines."""

    def __init__(self):
        self.lines = []

    def request(self, message):
        self.lines.append(encode(message).decode())
        return Recorded(False, {}, "")

    def last(self, kind):
        return next(message for message in map(decode, reversed(self.lines)) if isinstance(message, kind))


def runner(strategy, folder, trained, suspends=None, until=math.inf):
    controller, record, clock = Controller(), Record(folder), Clock(HostTimeline())
    connection = RankedConnection(controller, strategy)
    suspends, model = suspends or SuspendCounter(), torch.nn.Linear(1, 1)
    phases = StepPhases(HostTimeline(), model, torch.optim.SGD(model.parameters(), lr=0.1))
    communication = ExposedCommunication(HostTimeline() if strategy.ranks > 1 else None)
    windows = WindowRunner(record, connection, clock, phases, trained, strategy, suspends, communication, until)
    return controller, windows


def measured(strategy, folder, trained, batch):
    """Return the requests of EPOCHS epochs of training, each followed by an evaluation."""
    controller, windows = runner(strategy, folder, trained)
    batches, validation = loader(strategy, Numbers(SAMPLES), batch), loader(strategy, Numbers(7), 2, shuffled=False)
    for epoch in range(EPOCHS):
        windows.epoch(epoch, batches)
        windows.val(epoch, validation)
    return controller.lines


def main(folder, rank, port):
    """Train as this rank, in an environment as torchrun sets it."""
    world = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "RANK": rank, "LOCAL_RANK": rank}
    world.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo")
    os.environ.update((name, str(value)) for name, value in world.items())
    torch.set_num_threads(1)
    strategy = Distributed(2, "torchrun", 60)
    strategy.set_up("cpu")
    trained = make_trainer(strategy)
    results = {"description": strategy.describe(), "windows": measured(strategy, folder, trained, 4)}
    results["weights"] = [weight.tolist() for weight in trained.model.parameters()]
    normed = make_trainer(strategy, norm=True)
    normed.train_epoch(loader(strategy, Numbers(SAMPLES), 4))
    means = [normed.model[1].running_mean.tolist()]
    strategy.broadcast_buffers(normed.model)
    results["means"] = [*means, normed.model[1].running_mean.tolist()]
    results["validation"] = normed.evaluate_epoch(loader(strategy, Numbers(5), 1, shuffled=False)).totals()._asdict()
    controller, windows = runner(strategy, folder, trained)
    windows.epoch(0, loader(strategy, Numbers(2 * NAPS, NAP_S * strategy.rank), 4))
    results["slow"] = controller.lines
    with open(os.path.join(folder, f"rank{strategy.rank}.json"), "w") as file:
        json.dump(results, file)
    strategy.close()
