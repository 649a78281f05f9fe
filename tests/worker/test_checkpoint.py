import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch.utils.data import RandomSampler
from worker.ranked import Rank
from worker.test_trainer import JOB

from epochmeter.shared.record import CHECKPOINT, Record
from epochmeter.worker import rng
from epochmeter.worker.checkpoint import Checkpoint
from epochmeter.worker.data.timed_dataset import TimedLoader
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Classification
from epochmeter.worker.trainer import Trainer
from epochmeter.worker.training import train

CPU = torch.device("cpu")
ADAM = {"_target_": "torch.optim.Adam", "name": "adam", "lr": 0.01}
IMAGES = Classification(auxiliary=0)


def start(folder, strategy=None, every=1):
    """Return trainer, loader and checkpoint as they are before training."""
    rng.seed_all(0)
    strategy = strategy or Single(1)
    trainer = Trainer({**JOB, "optimizer": ADAM}, IMAGES, strategy, CPU)
    shuffled = torch.Generator().manual_seed(0)
    order = RandomSampler(range(12), generator=shuffled)
    loader = TimedLoader(range(12), order, 4, generators=[shuffled])
    checkpoint = Checkpoint(Record(folder), trainer, (loader,), strategy, every)
    return SimpleNamespace(trainer=trainer, loader=loader, checkpoint=checkpoint)


def epoch(worker):
    """Train an epoch; return its losses, order and learning rate, and a number of each random generator."""
    images, labels = IMAGES.example(JOB["dataset"], 12, torch.Generator().manual_seed(1))
    order = [index for indices in worker.loader.sampler for index in indices]
    noisy = [images[[index]] + torch.randn(1) for index in order]
    stats = worker.trainer.train_epoch([(image, labels[[index]]) for image, index in zip(noisy, order, strict=True)])
    worker.trainer.step_scheduler()
    return stats.losses(), order, random.random(), numpy.random.rand(), worker.trainer.learning_rate()


@pytest.fixture
def folder(tmp_path):
    Record(tmp_path).describe({}, {"record_id": "this run"})
    return tmp_path


def resumed(folder):
    Record(folder).describe({}, {"record_id": "this run", "resumed": [{"epoch": 2}]})
    return folder


def test_resumed_training_equals_uninterrupted_training(folder):
    first = start(folder)
    epochs = [epoch(first) for _ in range(2)]
    first.checkpoint.write(2, ended=False)
    epochs += [epoch(first) for _ in range(2)]
    assert start(folder).checkpoint.resume() == (0, False), "a fresh run ignores an existing checkpoint"
    second = start(resumed(folder))
    assert second.checkpoint.resume() == (2, False)
    assert [epoch(second) for _ in range(2)] == epochs[2:]
    assert epochs[2] != epochs[0]


class Windows:
    """Epochs and evaluations, with what they compute; an evaluation changes a buffer by a random number."""

    def __init__(self, folder, dies_in=None, last=None):
        self.worker, self.log, self.dies_in, self.last = start(folder), [], dies_in, last
        self.worker.trainer.model.register_buffer("mean", torch.zeros(1))

    def epoch(self, number, loader):
        return self._pass("epoch", number, epoch(self.worker))

    def val(self, number, loader):
        self.worker.trainer.model.mean += torch.rand(1)
        return self._pass("val", number, self.worker.trainer.model.mean.item(), random.random())

    def _pass(self, name, number, *values):
        if (name, number) == self.dies_in:
            raise RuntimeError("killed")
        self.log.append((name, number, *values))
        return (name, number) == self.last

    def train(self):
        """Train four epochs, or the rest of them."""
        completed, ended = self.worker.checkpoint.resume()
        if not ended:
            train(range(completed, 4), self, self.worker.trainer, self.worker.checkpoint, None, object())


@pytest.mark.parametrize("dies_in", [("val", 1), ("epoch", 2), ("val", 3)])
def test_epoch_whose_evaluation_dies_is_kept_and_the_rest_is_uninterrupted(folder, dies_in):
    uninterrupted = Windows(folder)
    uninterrupted.train()
    killed = Windows(folder, dies_in)
    with pytest.raises(RuntimeError, match="killed"):
        killed.train()
    epochs = Record(folder).checkpoint()["epochs"]
    assert epochs == (4 if dies_in[1] == 3 else 2)
    again = Windows(resumed(folder))
    again.train()
    assert again.log == uninterrupted.log[2 * epochs - 1 :], "from the evaluation after the checkpoint on"


def test_training_that_ended_with_an_epoch_or_an_evaluation_does_not_continue(folder):
    for last, expected in ((("val", 1), [("val", 1)]), (("epoch", 1), [])):
        Record(folder).describe({}, {"record_id": "this run"})
        ends = Windows(folder, last=last)
        ends.train()
        assert ends.log[-1][:2] == last
        again = Windows(resumed(folder), last=last)
        again.train()
        assert [entry[:2] for entry in again.log] == expected


@pytest.mark.parametrize("now_s", [60.0, 5e9])
def test_checkpoint_is_written_at_times_that_a_zip_file_cannot_have(folder, monkeypatch, now_s):
    """In 1970, as on a board that has lost its clock, and in 2128."""
    monkeypatch.setattr("time.time", lambda: now_s)
    start(folder).checkpoint.write(1, ended=False)
    assert Record(folder).checkpoint(verify=True) == {"record_id": "this run", "epochs": 1}
    assert start(resumed(folder)).checkpoint.resume() == (1, False)


def test_checkpoint_is_written_every_n_epochs(folder):
    for every, expected in ((None, [None] * 4), (3, [None, None, 3, 3]), (2, [3, 2, 2, 4]), (1, [1, 2, 3, 4])):
        checkpoint = start(folder, every=every).checkpoint
        for epochs, last in enumerate(expected, 1):
            checkpoint.write(epochs, ended=False)
            assert (Record(folder).checkpoint() or {}).get("epochs") == last


def test_metadata_is_readable_without_torch_and_the_model_is_without_wrappers(folder):
    class Wrapping(Single):
        def wrap(self, model, device):
            return torch.nn.Sequential(model), model

    worker = start(folder, Wrapping(1))
    worker.checkpoint.write(3, ended=False)
    assert Record(folder).checkpoint(verify=True) == {"record_id": "this run", "epochs": 3}
    assert sorted(path.name for path in folder.iterdir()) == [CHECKPOINT, "job.json"]
    state = torch.load(folder / CHECKPOINT)
    assert (state["epochs"], state["learner"]["model"].keys()) == (3, worker.trainer.model.state_dict().keys())


def test_failed_write_raises_and_keeps_the_previous_checkpoint(folder):
    checkpoint = start(folder).checkpoint
    checkpoint.write(1, ended=False)
    (folder / f".{CHECKPOINT}").mkdir()
    with pytest.raises(RuntimeError, match=r"the checkpoint after 2 epochs: "):
        checkpoint.write(2, ended=False)
    assert Record(folder).checkpoint()["epochs"] == 1


def test_loading_executes_no_code_from_the_file(folder):
    class Program:
        def __reduce__(self):
            return (folder / "ran").mkdir, ()

    torch.save({"epochs": 1, "learner": Program()}, folder / CHECKPOINT)
    with pytest.raises(RuntimeError, match=r"cannot read the checkpoint .*checkpoint\.pt"):
        start(resumed(folder)).checkpoint.resume()
    assert not (folder / "ran").exists()


def test_rank_0_writes_and_reads_for_all_and_random_state_is_per_rank(folder):
    second = start(folder, Rank(1))
    torch.manual_seed(7)
    states = []
    second.checkpoint._strategy.all_gather = lambda own: states.append(own) or [None, own]
    second.checkpoint.write(1, ended=False)
    drawn = torch.rand(3)
    assert not (folder / CHECKPOINT).exists()
    start(folder, Rank(0, states[0])).checkpoint.write(1, ended=False)
    elsewhere = folder / "elsewhere"  # another node's folder, with no checkpoint in it
    elsewhere.mkdir()
    again = start(elsewhere, Rank(1, torch.load(folder / CHECKPOINT)))
    assert again.checkpoint.resume() == (1, False)
    assert torch.equal(torch.rand(3), drawn)
