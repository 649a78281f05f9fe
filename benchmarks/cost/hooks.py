"""Processor time of the agent's hooks per step of a script, by what they time; and of a pass, which may start workers.

Passes with and without the hooks alternate in one process. Between two short steps, the code of the hooks remains in
the CPU's caches (hot); a step of LeNet, with a batch of 16, replaces it. The hooks never wait, so that their processor
time is what they add to a step; other processes disturb it less than the time of a clock.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import torch
from common.output import print_table, sized
from common.pairs import median
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from epochmeter.agent import hooks, sampling
from epochmeter.agent.agent import Agent
from epochmeter.worker.models.lenet import LeNet
from epochmeter.worker.timeline import monotonic_ns

STEPS, PAIRS, PASSES = sized(300, 40), sized(40, 2), sized(20, 2)
BATCH, NONE, ALL = 16, 1e-12, math.inf
NEVER = 10**12  # steps of which one is timed
TIMED = {
    "nothing": (NONE, NONE, NEVER),
    "phases": (ALL, NONE, NEVER),
    "loading": (NONE, ALL, NEVER),
    "a part, as usual": (sampling.PHASES_BUDGET, sampling.LOADING_BUDGET, sampling.MAX_EVERY),
}
"""What is timed in the steps: budgets, and the largest number of steps of which one is timed."""
Measured = Callable[[], float]


class Training(NamedTuple):
    """A model with its data."""

    model: nn.Module
    inputs: torch.Tensor

    def loader(self, workers: int, batches: int) -> DataLoader:
        samples = [(self.inputs, number % 2) for number in range(batches * BATCH)]
        return DataLoader(samples, BATCH, num_workers=workers)


TRAININGS = {
    "hot": lambda: Training(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.ones(4)),
    "LeNet": lambda: Training(LeNet(1, 10), torch.ones(1, 32, 32)),
}


@contextmanager
def hooked(agent: Agent) -> Iterator[None]:
    """Install the hooks of an agent."""
    restores = [hooks.hook_loaders(agent), hooks.hook_training(agent)]
    yield
    for restore in reversed(restores):
        restore()


def steps_us(training: Training, loader: DataLoader, optimizer: torch.optim.Optimizer) -> float:
    """Train a pass; return the processor time of this thread per step after the first one, in microseconds."""
    times_ns = []
    for inputs, targets in loader:
        optimizer.zero_grad()
        cross_entropy(training.model(inputs), targets).backward()
        optimizer.step()
        times_ns.append(time.thread_time_ns())
    return (times_ns[-1] - times_ns[0]) / (len(times_ns) - 1) / 1e3


def cost(agent: Agent, act: Measured, pairs: int) -> list[str]:
    """Return the cells of the difference between an act with hooks and without."""
    differences = []
    for number in range(pairs + 2):
        with hooked(agent) if number % 2 else nothing():
            first = act()
        with nothing() if number % 2 else hooked(agent):
            second = act()
        differences.append(first - second if number % 2 else second - first)
    result = median(differences[2:])
    return [f"{result.median:.1f}", f"{result.low:.1f} .. {result.high:.1f}"]


@contextmanager
def nothing() -> Iterator[None]:
    yield


def row(folder: str, kind: str, workers: int, timed: str) -> list[str]:
    """Return the cost per step of a training with a number of workers."""
    sampling.PHASES_BUDGET, sampling.LOADING_BUDGET, sampling.MAX_EVERY = TIMED[timed]
    agent, training = Agent(None, tempfile.mkdtemp(dir=folder), folder), TRAININGS[kind]()
    optimizer = torch.optim.SGD(training.model.parameters(), lr=0.01, momentum=0.9)
    loader = training.loader(workers, STEPS)
    own = statistics.median(steps_us(training, loader, optimizer) for _ in range(sized(3, 1)))
    return [kind, f"{own:.0f}", str(workers), timed, *cost(agent, lambda: steps_us(training, loader, optimizer), PAIRS)]


def pass_row(folder: str, workers: int) -> list[str]:
    """Return the processor time of a pass over two batches, in this process and in its workers."""
    sampling.PHASES_BUDGET, sampling.LOADING_BUDGET, sampling.MAX_EVERY = TIMED["a part, as usual"]
    agent, loader = Agent(None, tempfile.mkdtemp(dir=folder), folder), TRAININGS["LeNet"]().loader(workers, 2)

    def passes_us(of: int) -> float:
        begun = used_us(of)
        for _ in range(PASSES):
            for _ in islice(loader, 2):
                pass
        return (used_us(of) - begun) / PASSES

    own, of_workers = (
        cost(agent, lambda of=of: passes_us(of), sized(20, 2))
        for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return [str(workers), *own, *of_workers]


def used_us(of: int) -> float:
    used = resource.getrusage(of)
    return (used.ru_utime + used.ru_stime) * 1e6


def write_ns() -> float:
    """Return the time of an event's record with warm caches, to which the constants in `agent.sampling` refer."""
    sampling.slowness.cache_clear()
    sampling.WRITE_NS = 1
    return sampling.slowness()


def main() -> None:
    torch.set_num_threads(1)
    os.environ.pop("EPOCHMETER_AGENT", None)
    begun_ns = monotonic_ns()
    with tempfile.TemporaryDirectory() as folder:
        cases = [(kind, workers, timed) for kind in TRAININGS for workers in (0, 2) for timed in TIMED]
        rows = [row(folder, *case) for case in cases]
        passes = [pass_row(folder, workers) for workers in (0, 2)]
    print_table(
        "Processor time of the hooks per step, in microseconds",
        ("step", "own time", "workers", "timed", "hooks", "95 % interval"),
        rows,
    )
    print_table(
        "Processor time of the hooks per pass over two batches, in microseconds",
        ("workers", "training process", "95 % interval", "workers' processes", "95 % interval of these"),
        passes,
    )
    print(f"An event takes {write_ns():.0f} ns; {(monotonic_ns() - begun_ns) / 1e9:.0f} s.")


if __name__ == "__main__":
    main()
