"""A training script whose agent records its events, and the windows that they give."""

import dataclasses
import itertools
import os
from pathlib import Path

import torch
from torch import nn

from epochmeter.agent import hooks
from epochmeter.agent.agent import Agent
from epochmeter.segmentation.logs import FactsFile, LoadsFile, ThreadLog
from epochmeter.segmentation.process import ProcessWindows
from epochmeter.shared.protocol import Asked, Proceed, Recorded

STEPS_PER_WINDOW = 5


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """An error of a script whose class refuses new values."""

    number: int = 3


class Connection:
    """The agent's end of a connection to a controller that measures 2 J per window, until it fails with `error`."""

    def __init__(self, folder):
        self.folder, self.sent, self.wakes, self.error, self.lost = folder, [], 0, None, ""
        self.has_reached_budget = False

    def send(self, message):
        if self.error:
            raise self.error
        self.sent.append(message)

    def wake(self):
        self.wakes += 1

    def request(self, message):
        self.send(message)
        if not isinstance(message, Asked):
            return Proceed()
        named = [window for window in windows_of(self.folder).windows if window.name == message.window]
        if not named:
            return Proceed()
        metrics = {f"{message.window}/{part}": value for part, value in named[-1].parts.items()}
        return Recorded(
            self.has_reached_budget, {**metrics, f"{message.window}/energy_j": 2.0, "forecast/energy_j": 9.0}, ""
        )

    def of(self, *kinds):
        """Return the sent messages of these kinds."""
        return [message for message in self.sent if isinstance(message, kinds)]

    def release(self):
        """Do nothing: it has no file."""

    def close(self):
        if isinstance(self.error, OSError):
            raise self.error


class Script:
    """A training script's objects, and its loops over batches."""

    def __init__(self, folder, trace=None, **how):
        self.folder = Path(folder) / "events"
        self.folder.mkdir(exist_ok=True)
        self.agent = Agent("", str(self.folder), str(folder), trace=trace, **how)
        self.unhook = hooks.hook_training(self.agent)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    @property
    def connection(self):
        return self.agent.connection

    @property
    def measured(self):
        """What the events up to now give, if the script ended now."""
        return windows_of(self.folder)

    @property
    def windows(self):
        """Name, epoch and steps of each window."""
        epochs, found = itertools.count(), []
        for window in self.measured.windows:
            has_rows = window.name == "epoch"
            assert not has_rows or len(window.rows) == 4 * window.parts["steps"], "rows of epochs are in one file"
            number = next(epochs) if window.name == "epoch" else sum(name == "epoch" for name, *_ in found) - 1
            found.append((window.name, max(0, number), int(window.parts.get("steps", 0))))
        return found

    @property
    def parts(self):
        """Parts of each window."""
        return [window.parts for window in self.measured.windows]

    @property
    def partial_steps(self):
        """Steps of each window that is partial, else None."""
        return [int(window.parts["steps"]) if window.is_partial else None for window in self.measured.windows]

    def batches(self, loader):
        return self.agent.passes.iterate(loader, iter)

    def step(self, inputs):
        self.model(inputs).sum().backward()
        self.optimizer.step()

    def train(self, loader, steps=None, every=1):
        for number, (inputs, targets) in enumerate(self.batches(loader), 1):
            nn.functional.cross_entropy(self.model(inputs), targets).backward()
            if number % every == 0:
                self.optimizer.step()
            if number == steps:
                break

    def evaluate(self, loader, steps=None):
        with torch.no_grad():
            for number, (inputs, _) in enumerate(self.batches(loader), 1):
                self.model(inputs)
                if number == steps:
                    break


def events_of(folder):
    """Return the events of each thread of this process, whose logs are in a folder."""
    threads = sorted({path.stem for path in Path(folder).glob(f"{os.getpid()}-*.0")})
    read = ((thread, [*ThreadLog(Path(folder) / thread).read(is_at_rest=True)]) for thread in threads)
    return {int(thread.rpartition("-")[2]): events for thread, events in read}


def windows_of(folder, steps_per_window=STEPS_PER_WINDOW):
    """Return the windows of this process, whose logs are in a folder, as if it had ended."""
    windows = ProcessWindows(steps_per_window)
    for facts in FactsFile(Path(folder) / f"{os.getpid()}.jsonl").read():
        windows.add_facts(facts)
    windows.add_loads(LoadsFile(Path(folder) / f"{os.getpid()}.loads").read())
    windows.add(events_of(folder), is_final=True)
    return windows
