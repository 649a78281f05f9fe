"""Loader times with a scripted clock, and through real DataLoader workers."""

import errno
import time

import pytest
import torch
from cases import case, cases

from epochmeter.shared.problem import Place, Problem
from epochmeter.worker.data import timed_dataset
from epochmeter.worker.data.faults import BadSampleError, StorageGoneError
from epochmeter.worker.data.timed_dataset import TimedDataset, TimedLoader, stall_model
from epochmeter.worker.errors import describe_failure

MS = 1_000_000


class ScriptedClock:
    """A clock that only advances by `after`."""

    now = 0

    def after(self, milliseconds, value=None):
        self.now += milliseconds * MS
        return value


@pytest.fixture(autouse=True)
def short_worker_check(monkeypatch):
    """By default, torch waits 5 s for a worker that raised."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)


@pytest.fixture
def clock(monkeypatch):
    clock = ScriptedClock()
    monkeypatch.setattr(timed_dataset, "perf_counter_ns", lambda: clock.now)
    return clock


class Separate:
    """Samples with separate reading, 5 ms, and decoding, 3 ms, or 50 ms until a bad one fails."""

    def __init__(self, clock, bad=(), count=4):
        self.clock, self.bad, self.count = clock, bad, count

    def __len__(self):
        return self.count

    def read(self, index):
        return self.clock.after(5, index), 7

    def decode(self, data, index):
        if index in self.bad:
            self.clock.after(50)
            raise BadSampleError(Problem(f"image {index} cannot be read", where=Place(file=f"{index}.png")))
        return self.clock.after(3, data)


class Sequence(list):
    """A user's samples: 6 ms of work besides the transform."""

    def __init__(self, clock, transform):
        super().__init__(range(4))
        self.clock, self.transform = clock, transform

    def __getitem__(self, index):
        self.clock.after(4)
        return self.clock.after(2, self.transform(torch.tensor(float(index)))), index


@cases(
    case(
        "separate reading and decoding",
        open_samples=lambda clock, transform: Separate(clock),
        indices=[1],
        labels=[7],
        times_ms=(5, 3 + 2 + 1, 3),
    ),
    case(
        "sums",
        open_samples=lambda clock, transform: Separate(clock),
        indices=[0, 1, 2],
        labels=[7, 7, 7],
        times_ms=(15, 3 * (3 + 2) + 1, 9),
    ),
    case(
        "a user's samples",
        open_samples=lambda clock, transform: Sequence(clock, transform),
        indices=[3],
        labels=[3],
        times_ms=(6, 2 + 1, 0),
    ),
    case(
        "without transform",
        open_samples=lambda clock, transform: Sequence(clock, lambda image: image),
        indices=[0, 1],
        labels=[0, 1],
        times_ms=(12, 1, 0),
    ),
    # samples next to a bad one are loaded again, and its decoding is preprocessing
    case(
        "a bad sample",
        open_samples=lambda clock, transform: Separate(clock, bad={0}),
        indices=[0, 1],
        labels=[7],
        times_ms=(2 * (5 + 5), 2 * 50 + 3 + 2 + 1, 3),
    ),
)
def test_batch_carries_times_to_read_preprocess_decode_and_collate(
    clock, monkeypatch, open_samples, indices, labels, times_ms
):
    monkeypatch.setattr(timed_dataset, "default_collate", lambda samples: clock.after(1, samples))
    samples = TimedDataset(
        lambda transform: open_samples(clock, transform), lambda image: clock.after(2, image), skip=True
    )
    batch, times, bad = samples[indices]
    assert ([label for _, label in batch], len(bad)) == (labels, len(indices) - len(labels))
    assert [float(image) for image, _ in batch] == indices[-len(labels) :]
    assert times == (*(time_ms * MS for time_ms in times_ms), 0, -1)


class Holed(list):
    """Numbers, of which some raise an error: a bad image's, or one of the file system or of Pillow."""

    def __init__(self, count, bad, error=None):
        super().__init__(range(count))
        self.bad, self.error = bad, error

    def __getitem__(self, index):
        if index in self.bad:
            raise self.error or BadSampleError(
                Problem(f"image {index} cannot be read", where=Place(file=f"{index}.png"))
            )
        return torch.tensor(float(index)), index


def passes(samples, batch=4, workers=0, skip=True):
    timed = TimedDataset(lambda transform: samples, lambda image: image, skip=skip)
    return TimedLoader(timed, range(len(samples)), batch, num_workers=workers)


def labels(loaded):
    return [batch[1].tolist() for batch in loaded]


NO_STEPS = [0.0] * 4


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_skipped_counted_and_named_unless_none_is_good(workers):
    loaded = passes(Holed(12, {1, 2, 4, 5, 6, 7, 9}), workers=workers)
    for _ in range(2):
        assert labels(loaded) == [[0, 3], [8, 10, 11]]
        assert loaded.parts(NO_STEPS)["skipped_samples"] == 7
        assert loaded.bad == ["1.png", "2.png", "4.png", "5.png", "6.png"]
    with pytest.raises(RuntimeError, match=r"none of 6 samples could be read; the first: 0\.png"):
        labels(passes(Holed(6, set(range(6))), workers=workers))


def test_unreadable_samples_are_skipped_or_raise():
    for error, name in (
        (None, "1.png"),
        (OSError("cannot identify image file"), "1"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/card/x.png"), "/card/x.png"),
    ):
        loader = passes(Holed(4, {1}, error))
        assert (labels(loader), loader.bad) == ([[0, 2, 3]], [name])
        with pytest.raises(BadSampleError, match=f"cannot read sample {name}: " if error else "image 1 cannot be read"):
            labels(passes(Holed(4, {1}, error), skip=False))


@pytest.mark.parametrize("workers", [0, 1])
def test_error_of_a_sample_keeps_its_fields_from_a_dataloader_worker(workers):
    problem = Problem("cannot read it. Twice.", "restore it", "storage", Place(file="1.png"))
    with pytest.raises(StorageGoneError) as raised:
        labels(passes(Holed(4, {1}, StorageGoneError(problem)), workers=workers))
    assert describe_failure(raised.value, {}) == problem


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("error", "expected"),
    [(KeyError("label"), KeyError), (OSError(errno.EIO, "Input/output error", "/card/x.png"), StorageGoneError)],
)
def test_other_errors_are_never_skipped(error, expected, workers):
    with pytest.raises(expected):
        labels(passes(Holed(4, {1}, error), workers=workers))


class RealClock:
    def after(self, milliseconds, value=None):
        time.sleep(milliseconds / 1000)
        return value


@pytest.mark.parametrize("workers", [0, 2])
def test_times_arrive_from_dataloader_workers(workers):
    loaded = passes(Separate(RealClock(), count=6), batch=3, workers=workers)
    start = time.perf_counter()
    assert labels(loaded) == [[7, 7, 7], [7, 7, 7]]
    elapsed_s = time.perf_counter() - start
    parts = loaded.parts(NO_STEPS * 2)
    assert parts["loader_read_s"] >= 6 * 0.005
    assert parts["loader_preprocess_s"] >= parts["loader_decode_s"] >= 6 * 0.003
    assert parts["loader_read_s"] + parts["loader_preprocess_s"] <= elapsed_s * max(1, workers)
    assert [worker for *_, worker in loaded.load_times()] == [
        number % workers if workers else -1 for number in range(2)
    ]
    assert all(0 <= begin_ns * 1e-9 - start < elapsed_s for *_, begin_ns, _ in loaded.load_times())


def test_stall_model_matches_the_literature():
    for loaded_s, compute_s, workers, stall_s in (
        ([3, 3, 3], [1, 1, 1], 1, 6),  # exposed
        ([3, 1], [1, 3], 1, 2),  # each step by itself: spare time of one step does not help the other
        ([4, 4], [1, 1], 2, 2),  # two processes share in it
        ([3, 3], [5, 5], 0, 6),  # none: nothing overlaps
        ([], [], 1, 0),
    ):
        assert stall_model(loaded_s, compute_s, workers) == stall_s
