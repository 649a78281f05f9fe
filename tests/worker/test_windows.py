"""What a window hands over of what its loader told."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from epochmeter.shared.protocol import Proceed, WindowMeasured, WindowOpening
from epochmeter.shared.record import Record
from epochmeter.worker.clock import Clock
from epochmeter.worker.data.faults import BadSampleError
from epochmeter.worker.data.timed_dataset import TimedDataset, make_timed_loader
from epochmeter.worker.loop import EpochStats
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Classification
from epochmeter.worker.timeline import HostTimeline
from epochmeter.worker.windows import WindowRunner

NEVER = SimpleNamespace(count=0)
"""The pauses of a process that has none."""


class Controller:
    """The other end of the connection; keeps the last request of each kind."""

    def __init__(self):
        self.requests = {}

    def request(self, message):
        return self.request_all(message)[0]

    def request_all(self, message):
        self.requests[type(message)] = message
        return [Proceed()]


class Holed(list):
    def __getitem__(self, index):
        if index == 2:
            raise BadSampleError("image 2.png cannot be read", "2.png")
        return torch.zeros(1), index


def seen(batches):
    tally = EpochStats(Classification(auxiliary=0), "cpu")
    for _, targets in batches:
        tally.add(torch.tensor(0.5), torch.eye(8)[targets], targets)
    return tally


@pytest.fixture
def measure(tmp_path):
    """measure(window, skip) -> what the controller is told of it."""

    def measured(window, skip):
        controller, learner = (
            Controller(),
            SimpleNamespace(device=torch.device("cpu"), move=lambda batch: batch, model=None),
        )
        learner.train_epoch = learner.evaluate_epoch = seen
        learner.learning_rate = lambda: 0.01
        samples = TimedDataset(
            lambda transform: Holed(range(5)) if skip else [(torch.zeros(1), 0)] * 5, None, skip=skip
        )
        loader = make_timed_loader(samples, range(5), 2)
        windows = WindowRunner(Record(tmp_path), controller, Clock(HostTimeline()), learner, Single(1), NEVER)
        getattr(windows, window)(0, loader)
        (rank,) = controller.requests[WindowMeasured].ranks
        return rank

    return measured


@pytest.mark.parametrize("window", ["epoch", "val"])
def test_samples_that_are_left_out_are_counted_and_named_in_training_and_in_evaluation(measure, window):
    told = measure(window, skip=True)
    assert told.parts["skipped_samples"] == 1
    assert told.parts["samples"] == 4
    assert told.bad == ["2.png"]


@pytest.mark.parametrize("window", ["epoch", "val"])
def test_where_none_may_be_left_out_none_is_counted(measure, window):
    assert "skipped_samples" not in measure(window, skip=False).parts


def test_what_the_loader_took_is_told_of_training(measure):
    parts = {"loader_read_s", "loader_preprocess_s", "data_stall_model_s"}
    assert parts <= measure("epoch", skip=False).parts.keys()
    assert not parts & measure("val", skip=False).parts.keys()


def test_an_epoch_is_told_with_the_learning_rate_that_it_had(measure):
    assert measure("epoch", skip=False).parts["learning_rate"] == 0.01
    assert "learning_rate" not in measure("val", skip=False).parts


class Steps(list):
    """A loader of so many steps, that may be cut short."""

    bad = ()
    most = None

    def __len__(self):
        return super().__len__() if self.most is None else self.most

    def __iter__(self):
        return itertools.islice(super().__iter__(), self.most)

    def limit(self, steps):
        self.most = steps

    def parts(self, rows):
        return {}


@pytest.fixture
def trained(tmp_path):
    """trained(until, epochs) -> what was told as each epoch of four steps opened, and whether it was the last."""

    def train(until, epochs):
        controller, learner = (
            Controller(),
            SimpleNamespace(device=torch.device("cpu"), move=lambda batch: batch, model=None),
        )
        learner.train_epoch, learner.learning_rate = seen, lambda: 0.01
        loader = Steps([(torch.zeros(2, 1), torch.tensor([0, 1]))] * 4)
        windows = WindowRunner(Record(tmp_path), controller, Clock(HostTimeline()), learner, Single(1), NEVER, until)
        told = []
        for epoch in range(epochs):
            last = windows.epoch(epoch, loader)
            opened, (rank,) = controller.requests[WindowOpening], controller.requests[WindowMeasured].ranks
            assert rank.parts["steps"] == opened.steps
            told.append((opened.steps, opened.partial, last))
        assert len(loader) == 4  # a trace is taken of whole passes
        return told

    return train


@pytest.mark.parametrize(
    ("until", "told"),
    [
        (6, [(4, False, False), (2, True, True)]),
        (8, [(4, False, False), (4, False, True)]),
        (3, [(3, True, True)]),
        (math.inf, [(4, False, False), (4, False, False)]),
    ],
)
def test_training_ends_before_the_step_it_is_to_end_at_of_all_epochs(trained, until, told):
    assert trained(until, len(told)) == told


@pytest.mark.parametrize("name", ["epoch", "val"])
def test_a_pause_is_of_the_window_in_which_it_ended(tmp_path, name):
    pauses, controller = SimpleNamespace(count=7), Controller()
    learner = SimpleNamespace(device=torch.device("cpu"), move=lambda batch: batch, model=None)
    learner.learning_rate = lambda: 0.01
    windows = WindowRunner(Record(tmp_path), controller, Clock(HostTimeline()), learner, Single(1), pauses)

    def stopped(batches):
        pauses.count += 1
        return seen(batches)

    told = []
    for run in (seen, stopped, seen):
        learner.train_epoch = learner.evaluate_epoch = run
        getattr(windows, name)(0, Steps([(torch.zeros(2, 1), torch.tensor([0, 1]))]))
        told.append(controller.requests[WindowMeasured].ranks[0].paused)
        pauses.count += 1  # between two windows, and of neither
    assert told == [False, True, False]
