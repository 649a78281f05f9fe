"""A training script of a user: LeNet on digits, with the loss and accuracy of each epoch.

`python lenet_script.py FOLDER EPOCHS TOOL`: TOOL is `lightning`, `meter`, `hooks` or one of `PARTS`. If the environment
variable GATE names a socket, each epoch waits there for its turn (see gated.py); WORKERS is the number of workers.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from common.gated import gate, scatter
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader

from epochmeter import Meter
from epochmeter.worker.data.images import ImageFiles
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.models.lenet import LeNet

DIGITS = {"size": 32, "channels": 1, "normalize": {"mean": [0.305], "std": [0.324]}}
BATCH, LEARNING_RATE = 16, 0.1
GLOBAL_HOOKS = (
    *(_global_optimizer_pre_hooks, _global_optimizer_post_hooks),
    *(_global_forward_pre_hooks, _global_forward_hooks),
)
Part = Callable[[], AbstractContextManager[object]]


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    epochs: int,
    turn: Callable[[], object],
    window: Part = nullcontext,
    step: Part = nullcontext,
) -> None:
    for epoch in range(epochs):
        turn()
        with window():
            model.train()
            total, correct, seen = 0.0, 0, 0
            for inputs, targets in loader:
                with step():
                    optimizer.zero_grad()
                    outputs = model(inputs)
                    loss = cross_entropy(outputs, targets)
                    loss.backward()
                    optimizer.step()
                    total += loss.item() * len(targets)
                    correct += (outputs.argmax(1) == targets).sum().item()
                    seen += len(targets)
            print(f"epoch {epoch}: loss {total / seen:.4f}, accuracy {correct / seen:.1%}", flush=True)


def train_with_lightning(model: nn.Module, loader: DataLoader, epochs: int, turn: Callable[[], object]) -> None:
    """The same with Lightning's Trainer, which logs to a CSV file and to MLflow."""
    from lightning import pytorch as lightning
    from lightning.pytorch.loggers import CSVLogger, MLFlowLogger

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            inputs, targets = batch
            outputs = self.model(inputs)
            loss = cross_entropy(outputs, targets)
            accuracy = (outputs.argmax(1) == targets).float().mean()
            self.log_dict({"loss": loss, "accuracy": accuracy}, on_step=False, on_epoch=True)
            return loss

        def on_train_epoch_start(self) -> None:
            turn()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

    loggers = [CSVLogger("csv"), MLFlowLogger(tracking_uri="sqlite:///mlflow.db")]
    lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=loggers).fit(Module(), loader)


def train_in_turns(model: nn.Module, loader: DataLoader, epochs: int, tool: str) -> None:
    """Alternate measured and bare epochs at the same addresses; print the seconds of each epoch as JSON.

    The tool is a `Meter` (`meter`), or the hooks that `src/measure.py` adds to this process (`hooks`).
    """
    optimizer, data = sgd(model), loader
    if tool == "meter":
        meter = Meter("tracking=none", f"machine.lock_dir={Path('locks').absolute()}")
        data = meter.batches(loader)
    for number in range(epochs):
        is_measured = number % 4 in (0, 3)
        with nullcontext() if is_measured else unhooked():
            began = time.perf_counter()
            train(model, optimizer, data if is_measured else loader, 1, lambda: None)
            took_s = time.perf_counter() - began
        print(json.dumps({"is_measured": is_measured, "took_s": took_s}), flush=True)


@contextmanager
def unhooked() -> Iterator[None]:
    """Remove the hooks of a measured script from torch and from the garbage collector."""
    iterate, call = vars(DataLoader)["__iter__"], vars(LeNet).get("__call__")
    backward, collections = torch.autograd.backward, [*gc.callbacks]
    kept = [dict(hooks) for hooks in GLOBAL_HOOKS]
    torch.autograd.backward = backward.__wrapped__  # AttributeError: this script is not measured
    DataLoader.__iter__ = getattr(iterate, "__wrapped__", iterate)
    if call is not None:
        del LeNet.__call__
    for hooks in (*GLOBAL_HOOKS, gc.callbacks):
        hooks.clear()
    yield
    gc.callbacks.extend(collections)
    for hooks, of_hooks in zip(GLOBAL_HOOKS, kept, strict=True):
        hooks.update(of_hooks)
    if call is not None:
        LeNet.__call__ = call
    DataLoader.__iter__ = iterate
    torch.autograd.backward = backward


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)


def codecarbon_parts(model: nn.Module) -> tuple[Part, Part]:
    from codecarbon import OfflineEmissionsTracker

    tracker = OfflineEmissionsTracker(country_iso_code="USA", log_level="error")
    return windows(tracker.start_task, tracker.stop_task), nullcontext


def zeus_parts(model: nn.Module) -> tuple[Part, Part]:
    from zeus.monitor import ZeusMonitor

    monitor = ZeusMonitor(gpu_indices=None if torch.cuda.is_available() else [])
    return windows(monitor.begin_window, monitor.end_window), nullcontext


def traceml_parts(model: nn.Module) -> tuple[Part, Part]:
    import traceml_ai

    traceml_ai.init(mode="auto")
    return nullcontext, partial(traceml_ai.trace_step, model)


def windows(begin: Callable[[str], object], end: Callable[[str], object]) -> Part:
    """Return a context manager that encloses each epoch by two calls with its name."""
    numbers = itertools.count()

    @contextmanager
    def window() -> Iterator[None]:
        name = f"epoch {next(numbers)}"
        begin(name)
        yield
        end(name)

    return window


PARTS: dict[str, Callable[[nn.Module], tuple[Part, Part]]] = {
    "none": lambda model: (nullcontext, nullcontext),
    "codecarbon": codecarbon_parts,
    "zeus": zeus_parts,
    "traceml": traceml_parts,
}
"""Tools that a script uses by itself: their context managers for epochs and for steps."""


def main() -> None:
    folder, epochs, tool = sys.argv[1:]
    torch.set_num_threads(1)  # a step takes a millisecond then, and two threads would make it noisier, not faster
    torch.manual_seed(0)
    samples = ImageFiles(folder, "train", preprocessing(DIGITS, "train"))
    workers = int(os.environ.get("WORKERS", "0"))
    loader = DataLoader(samples, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    model = LeNet(1, 10)
    if tool == "lightning":
        train_with_lightning(model, loader, int(epochs), gate())
    elif tool in ("meter", "hooks"):
        train_in_turns(model, loader, int(epochs), tool)
    else:
        optimizer, wait = sgd(model), gate()
        train(model, optimizer, loader, int(epochs), lambda: (scatter(optimizer), wait()), *PARTS[tool](model))


if __name__ == "__main__":
    main()
