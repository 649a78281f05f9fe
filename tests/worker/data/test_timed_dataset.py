"""Loader times with a scripted clock, and through real DataLoader workers."""

import errno
import time

import pytest
import torch

from epochmeter.worker.data import timed_dataset
from epochmeter.worker.data.faults import BadSampleError, StorageGoneError
from epochmeter.worker.data.timed_dataset import TimedDataset, TimedLoader, stall_model

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
    """Samples with separate reading, 5 ms, and decoding, 3 ms."""

    def __init__(self, clock):
        self.clock = clock

    def read(self, index):
        return self.clock.after(5, index), 7

    def decode(self, data, index):
        return self.clock.after(3, data)


class Sequence(list):
    """A user's samples: 6 ms of work besides the transform."""

    def __init__(self, clock, transform):
        super().__init__(range(4))
        self.clock, self.transform = clock, transform

    def __getitem__(self, index):
        self.clock.after(4)
        return self.clock.after(2, self.transform(torch.tensor(float(index)))), index


def slow(clock):
    return lambda image: clock.after(2, torch.tensor(float(image)))


@pytest.mark.parametrize(
    ("open_samples", "indices", "times_ms"),
    [
        (lambda clock, transform: Separate(clock), [1], (5, 3 + 2, 3)),
        (lambda clock, transform: Sequence(clock, transform), [3], (6, 2, 0)),
        (lambda clock, transform: Sequence(clock, lambda image: image), [0, 1], (12, 0, 0)),
    ],
    ids=["separate reading and decoding", "a user's samples", "without transform"],
)
def test_batch_carries_times_to_read_preprocess_and_decode(clock, open_samples, indices, times_ms):
    _, times, _ = TimedDataset(lambda transform: open_samples(clock, transform), slow(clock))[indices]
    assert times == (*(time_ms * MS for time_ms in times_ms), 0, -1)


def test_batch_carries_sums_and_collating_is_preprocessing(clock, monkeypatch):
    monkeypatch.setattr(timed_dataset, "default_collate", lambda samples: clock.after(1, samples))
    samples = TimedDataset(lambda transform: Separate(clock), slow(clock))
    batch, times, bad = samples[[0, 1]]
    assert (batch, bad) == ([(0, 7), (1, 7)], [])
    assert times[:3] == (10 * MS, (6 + 4 + 1) * MS, 6 * MS)


class Holed(list):
    """Numbers, of which some raise an error: a bad image's, or one of the file system or of Pillow."""

    def __init__(self, count, bad, error=None):
        super().__init__(range(count))
        self.bad, self.error = bad, error

    def __getitem__(self, index):
        if index in self.bad:
            raise self.error or BadSampleError(f"image {index} cannot be read", f"{index}.png")
        return torch.tensor(float(index)), index


def test_samples_next_to_a_bad_one_are_loaded_again_and_its_decoding_counts_as_preprocessing(clock):
    class HalfBad(Separate):
        def decode(self, data, index):
            if index == 0:
                clock.after(50)
                raise BadSampleError("image 0 cannot be read", "0.png")
            return super().decode(data, index)

    batch, times, bad = TimedDataset(lambda transform: HalfBad(clock), slow(clock), skip=True)[[0, 1]]
    assert (batch[1].tolist(), bad) == ([7], ["0.png"])
    assert times == (2 * (5 + 5) * MS, (2 * 50 + 3 + 2) * MS, 3 * MS, 0, -1)


def passes(samples, batch=4, workers=0, skip=True, **how):
    timed = TimedDataset(lambda transform: samples, lambda image: image, skip=skip)
    return TimedLoader(timed, range(len(samples)), batch, num_workers=workers, **how)


def labels(loaded):
    return [batch[1].tolist() for batch in loaded]


NO_STEPS = [0.0] * 4


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_skipped_counted_and_named(workers):
    loaded = passes(Holed(12, {1, 2, 4, 5, 6, 7, 9}), workers=workers)
    for _ in range(2):
        assert labels(loaded) == [[0, 3], [8, 10, 11]]
        assert loaded.parts(NO_STEPS)["skipped_samples"] == 7
        assert loaded.bad == ["1.png", "2.png", "4.png", "5.png", "6.png"]


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_sample_raises_unless_skipped_and_a_dataset_without_good_samples_is_an_error(workers):
    with pytest.raises(BadSampleError, match="image 5 cannot be read"):
        labels(passes(Holed(8, {5}), workers=workers, skip=False))
    with pytest.raises(RuntimeError, match=r"none of 6 samples could be read; the first: 0\.png"):
        labels(passes(Holed(6, set(range(6))), workers=workers))


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (OSError("cannot identify image file"), "1"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/card/x.png"), "/card/x.png"),
    ],
)
def test_unreadable_user_samples_are_bad(error, name):
    loader = passes(Holed(4, {1}, error))
    assert (labels(loader), loader.bad) == ([[0, 2, 3]], [name])
    with pytest.raises(BadSampleError, match=f"cannot read sample {name}: "):
        labels(passes(Holed(4, {1}, error), skip=False))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("label"), KeyError),
        (StorageGoneError("the storage of the dataset is gone"), StorageGoneError),
        (OSError(errno.EIO, "Input/output error", "/card/x.png"), StorageGoneError),
    ],
)
def test_other_errors_are_never_skipped(error, expected, workers):
    with pytest.raises(expected):
        labels(passes(Holed(4, {1}, error), workers=workers))


class Sleeping(list):
    """Samples that take 20 ms to read and 10 ms to decode."""

    def read(self, index):
        time.sleep(0.02)
        return index, index

    def decode(self, data, index):
        time.sleep(0.01)
        return torch.tensor(float(data))


@pytest.mark.parametrize("workers", [0, 2])
def test_times_arrive_from_dataloader_workers(workers):
    loaded = passes(Sleeping(range(6)), batch=3, workers=workers)
    start = time.perf_counter()
    assert labels(loaded) == [[0, 1, 2], [3, 4, 5]]
    elapsed_s = time.perf_counter() - start
    parts = loaded.parts(NO_STEPS * 2)
    assert parts["loader_read_s"] >= 6 * 0.02
    assert parts["loader_preprocess_s"] >= parts["loader_decode_s"] >= 6 * 0.01
    assert parts["loader_read_s"] + parts["loader_preprocess_s"] <= elapsed_s * max(1, workers)
    assert [worker for *_, worker in loaded.loads()] == [number % workers if workers else -1 for number in range(2)]
    assert all(0 <= begin_ns * 1e-9 - start < elapsed_s for *_, begin_ns, _ in loaded.loads())


@pytest.mark.parametrize(
    ("loaded_s", "compute_s", "workers", "stall_s"),
    [
        ([3, 3, 3], [1, 1, 1], 1, 6),  # exposed
        ([1, 1, 1], [3, 3, 3], 1, 0),  # hidden, and never negative
        ([3, 1], [1, 3], 1, 2),  # each step by itself: spare time of one step does not help the other
        ([4, 4], [1, 1], 2, 2),  # two processes share in it
        ([3, 3], [5, 5], 0, 6),  # none: nothing overlaps
        ([], [], 1, 0),
    ],
)
def test_stall_model_matches_the_literature(loaded_s, compute_s, workers, stall_s):
    assert stall_model(loaded_s, compute_s, workers) == stall_s
