"""Training scripts with known times, which `validate.py` starts bare and measured; they print their own times as JSON.

`python -m epochmeter.worker.known_script waits WORKERS`: samples that wait (asleep) and work (processor time) for known
times, and steps of a known time; per epoch the true stall, wait and work in seconds per step.
`... device`: copies and compute on a GPU by CUDA events, in seconds per step.
`... training DEVICE`: a few epochs of the training that `turns` repeats.
`... turns DEVICE SOCKET`: epochs that each wait for their turn at a socket, and send their duration.
"""

import json
import socket
import struct
import sys
import time
from typing import Any, List, NamedTuple, Tuple

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SPIN_S = 0.0002  # the end of a wait is a busy loop, since a sleep ends about 60 us late
WAIT_S, WORK_S = 0.004, 0.004  # of each sample
BATCH, BATCHES, PREFETCH, COMPUTE_S, EPOCHS = 4, 25, 2, 0.01, 5
DEVICE_BATCH, DEVICE_WIDTH, DEVICE_STEPS = 256, 4096, 60
TURN_STEPS, TURN_WIDTH, TURN_BATCH = 60, 512, 64


class Took(NamedTuple):
    """Actual times of a sample or a batch, in seconds."""

    wait_s: float
    work_s: float

    @property
    def load_s(self) -> float:
        return self.wait_s + self.work_s


def spend(seconds: float) -> float:
    """Wait for this time within some microseconds, longer under load, and return the actual time."""
    begun = time.perf_counter()
    if seconds > SPIN_S:
        time.sleep(seconds - SPIN_S)
    while time.perf_counter() - begun < seconds:
        pass
    return time.perf_counter() - begun


class Known(Dataset):  # type: ignore[type-arg]  # Python 3.6 cannot evaluate its argument
    """Samples that wait and work for known times."""

    def __len__(self) -> int:
        return BATCH * BATCHES

    def __getitem__(self, index: int) -> Took:
        begun = time.perf_counter()
        time.sleep(WAIT_S)
        ends = time.thread_time() + WORK_S
        while time.thread_time() < ends:
            pass
        # Waiting for a core counts as work, also at the end of the sleep.
        return Took(WAIT_S, time.perf_counter() - begun - WAIT_S)


def collate(samples: List[Took]) -> torch.Tensor:
    """Return the times of a batch: wait and work."""
    return torch.tensor(samples, dtype=torch.float64).sum(0)


def waits(workers: str) -> None:
    count = int(workers)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    options: Any = {"prefetch_factor": PREFETCH, "persistent_workers": True} if count else {}
    loader: Any = DataLoader(Known(), BATCH, num_workers=count, collate_fn=collate, **options)
    for _ in range(EPOCHS):
        batches, stall_s = [], 0.0
        ended = time.perf_counter()
        for batch in loader:
            begun = time.perf_counter()
            stall_s += begun - ended
            batches.append(batch)
            weight.sum().backward()
            optimizer.step()
            spend(COMPUTE_S - (time.perf_counter() - begun))
            ended = time.perf_counter()
        wait_s, work_s = torch.stack(batches).mean(0).tolist()
        say({"stall": stall_s / len(batches), "fetch": wait_s, "prep": work_s})
        time.sleep(PREFETCH * BATCH * (WAIT_S + WORK_S) * 2)


def device() -> None:
    """Train on a GPU, and time copies and compute of each step by events, as a script of its own would."""
    model = nn.Sequential(*(nn.Linear(DEVICE_WIDTH, DEVICE_WIDTH) for _ in range(4))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = [torch.rand(DEVICE_BATCH, DEVICE_WIDTH).pin_memory() for _ in range(8)]
    loader: Any = DataLoader(batches * (DEVICE_STEPS // 8), batch_size=None)  # type: ignore[arg-type]  # a list
    for _ in range(EPOCHS):
        events: List[List[torch.cuda.Event]] = []
        for batch in loader:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            marks[0].record()
            inputs = batch.cuda(non_blocking=True)
            marks[1].record()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            marks[2].record()
            events.append(marks)
        torch.cuda.synchronize()
        copied_s, computed_s = (
            sum(marks[first].elapsed_time(marks[first + 1]) for marks in events) / 1e3 / len(events) for first in (0, 1)
        )
        say({"copy": copied_s, "compute": computed_s})


class Training:
    """A training with steps of some milliseconds on a CPU and on a GPU."""

    def __init__(self, name: str) -> None:
        self._name = name
        width = TURN_WIDTH if name == "cpu" else DEVICE_WIDTH
        layers = [nn.Linear(TURN_WIDTH, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
        self._model = nn.Sequential(*layers).to(name)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        samples = [(torch.rand(TURN_WIDTH), index % 10) for index in range(TURN_BATCH * 4)]
        self._loader: Any = DataLoader(samples * (TURN_STEPS // 4), TURN_BATCH)  # type: ignore[arg-type]  # a list

    def epoch_s(self) -> float:
        """Train an epoch, and return its duration."""
        begun = time.perf_counter()
        for inputs, targets in self._loader:
            self._optimizer.zero_grad()
            outputs = self._model(inputs.to(self._name))
            nn.functional.cross_entropy(outputs, targets.to(self._name)).backward()
            self._optimizer.step()
        if self._name != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - begun


def training(name: str) -> None:
    one = Training(name)
    for _ in range(EPOCHS):
        say({"epoch_s": one.epoch_s()})


def turns(name: str, path: str) -> None:
    """Train an epoch each time that a byte arrives, and send its duration in seconds."""
    torch.set_num_threads(1)
    one = Training(name)
    with socket.socket(socket.AF_UNIX) as turn:
        turn.connect(path)
        while turn.recv(1):
            turn.sendall(struct.pack("d", one.epoch_s()))


def say(values: Any) -> None:
    print(json.dumps(values), flush=True)


def main(arguments: Tuple[str, ...]) -> None:
    kind, *rest = arguments
    kinds: Any = {"waits": waits, "device": device, "training": training, "turns": turns}
    kinds[kind](*rest)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]))
