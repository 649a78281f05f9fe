"""Replay: after the first pass, a script gets the same batches again without any loading."""

import collections
import itertools
import multiprocessing
import os

import numpy as np
import pytest
import torch
from recorded import Connection, Script, events_of
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from epochmeter.agent import hooks, recording, replay
from epochmeter.agent.kept_batches import KeptBatch
from epochmeter.shared import events
from epochmeter.shared.protocol import REPLAYED_ON_NODES, Loaded, NotReplayed

SAMPLES, BATCH = 12, 2
ENDLESS = 10
Pair = collections.namedtuple("Pair", "inputs targets")


class Counted(Dataset):
    """Counts how often its samples are read, in its own process."""

    def __init__(self, count=SAMPLES):
        self.count, self.reads = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        self.reads += 1
        return torch.full((3,), float(number)), number


class Stream(IterableDataset):
    """Yields samples without stating how many; `None`: without an end."""

    def __init__(self, count):
        self.count, self.reads = count, 0

    def __iter__(self):
        for number in itertools.count() if self.count is None else range(self.count):
            self.reads += 1
            yield float(number)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script whose loaders are replayed; of each loader, three batches are kept."""
    monkeypatch.setattr(recording, "ScriptConnection", lambda *_: Connection(tmp_path / "events"))
    monkeypatch.setattr(replay, "MAX_BATCHES", 3)
    script = Script(tmp_path, replay=ENDLESS)
    restores = [script.unhook, hooks.hook_loaders(script.agent)]
    yield script
    for restore in restores:
        restore()
    script.agent.end()


def targets(loader):
    return [batch[1].tolist() for batch in loader]


def test_later_passes_take_nothing_from_the_loader_and_have_its_length(script):
    dataset = Counted()
    loader = DataLoader(dataset, batch_size=BATCH)
    first = targets(loader)
    assert first == [[0, 1], [2, 3], [4, 5]] * 2
    assert dataset.reads == 3 * BATCH, "the first pass also ends with kept batches"
    script.connection.sent.clear()
    assert [targets(loader) for _ in range(2)] == [first, first]
    assert (dataset.reads, len(loader)) == (3 * BATCH, SAMPLES // BATCH)
    assert not script.connection.sent


def test_passes_in_which_a_loader_delivers_batches_are_reported(script):
    loader = DataLoader(Counted(), batch_size=BATCH)
    targets(loader)
    first, last = script.connection.of(Loaded)
    times_ns = [event.time_ns for event in events_of(script.folder)[0] if event.kind in (events.PASS, events.END)]
    assert times_ns[0] < first.at_ns < last.at_ns < times_ns[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_end_once_the_batches_are_kept(script, workers):
    loader = DataLoader(Counted(), batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    assert not multiprocessing.active_children()
    assert loader._iterator is None
    targets(loader)
    assert not multiprocessing.active_children()


def test_views_of_one_buffer_are_copied_before_the_loader_fills_it_again(script):
    buffer = torch.zeros(3)

    class Filling(DataLoader):
        def __iter__(self):
            for number in range(3):
                yield buffer.fill_(number)

    loader = Filling([0] * 3)
    assert [[batch[0].item() for batch in loader] for _ in range(3)] == [[0, 1, 2]] * 3


def changed_in_place(batch):
    batch["x"].mul_(2)


def replaced(batch):
    batch["x"] = batch["x"] + 1
    del batch["names"]
    batch["more"].append(4)


def resized(batch):
    batch["x"].resize_(1)
    batch["x"].requires_grad_()


@pytest.mark.parametrize("change", [changed_in_place, replaced, resized])
def test_each_delivery_is_as_the_loader_delivered_it_whatever_the_script_changes(change):
    def made():
        shared = torch.arange(4.0)
        return {"x": shared, "same": shared, "names": ["a"], "more": [1, 2], "pair": Pair(np.ones(2), torch.tensor(3))}

    original = made()
    kept = KeptBatch(original)
    change(original)
    for _ in range(3):
        batch, expected = kept.deliver(), made()
        assert batch["x"] is batch["same"]
        assert torch.equal(batch["x"], expected["x"])
        assert not batch["x"].requires_grad
        assert (batch["names"], batch["more"]) == (["a"], [1, 2])
        assert type(batch["pair"]) is Pair
        assert batch["pair"].inputs.tolist() == [1, 1]
        change(batch)


def test_unchanged_tensors_are_not_copied_again():
    kept = KeptBatch([torch.zeros(1000), torch.ones(1000)])
    first, second = kept.deliver(), kept.deliver()
    assert first[0] is second[0]
    second[1].add_(1)
    third = kept.deliver()
    assert third[0] is first[0]
    assert third[1] is not first[1]
    assert kept.size >= 2 * 2 * 4000


class Frames(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, dtype=torch.int8), torch.zeros(2, 3).t(), torch.zeros(3).expand(4, 3), torch.eye(2).to_sparse(),
        torch.zeros(2, requires_grad=True), torch.zeros(3).as_subclass(Frames), torch.nn.Parameter(torch.zeros(2)),
    ],
)  # fmt: skip
def test_tensors_of_every_kind_keep_their_type(tensor):
    kept = KeptBatch(tensor)
    for _ in range(2):
        copy = kept.deliver()
        assert (type(copy), copy.dtype, copy.shape) == (type(tensor), tensor.dtype, tensor.shape)
        assert copy.requires_grad == tensor.requires_grad
    with torch.inference_mode():
        made = KeptBatch(torch.ones(2))
    made.deliver().mul_(3)
    assert made.deliver().tolist() == [1, 1]


def test_batch_that_cannot_be_copied_is_reported_and_the_script_gets_all_batches(script):
    loader = DataLoader(range(4), collate_fn=lambda samples: lambda: samples[0])
    assert [[batch() for batch in loader] for _ in range(2)] == [[0, 1, 2, 3]] * 2
    (failed,) = script.connection.of(NotReplayed)
    assert failed.problem.message.startswith("the batches of DataLoader cannot be kept: ")
    assert failed.problem.hint


class UnreadableError(ValueError):
    """Can be pickled, but not read again."""

    def __init__(self, text, number):
        super().__init__(text)


class Row:
    """A view of a row of a buffer, without a class that torch knows."""

    def __init__(self, buffer):
        self.row = buffer[0]


def test_batch_that_can_be_pickled_but_not_read_again_is_reported(script):
    loader = DataLoader(range(4), collate_fn=lambda samples: UnreadableError("text", samples[0]))
    assert [[str(batch) for batch in loader] for _ in range(2)] == [["text"] * 4] * 2
    (failed,) = script.connection.of(NotReplayed)
    assert "UnreadableError.__init__() missing" in failed.problem.message


@pytest.mark.parametrize("make", [lambda buffer: torch.from_numpy(buffer[0]), lambda buffer: buffer[:, 0], Row])
def test_views_of_an_array_that_is_filled_again_are_copied(script, make):
    buffer = np.zeros((2, 3), np.float32)

    def collate(samples):
        buffer[:] = samples[0]
        return make(buffer)

    def value(batch):
        return float(getattr(batch, "row", batch)[0])

    loader = DataLoader(range(4), collate_fn=collate)
    # Of four batches, the first three are kept.
    assert [[value(batch) for batch in loader] for _ in range(3)] == [[0, 1, 2, 0]] * 3


@pytest.mark.parametrize(("local", "is_replayed"), [("2", False), ("4", True)])
def test_nothing_is_replayed_on_several_nodes(script, monkeypatch, local, is_replayed):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    loader = DataLoader(Counted(), batch_size=BATCH)
    for _ in range(2):
        assert len([*loader]) == SAMPLES // BATCH
    assert (loader.dataset.reads < 2 * SAMPLES) == is_replayed
    assert [failed.problem for failed in script.connection.of(NotReplayed)] == [REPLAYED_ON_NODES] * (not is_replayed)


@pytest.mark.parametrize("workers", [0, 2])
def test_pass_of_unknown_length_has_that_of_the_first_one(script, workers):
    loader = DataLoader(Stream(7), batch_size=None, num_workers=workers)
    count = 7 * max(1, workers)
    assert [sum(1 for _ in loader) for _ in range(3)] == [count] * 3
    assert workers or loader.dataset.reads == 7


def test_pass_of_unknown_length_that_was_left_early_is_later_completed(script):
    loader = DataLoader(Stream(7), batch_size=None)
    for _, _ in zip(range(4), loader, strict=False):
        pass
    assert [sum(1 for _ in loader) for _ in range(2)] == [7, 7]


def test_endless_pass_stays_endless(script):
    loader = DataLoader(Stream(None), batch_size=None)
    for number, _ in enumerate(loader):
        script.optimizer.step()
        if number == 50:
            break
    assert loader.dataset.reads == ENDLESS


def test_long_evaluation_of_unknown_length_ends(script):
    loader = DataLoader(Stream(2 * ENDLESS), batch_size=None)
    assert [sum(1 for _ in loader) for _ in range(2)] == [2 * ENDLESS] * 2
    assert loader.dataset.reads == 2 * ENDLESS


def test_pass_that_is_left_early_is_replayed_from_its_begin(script):
    dataset = Counted()
    loader = DataLoader(dataset, batch_size=BATCH)
    for _ in range(3):
        assert next(iter(loader))[1].tolist() == [0, 1]
    assert dataset.reads == BATCH
    assert [sum(1 for _ in loader) for _ in range(2)] == [6, 6]
    assert dataset.reads < SAMPLES


def test_two_loaders_in_one_loop_have_their_own_batches_and_lengths(script):
    long, short = DataLoader(Counted(10), batch_size=1), DataLoader(Counted(4), batch_size=2)
    for _ in range(2):
        pairs = [(one[1].tolist(), other[1].tolist()) for one, other in zip(long, short, strict=False)]
        assert pairs == [([0], [0, 1]), ([1], [2, 3])]
    assert sum(1 for _ in long) == 10


def test_new_loader_over_the_same_dataset_is_replayed(script):
    dataset = Counted()
    for _ in range(3):
        assert len(targets(DataLoader(dataset, batch_size=BATCH, shuffle=True))) == SAMPLES // BATCH
    assert dataset.reads == 3 * BATCH
    targets(DataLoader(dataset, batch_size=BATCH + 1))
    assert dataset.reads > 3 * BATCH, "other batches are not alike"


def test_error_of_the_loader_reaches_the_script(script):
    class Failing(Counted):
        def __getitem__(self, number):
            if number == 2:
                raise KeyError(number)
            return super().__getitem__(number)

    loader = DataLoader(Failing(), batch_size=BATCH)
    with pytest.raises(KeyError):
        targets(loader)
    assert script.agent.is_on


def test_loader_that_states_too_many_batches_is_replayed_with_those_that_it_has(script):
    class Stated(Stream):
        def __len__(self):
            return 9

    loader = DataLoader(Stated(2), batch_size=None)
    assert [sum(1 for _ in loader) for _ in range(3)] == [2, 2, 2]


def test_subclass_that_uses_torchs_iterator_still_does_its_own_work(script):
    class Doubled(DataLoader):
        ended = 0

        def __iter__(self):
            for inputs, numbers in super().__iter__():
                yield inputs, 2 * numbers
            self.ended += 1

    loader = Doubled(Counted(), batch_size=BATCH)
    assert [targets(loader)[0] for _ in range(3)] == [[0, 2]] * 3
    assert (loader.ended, loader.dataset.reads) == (3, 3 * BATCH)


def test_sampler_of_the_script_keeps_working(script):
    sampler = torch.utils.data.DistributedSampler(Counted(), num_replicas=2, rank=0)
    loader = DataLoader(sampler.dataset, batch_size=BATCH, sampler=sampler)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        assert len(targets(loader)) == len(loader) == 3


def test_memory_of_kept_batches_is_limited(script, monkeypatch):
    monkeypatch.setattr(replay, "MAX_BYTES", 100)
    loader = DataLoader(torch.zeros(6, 100), batch_size=1)
    assert [sum(1 for _ in loader) for _ in range(2)] == [6, 6]
    (kept,) = script.agent._replay._kept[True]._entries.values()
    assert len(kept[1].batches) == 1


def test_script_whose_controller_is_gone_ends(script, monkeypatch, capfd):
    ended = []
    monkeypatch.setattr(os, "kill", lambda *arguments: ended.append(arguments))
    loader = DataLoader(Subset(Counted(), range(2)))
    targets(loader)
    script.connection.lost = "it is gone"
    targets(loader)
    assert ended == [(os.getpid(), replay.signal.SIGTERM)]
    assert "controller is gone" in capfd.readouterr().err
