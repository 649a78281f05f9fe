"""A training script that an agent measures, whose controller replies at once."""

import torch
from torch import nn

from epochmeter.shared.protocol import Proceed, Recorded, WindowClosed, WindowMeasured


class Connection:
    """The agent's end of a connection to a controller that measures 2 J per window, until it fails with `error`."""

    reads_counters = True

    def __init__(self, path, rank=0, sends_requests=True):
        self.sent, self.windows, self.parts, self.parts_so_far, self.error = [], [], [], [], None
        self.read = []  # kinds of the messages whose replies were read

    def send(self, message):
        if self.error:
            raise self.error
        self.sent.append(message)

    def request(self, message):
        return self.post(message)()

    def post(self, message):
        reply = self._reply(message)
        if not getattr(message, "is_awaited", True) and not isinstance(message, WindowMeasured):
            return None
        return lambda: self.read.append(type(message)) or reply

    def _reply(self, message):
        self.send(message)
        if not isinstance(message, WindowMeasured):
            return Proceed(self.reads_counters)
        closed, parts = self.of(WindowClosed)[-1], message.ranks[0].parts
        self.windows.append((closed.window, closed.epoch, parts["steps"]))
        self.parts.append(parts)
        times = {f"{closed.window}/{part}": seconds for part, seconds in parts.items() if part.endswith("_s")}
        return Recorded(False, {**times, f"{closed.window}/energy_j": 2.0, "forecast/energy_j": 9.0}, "")

    def of(self, *kinds):
        """Return the sent messages of these kinds."""
        return [message for message in self.sent if isinstance(message, kinds)]

    def progress(self, steps, now_ns, parts):
        self.parts_so_far.append(parts and parts())

    def close(self):
        if isinstance(self.error, OSError):
            raise self.error


class Script:
    """A training script's objects, and its loops over batches."""

    def __init__(self, agent):
        self.agent = agent
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    @property
    def connection(self):
        return self.agent.recorder.connection

    @property
    def windows(self):
        """Name, epoch and steps of the measured windows."""
        return self.connection.windows

    @property
    def partial_steps(self):
        """Steps of each measured window that is partial, else None."""
        return [message.steps for message in self.connection.of(WindowClosed) if message.window]

    def batches(self, loader):
        return self.agent.iterate(loader, iter)

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
