import math
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from worker import ranked
from worker.data.test_timed_dataset import Holed

from epochmeter.shared.protocol import WindowMeasured, WindowOpening
from epochmeter.shared.record import Record
from epochmeter.worker.data.synthetic import SyntheticBatches
from epochmeter.worker.data.timed_dataset import TimedDataset, TimedLoader
from epochmeter.worker.loop import EpochStats
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Regression
from epochmeter.worker.windows import SuspendCounter

NUMBERS = Regression("mse_loss")
NEVER = SimpleNamespace(count=0)
"""Suspensions of a process that is never suspended."""


def consume(batches, task=NUMBERS):
    stats = EpochStats(task)
    for inputs, targets in batches:
        stats.add(torch.tensor(0.5), inputs, targets)
    return stats


@pytest.fixture
def runner(tmp_path):
    """runner(...): a WindowRunner with its controller and trainer."""

    def make(suspends=NEVER, until=math.inf):
        trainer = SimpleNamespace(device=torch.device("cpu"), move=lambda batch: batch, model=None, unit="images")
        trainer.train_epoch = trainer.evaluate_epoch = consume
        trainer.learning_rate = lambda: 0.01
        controller, windows = ranked.runner(Single(1), tmp_path, trainer, suspends, until)
        return windows, controller, trainer

    return make


def measure(runner, window, skip):
    """Return the measurements of a window over five samples, of which one is bad if bad ones are skipped."""
    samples = Holed(5, {2}) if skip else [(torch.zeros(1), 0)] * 5
    windows, controller, _ = runner()
    timed = TimedDataset(lambda transform: samples, None, skip=skip)
    getattr(windows, window)(0, TimedLoader(timed, range(5), 2))
    return controller.last(WindowMeasured).ranks[0]


def test_skipped_samples_are_reported_and_loader_times_for_training_only(runner):
    names = {"loader_read_s", "loader_preprocess_s", "data_stall_model_s", "learning_rate"}
    for window in ("epoch", "val"):
        skipping, complete = (measure(runner, window, skip) for skip in (True, False))
        assert (skipping.parts["skipped_samples"], skipping.parts["samples"], skipping.bad) == (1, 4, ["2.png"])
        assert "skipped_samples" not in complete.parts
        assert names & complete.parts.keys() == (names if window == "epoch" else set())
    training = measure(runner, "epoch", skip=False).parts
    assert (training["learning_rate"], training["images"], training["samples"]) == (0.01, 5, 5)


def test_step_whose_targets_are_all_ignored_has_no_mean_loss(runner, tmp_path):
    windows, _, trainer = runner()
    ignoring = Regression("mse_loss")
    ignoring.weight = lambda targets: 0
    trainer.train_epoch = lambda batches: consume(batches, ignoring)
    windows.epoch(0, make_steps(2))
    assert [math.isnan(loss) for loss in Record(tmp_path).losses()] == [True, True]


def make_steps(count):
    """A loader with this number of steps."""
    return SyntheticBatches(count, {"batch": 1, "seed": 0, "dataset": {"features": 1}}, NUMBERS, pinned=False)


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        (6, [(4, False, False), (2, True, True)]),
        (8, [(4, False, False), (4, False, True)]),
        (3, [(3, True, True)]),
        (math.inf, [(4, False, False), (4, False, False)]),
    ],
)
def test_training_ends_before_the_configured_step(runner, until, expected):
    windows, controller, _ = runner(until=until)
    for epoch, (steps, partial, last) in enumerate(expected):
        assert windows.epoch(epoch, make_steps(4)) is last
        opening, (rank,) = controller.last(WindowOpening), controller.last(WindowMeasured).ranks
        assert (opening.steps, rank.parts["steps"], opening.partial) == (steps, steps, partial)
        assert opening.epoch_steps == (4 if partial else None)


@pytest.mark.parametrize(("unit", "counts"), [("images", {"images": 2}), ("tokens", {"tokens": 14}), (None, {})])
def test_images_are_samples_and_tokens_are_items_of_the_loss(runner, unit, counts):
    windows, controller, trainer = runner()
    sentences = Regression("mse_loss")
    sentences.weight = lambda targets: 7
    trainer.unit, trainer.train_epoch = unit, lambda batches: consume(batches, sentences)
    windows.epoch(0, make_steps(2))
    parts = controller.last(WindowMeasured).ranks[0].parts
    assert {name: parts[name] for name in ("images", "tokens") if name in parts} == counts


@pytest.mark.parametrize("name", ["epoch", "val"])
def test_suspension_is_reported_for_the_window_in_which_it_ended(runner, name):
    before = signal.getsignal(signal.SIGCONT)
    suspends = SuspendCounter()
    windows, controller, trainer = runner(suspends)

    def consume_and_suspend(batches):
        os.kill(os.getpid(), signal.SIGCONT)
        return consume(batches)

    paused = []
    for run in (consume, consume_and_suspend, consume):
        trainer.train_epoch = trainer.evaluate_epoch = run
        getattr(windows, name)(0, make_steps(1))
        paused.append(controller.last(WindowMeasured).ranks[0].paused)
        os.kill(os.getpid(), signal.SIGCONT)  # between two windows
    signal.signal(signal.SIGCONT, before)
    assert (paused, suspends.count) == ([False, True, False], 4)
