"""Processes that train one epoch at a time, so that a benchmark can interleave the epochs of several processes."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
PADDING_BYTES = 1 << 16


class Training:
    """A process that trains one epoch per call of `epoch_s`.

    Args:
        command: A program that calls a `gate`.
        folder: Working directory of the program, which also gets its log.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._log = folder / "log"
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("w") as log:
            listener.bind(str(folder / "gate"))
            listener.listen(1)
            listener.settimeout(1)
            paths = os.pathsep.join(str(ROOT / name) for name in ("src", "benchmarks"))
            self._process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, "GATE": listener.getsockname(), "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            self._connection = self._accept(listener)
        self._connection.settimeout(LIMIT_S)
        self._connection.recv(1)

    def epoch_s(self) -> float:
        """Train an epoch and return its duration."""
        begun = time.perf_counter()
        self._connection.sendall(b".")
        if not self._connection.recv(1):
            raise self._error()
        return time.perf_counter() - begun

    def close(self) -> str:
        """Let the process train its last epoch, wait for its end, and return its output."""
        self._connection.close()
        if self._process.wait(LIMIT_S):
            raise self._error()
        return self._log.read_text()

    def kill(self) -> None:
        """End all processes, if any are still running."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _accept(self, listener: socket.socket) -> socket.socket:
        for _ in range(LIMIT_S):
            with suppress(TimeoutError):
                return listener.accept()[0]
            if self._process.poll() is not None:
                break
        self.kill()
        raise self._error()

    def _error(self) -> RuntimeError:
        lines = self._log.read_text().strip().splitlines()
        return RuntimeError(f"failed: {lines[-1] if lines else 'no output'}")


def interleaved(commands: Sequence[Sequence[str]], epochs: int) -> tuple[list[tuple[float, ...]], list[str]]:
    """Let processes train their epochs in turns; return the durations of each epoch in seconds, and the outputs."""
    took_s = []
    with ExitStack() as stack:
        trainings = []
        for command in commands:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            trainings.append(Training(command, folder))
            stack.callback(trainings[-1].kill)
        for epoch in range(epochs):
            order = trainings if epoch % 2 else trainings[::-1]
            durations_s = {training: training.epoch_s() for training in order}
            took_s.append(tuple(durations_s[training] for training in trainings))
        return took_s, [training.close() for training in trainings]


def gate() -> Callable[[], object]:
    """Return a function that reports the end of an epoch, and waits until the next one may start."""
    if "GATE" not in os.environ:
        return lambda: None
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["GATE"])
    return lambda: (connection.sendall(b"."), connection.recv(1))


class GatedSchedule:
    """A constant learning rate, for `src/train.py`: it waits at the gate after each epoch."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._turn = optimizer, gate()

    def step(self) -> None:
        scatter(self._optimizer)
        self._turn()

    def state_dict(self) -> dict[str, object]:
        return {}


def scatter(optimizer: torch.optim.Optimizer) -> None:
    """Move weights and optimizer state to random addresses, on which the time of a small model's step depends.

    Over many epochs, two processes then differ in their code only.
    """
    padding = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            padding.append(torch.empty(random.randrange(PADDING_BYTES), dtype=torch.uint8))
            parameter.data, parameter.grad = parameter.data.clone(), None
            state = optimizer.state[parameter]
            state.update({name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)})
