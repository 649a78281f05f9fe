"""The number of samples of an epoch, for batches of many layouts: right, or absent."""

import math

import numpy as np
import pytest
import torch
from cases import case, cases
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler

from epochmeter.agent import hooks
from epochmeter.agent.samples import batch_count, counted_by_length
from epochmeter.segmentation.windows import FAILED_BATCH, NO_SAMPLES, OTHER_COUNT

COUNT, BATCH = 18, 4  # the last batch is shorter
SEQUENCES = [torch.randn(7 + number % 5, 6) for number in range(COUNT)]
LAYOUTS = {
    "detection": lambda batch: ((torch.rand(3, 8, 8),) * len(batch), ({"boxes": torch.rand(2, 4)},) * len(batch)),
    "dicts": lambda batch: [{"image": torch.rand(3, 8, 8)} for _ in batch],
    "pairs": lambda batch: [(torch.rand(3, 8, 8), 1) for _ in batch],
    "sentences": lambda batch: list(batch),
    "numpy": lambda batch: (np.zeros((len(batch), 3)), np.zeros(len(batch))),
    "packed": lambda batch: (pack_sequence(batch, enforce_sorted=False), torch.ones(len(batch))),
    "time first": lambda batch: (pad_sequence(batch), torch.ones(len(batch))),
    "padding-free": lambda batch: {"input_ids": torch.cat(batch)[None]},
    "flat with offsets": lambda batch: (torch.cat(batch), torch.zeros(len(batch)), torch.zeros(len(batch))),
    "meta first": lambda batch: {"size": torch.tensor([96, 96]), "x": pad_sequence(batch, True)},
    "strings": lambda batch: ["text"] * len(batch),
    "object": lambda batch: object(),
}  # fmt: skip


class Buckets:
    """A batch sampler of a script, with batches of several sizes."""

    sizes = (3, 5, 4, 6)

    def __len__(self):
        return len(self.sizes)

    def __iter__(self):
        first = 0
        for size in self.sizes:
            yield [*range(first, first + size)]
            first += size


class Stream(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


@pytest.fixture
def samples_of(script):
    """Return the samples of each of two epochs over a loader, and the reason if they are absent."""
    restore = hooks.hook_loaders(script.agent)

    def measure(loader):
        for _ in range(2):
            for _ in loader:
                script.optimizer.step()
        ((samples, reason),) = {(window.parts.get("samples"), window.reason) for window in script.measured.windows}
        return samples, reason

    yield measure
    restore()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_bucketed", [False, True])
def test_samples_are_the_indices_of_the_batch_sampler_whatever_a_batch_is(samples_of, layout, is_bucketed):
    how = {"batch_sampler": Buckets()} if is_bucketed else {"batch_size": BATCH}
    assert samples_of(DataLoader(SEQUENCES, collate_fn=LAYOUTS[layout], **how)) == (COUNT, "")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_persistent", [False, True])
def test_indices_are_counted_in_the_order_of_delivery_also_if_workers_prefetch(samples_of, workers, is_persistent):
    loader = DataLoader(
        [*range(COUNT)], batch_sampler=Buckets(), num_workers=workers, persistent_workers=is_persistent and workers > 0
    )
    assert samples_of(loader) == (COUNT, "")


@pytest.mark.parametrize(
    ("how", "samples"),
    [
        ({"batch_size": BATCH, "drop_last": True}, 16),
        ({"batch_size": None, "sampler": BatchSampler(SequentialSampler(range(COUNT)), 5, False)}, COUNT),
        ({"batch_size": None}, None),
    ],
)
def test_samples_without_torchs_own_batches(samples_of, how, samples):
    class Rows(list):
        def __getitem__(self, index):
            return torch.zeros(3, 2)

    found, reason = samples_of(DataLoader(Rows([0] * COUNT), **how))
    assert (found, reason) == (samples, "" if samples else NO_SAMPLES)


@cases(
    case("pairs", samples=[(torch.zeros(3), 1)] * COUNT, collate=None, batch_size=BATCH, expected=COUNT),
    case("tensors", samples=[torch.zeros(3)] * COUNT, collate=None, batch_size=BATCH, expected=COUNT),
    case(
        "time first",
        samples=SEQUENCES,
        collate=lambda batch: (pad_sequence(batch), torch.ones(len(batch))),
        batch_size=BATCH,
        expected=None,
    ),
    case("sentences", samples=SEQUENCES, collate=list, batch_size=BATCH, expected=None),
    case(
        "own batches",
        samples=[(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long))] * 3,
        collate=None,
        batch_size=None,
        expected=15,
    ),
    case(
        "own dicts",
        samples=[{"input_ids": torch.zeros(5, 9), "attention_mask": torch.zeros(5, 9)}] * 3,
        collate=None,
        batch_size=None,
        expected=15,
    ),
    case(
        "packed",
        samples=[{"input_ids": torch.zeros(1, 99), "position_ids": torch.zeros(1, 99)}] * 3,
        collate=None,
        batch_size=None,
        expected=None,
    ),
    case("own sentences", samples=[[torch.zeros(5)] * 4] * 3, collate=None, batch_size=None, expected=None),
    case("unknown", samples=[torch.zeros(5, 3)] * 3, collate=None, batch_size=None, expected=None),
)
def test_samples_of_a_stream_are_those_that_its_batches_show_with_certainty(
    samples_of, samples, collate, batch_size, expected
):
    loader = DataLoader(Stream(samples), batch_size=batch_size, collate_fn=collate)
    assert samples_of(loader) == (expected, "" if expected else NO_SAMPLES)


def test_samples_are_absent_if_two_passes_over_a_script_s_sampler_are_open(script):
    restore = hooks.hook_loaders(script.agent)
    loader = DataLoader([*range(COUNT)], batch_sampler=Buckets())
    for _ in zip(loader, loader, strict=True):
        script.optimizer.step()
    restore()
    assert "samples" not in script.parts[0]


@pytest.mark.parametrize(("indices", "stated"), [(range(6, COUNT), COUNT), ([*range(5), *range(COUNT)], COUNT)])
def test_samples_are_those_that_a_script_s_sampler_delivers_not_its_length(samples_of, indices, stated):
    class Own(list):
        def __len__(self):
            return stated

    loader = DataLoader(SEQUENCES, BATCH, sampler=Own(indices), collate_fn=list)
    assert samples_of(loader) == (len([*indices]), "")


def test_left_epoch_has_the_samples_of_its_steps(script):
    script.train(DataLoader([(torch.zeros(4), 1)] * COUNT, batch_size=BATCH), steps=3)
    assert script.parts[0]["samples"] == 12


def test_number_of_batches_is_known_without_a_change_of_the_loaders_state():
    class Sized(Stream):
        def __len__(self):
            return len(self.samples)

    class Own(DataLoader):
        def __len__(self):
            return 7

    stream = DataLoader(Sized([0] * COUNT), batch_size=BATCH)
    before = vars(stream).copy()
    for loader, batches in (
        (stream, 5),
        (DataLoader(Sized([0] * COUNT), batch_size=BATCH, drop_last=True), 4),
        (DataLoader(Sized([0] * COUNT), batch_size=None), COUNT),
        (DataLoader(Stream([0] * COUNT)), None),
        (DataLoader([0] * COUNT, batch_size=BATCH), 5),
        (DataLoader([0] * COUNT, batch_sampler=Buckets()), 4),
        (Own([0] * COUNT), 7),
        ([1, 2, 3], 3),
        ((number for number in range(3)), None),
    ):
        assert batch_count(loader) == batches
    assert vars(stream) == before


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_length_of_any_object_is_unknown():
    count = counted_by_length(None)
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    for batch in (None, 5, "text", {"x": [1, 2]}, [], (), torch.tensor(3.0), [torch.zeros(2), 3], nested, [nested]):
        assert math.isnan(count(batch))


class Shuffled:
    """A batch sampler of a script that draws its batches when `iter` is called, and is its own iterator."""

    def __init__(self):
        self.draws = 0

    def __len__(self):
        return 3

    def __iter__(self):
        self.draws += 1
        self.left = torch.randperm(3 * BATCH).view(3, BATCH).tolist()
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop()


@pytest.mark.parametrize("workers", [0, 2])
def test_sampler_that_draws_its_batches_at_once_draws_them_as_without_the_agent(script, workers):
    def run():
        torch.manual_seed(0)
        sampler = Shuffled()
        batches = [batch.tolist() for batch in DataLoader([*range(12)], batch_sampler=sampler, num_workers=workers)]
        return batches, sampler.draws, torch.rand(1)

    bare = run()
    restore = hooks.hook_loaders(script.agent)
    measured = run()
    restore()
    assert measured == bare


class Misstated(Sampler):
    """A sampler of a script whose length is not that of its iteration."""

    def __init__(self, stated, real):
        self.stated, self.real = stated, real

    def __len__(self):
        return self.stated

    def __iter__(self):
        return iter(range(self.real))


@pytest.mark.parametrize(("stated", "real"), [(100, 10), (10, 14), (12, 10), (11, 10), (10, 10)])
def test_samples_are_those_that_a_script_s_sampler_yields_whatever_length_it_states(samples_of, stated, real):
    loader = DataLoader([0] * 100, sampler=Misstated(stated, real), batch_size=BATCH)
    assert samples_of(loader) == (real, "")


class Unreadable(list):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError(index)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("how", "samples", "reason"),
    [
        ({"batch_size": BATCH}, None, OTHER_COUNT),  # it may be the last batch that failed
        ({"batch_size": BATCH, "drop_last": True}, 3 * BATCH, ""),
        ({"batch_sampler": Buckets()}, None, FAILED_BATCH),
    ],
)
def test_samples_of_a_batch_that_failed_do_not_count(script, how, samples, reason):
    restore = hooks.hook_loaders(script.agent)
    batches = iter(DataLoader(Unreadable(range(COUNT)), **how))
    while True:
        try:
            next(batches)
        except ValueError:
            continue
        except StopIteration:
            break
        script.optimizer.step()
    restore()
    assert script.parts[0].get("samples") == samples
    assert script.measured.windows[0].reason == reason
