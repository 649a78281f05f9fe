"""The contract of what measures the loops of another library: a callback with a `Meter`, and a class of loaders."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch

from epochmeter.agent import own_controller
from epochmeter.agent.meter import Meter
from epochmeter.segmentation.script import ScriptWindows
from epochmeter.segmentation.windows import EPOCH, EVALUATION, Window
from epochmeter.shared.types import Document

STEPS_PER_WINDOW = 500  # as by default
RESOLUTION_S = 1e-6  # parts add up to their window within the clock's resolution and rounding
PARTS = ("data_stall_s", "copy_s", "compute_s", "overhead_s")
PASSES = 2


class Adapter(Protocol):
    """A callback for a training loop of another library.

    Example:
        >>> from epochmeter import Meter
        >>> class Callback:
        ...     def __init__(self, *overrides):
        ...         self.meter = Meter(*overrides)
        ...     def on_epoch_end(self):
        ...         self.meter.end_window()
        ...     def on_train_end(self):
        ...         self.meter.close()
        >>> Callback("fan=max").on_train_end()
    """

    meter: Meter
    """The `Meter` that it measures with: it ends a window at the end of each epoch, and closes the meter at the end."""


def check_adapter(
    make_adapter: Callable[[], Adapter],
    train: Callable[[Adapter | None], Iterable[torch.Tensor]],
    *,
    epochs: int,
    steps: int,
    evaluations: int = 0,
) -> None:
    """Check the windows of an adapter's training, that it changes no weight, and that its errors end no training.

    Example:
        >>> import torch
        >>> from epochmeter import Meter
        >>> from epochmeter.testing import check_adapter
        >>> class Callback:
        ...     def __init__(self):
        ...         self.meter = Meter()
        >>> def train(callback):
        ...     torch.manual_seed(0)
        ...     model = torch.nn.Linear(2, 1)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     batches = [torch.ones(4, 2)] * 3
        ...     for _ in range(2):
        ...         for inputs in callback.meter.batches(batches) if callback else batches:
        ...             model(inputs).sum().backward()
        ...             optimizer.step()
        ...     if callback:
        ...         callback.meter.close()
        ...     return model.parameters()
        >>> check_adapter(Callback, train, epochs=2, steps=3)

    Args:
        make_adapter: Makes the callback.
        train: Trains from a fixed seed, with the callback or without one, and returns the trained parameters.
        epochs: Number of epochs that it trains.
        steps: Number of batches of an epoch.
        evaluations: Number of evaluations.

    Raises:
        AssertionError: The adapter is not as the tool needs it, with the reason.
    """
    expected = _values(train(None))
    with _recorded() as folder:
        adapter = make_adapter()
        is_same = _is_same(_values(train(adapter)), expected)
        _require(is_same, "training with the adapter gives other weights: does `train` set a seed?")
        measured = _windows(folder)
        _check_windows([*measured.take(is_final=True)], epochs, steps, evaluations)
        _require(measured.end is not None, "the run has not ended: the adapter calls `meter.close()` at the end")
        stated = measured.main.windows.expected_epochs if measured.main else None
        _require(stated in (None, epochs), f"the adapter states {stated} epochs, and {epochs} were trained")
    with _recorded(error=RuntimeError("the meter has an error")):
        _require(_is_same(_values(train(make_adapter())), expected), "an error of the meter changes the training")


def check_loader(make_loader: Callable[[], Iterable[Any]], *, steps: int, samples: int | None = None) -> None:
    """Check that passes over a loader are measured with `measure.loader=MODULE:CLASS`, and have all batches.

    Example:
        >>> import torch
        >>> from epochmeter.testing import check_loader
        >>> class Loader:
        ...     batch_size = 4
        ...     def __len__(self):
        ...         return 3
        ...     def __iter__(self):
        ...         return iter([torch.ones(4, 2)] * 3)
        >>> check_loader(Loader, steps=3, samples=12)

    Args:
        make_loader: Makes the loader. Its class must be found by its name in its module.
        steps: Number of batches of a pass.
        samples: Number of samples of a pass; None: the loader does not state it.

    Raises:
        AssertionError: A pass is not measured, or a measured one has other batches, with the reason.
    """
    loader = make_loader()
    kind = type(loader)
    path, own = f"{kind.__module__}:{kind.__qualname__}", kind.__iter__
    count = len(_passed(loader))
    _require(count == steps, f"a pass has {count} batches, not {steps}")
    with _recorded() as folder:
        meter = Meter(f"measure.loader={path}")
        meter.hook_loaders()
        trained = [_passed(loader) for _ in range(PASSES)]
        for _ in loader:
            break  # a script may leave a pass
        meter.close()
        measured = _windows(folder)
        problem = next((note for note in measured.notes if note.startswith("`measure.loader`")), "")
        _require(not problem, problem)
        windows = [each.window for each in measured.take(is_final=True) if not each.window.is_partial]
        _require([len(batches) for batches in trained] == [steps] * PASSES, "a measured pass has other batches")
        counts = [int(window.parts["steps"]) for window in windows if window.name == EPOCH]
        _require(counts[:PASSES] == [steps] * PASSES, f"{PASSES} passes of {steps} steps are measured as {counts}")
        found = [window.parts.get("samples") for window in windows[:PASSES]]
        _require(samples is None or found == [samples] * PASSES, f"passes of {samples} samples have {found}")
    _require(kind.__iter__ is own, "the class has another `__iter__` after the run")


def _passed(loader: Iterable[Any]) -> list[Any]:
    """Train on each batch of a pass, and return the batches."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    batches = []
    for batch in loader:
        optimizer.zero_grad()
        (parameter * 2).sum().backward()
        optimizer.step()
        batches.append(batch)
    return batches


@contextmanager
def _recorded(error: Exception | None = None) -> Iterator[Path]:
    """Let meters in this context record their events in a folder, or fail, instead of starting a controller."""
    start = own_controller.start_controller
    with tempfile.TemporaryDirectory() as folder:

        def record(overrides: Iterable[str]) -> Any:
            if error is not None:
                raise error
            return _Recording(folder, dict(override.partition("=")[::2] for override in overrides))

        own_controller.start_controller = record
        try:
            yield Path(folder)
        finally:
            own_controller.start_controller = start


class _Recording:
    """The events of this process, without a controller."""

    def __init__(self, folder: str, keys: dict[str, str]) -> None:
        loader = keys.get("measure.loader")
        self.agent: Document = {"socket": None, "logs": folder, "folder": folder, "loader": loader}

    def wait(self) -> None:
        """Return at once."""


def _windows(folder: Path) -> ScriptWindows:
    windows = ScriptWindows(folder, STEPS_PER_WINDOW)
    windows.read(is_final=True)
    return windows


def _check_windows(measured: list[Any], epochs: int, steps: int, evaluations: int) -> None:
    windows: list[Window] = [each.window for each in measured]
    trained = [window for window in windows if window.name == EPOCH]
    _require(len(trained) == epochs, f"{epochs} epochs have {len(trained)} windows: {[each.name for each in windows]}")
    evaluated = sum(window.name == EVALUATION for window in windows)
    _require(evaluated == evaluations, f"{evaluations} evaluations have {evaluated} windows")
    for number, window in enumerate(trained, 1):
        count = window.parts["steps"]
        is_complete = count == steps and not window.is_partial
        _require(is_complete, f"epoch {number} has {count:g} of {steps} steps: `meter.end_window()` ends it")
        parts_s, whole_s = sum(window.parts.get(part, 0.0) for part in PARTS), window.parts["e2e_s"]
        is_whole = abs(parts_s - whole_s) <= RESOLUTION_S + 1e-6 * whole_s
        _require(is_whole, f"the parts of epoch {number} add up to {parts_s:g} s of {whole_s:g} s")
    for before, after in pairwise(windows):
        _require(before.closed_ns <= after.opened_ns, f"the windows {before.name} and {after.name} overlap")


def _values(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def _is_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise AssertionError(reason)
