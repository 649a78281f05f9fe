"""Batches of DataLoaders, timed where they are loaded: the script gets the same, and finds its own objects."""

import importlib
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch
from recorded import events_of, windows_of
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset, get_worker_info

from epochmeter.agent import batch_timer, hooks, sampling
from epochmeter.agent.transform_times import TransformTimes
from epochmeter.segmentation import process
from epochmeter.segmentation.logs import LoadsFile
from epochmeter.shared.events import LOADED

COUNT, BATCH, WAIT_S, WORK_S = 12, 2, 0.004, 0.002


class Samples(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2


class Slotted:
    __slots__ = ("_samples",)

    def __init__(self):
        self._samples = Samples()

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self._samples[index]


class Magic(Samples):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{name}?"


class Lists(Samples):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        return iter(
            [
                Samples()[index]
                for index in range(worker.id if worker else 0, COUNT, worker.num_workers if worker else 1)
            ]
        )


class Known(Samples):
    """Samples that wait and work."""

    def __getitem__(self, index):
        time.sleep(WAIT_S)
        ends = time.thread_time() + WORK_S
        while time.thread_time() < ends:
            pass
        return super().__getitem__(index)


class Threaded(Samples):
    """Samples that a thread prepares, for which the dataset waits."""

    def __getitem__(self, index):
        thread = threading.Thread(target=Known.__getitem__, args=(Known(), index))
        thread.start()
        thread.join()
        return super().__getitem__(index)


class Piped(Samples):
    """Samples that another process prepares, for which the dataset waits."""

    def __getitem__(self, index):
        code = "import time\nends = time.process_time() + 0.02\nwhile time.process_time() < ends: pass"
        subprocess.run([sys.executable, "-S", "-c", code], check=True)
        return super().__getitem__(index)


class Broken(Samples):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError(f"sample {index} of {type(get_worker_info()).__name__}")
        return super().__getitem__(index)


class Shadowed(Samples):
    """An attribute of an object does not replace a special method of its class."""

    def __init__(self):
        self.__getitem__ = lambda index: (torch.zeros(4), 0)


class Replaced(Samples):
    """A class whose method the script replaces."""


class Checked(Samples):
    """Samples that say whether a worker has this dataset, and not something in its place."""

    def __getitem__(self, index):
        worker = get_worker_info()
        return float(worker is None or worker.dataset is self)


DATASETS = {
    "list": lambda: [Samples()[index] for index in range(COUNT)],
    "samples": Samples,
    "slots": Slotted,
    "magic": Magic,
    "subset": lambda: Subset(Lists(), range(COUNT - 1)),
    "concatenated": lambda: ConcatDataset([Samples(), Lists()]),
    "shadowed": Shadowed,
    "tensors": lambda: TensorDataset(torch.arange(4 * COUNT).reshape(COUNT, 4), torch.arange(COUNT)),
    "lists": Lists,
    "stream": Stream,
}
OPTIONS = {
    "0 workers": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 1, "persistent_workers": True},
    "no batches": {"batch_size": None},
}
CASES = [(data, "0 workers") for data in DATASETS]
CASES += [(data, options) for data in ("samples", "lists", "stream") for options in ("workers", "no batches")]
CASES += [("samples", "persistent"), ("stream", "persistent")]


@pytest.fixture
def hooked(script):
    """A script whose agent records all DataLoaders."""
    end = hooks.hook_loaders(script.agent)
    yield script
    end()


def made(data, options):
    generator = torch.Generator().manual_seed(0)
    shuffles = {} if data == "stream" else {"shuffle": True}
    return DataLoader(DATASETS[data](), **{"batch_size": BATCH, **shuffles, **OPTIONS[options]}, generator=generator)


def epochs_of(folder):
    return [window for window in windows_of(folder).windows if window.name == "epoch"]


def train(script, loader, epochs=1):
    """Train as a script does, which iterates over its loader."""
    for _ in range(epochs):
        for batch in loader:
            script.step(batch[0].float().reshape(-1, 4))
    return epochs_of(script.folder)


@pytest.mark.parametrize(("data", "options"), CASES)
def test_batches_are_the_same_and_each_is_timed(hooked, data, options):
    with_hooks = made(data, options)
    batches = [*with_hooks, *with_hooks]
    hooks.loader_agent = None
    bare = made(data, options)
    for batch, other in zip(batches, [*bare, *bare], strict=True):
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(batch, other, strict=True))
    hooks.loader_agent = hooked.agent
    (window, *_) = train(hooked, with_hooks)
    assert {"loader_fetch_s", "loader_collate_s"} <= window.parts.keys()
    assert ("loader_queue_s" in window.parts) == bool(with_hooks.num_workers)


@pytest.mark.parametrize("data", ["samples", "tensors", "stream", "lists"])
@pytest.mark.parametrize("workers", [0, 2])
def test_some_short_batches_are_timed_in_detail_and_workers_read_the_clock_in_the_others(
    hooked, monkeypatch, data, workers
):
    monkeypatch.setattr(sampling, "FIRST_BATCHES", 1)
    monkeypatch.setattr(sampling, "LOADING_BUDGET", 0.0)
    monkeypatch.setattr(sampling, "MAX_EVERY", 4)
    monkeypatch.setattr(batch_timer, "SHORT_NS", math.inf)  # also on a slow machine
    loader, epochs = DataLoader(DATASETS[data](), batch_size=1, num_workers=workers), 8
    bare = [batch[0].tolist() for batch in loader]
    batches = [batch[0].tolist() for _ in range(epochs) for batch in loader]
    hooked.train(DataLoader([(torch.ones(4), 0)]))  # begins a log of the thread in any case
    hooks.loader_agent = None
    assert batches == epochs * [batch[0].tolist() for batch in loader] == epochs * bare
    if workers:
        recorded = [*LoadsFile(hooked.folder / f"{os.getpid()}.loads").read()]
    else:
        recorded = [event for events in events_of(hooked.folder).values() for event in events]
    detailed = [not math.isnan(event.value) for event in recorded if event.kind == LOADED]
    total = (epochs + 1) * COUNT
    assert len(detailed) == total if workers else all(detailed)
    assert 0.15 * total < sum(detailed) < 0.55 * total


@pytest.mark.parametrize("workers", [0, 1])
def test_script_finds_its_own_objects_while_it_iterates(hooked, workers):
    def collate(samples):
        return torch.tensor(samples)

    data = Checked()
    loader = DataLoader(data, BATCH, num_workers=workers, collate_fn=collate)
    before = pickle.dumps((loader.dataset, loader.sampler)), sorted(vars(loader))
    for batch in loader:
        assert batch.tolist() == [1.0] * BATCH
        assert (loader.dataset, loader.collate_fn, loader.worker_init_fn) == (data, collate, None)
    assert (pickle.dumps((loader.dataset, loader.sampler)), sorted(vars(loader))) == before
    assert not hasattr(DataLoader, "dataset")
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'dataset'"):
        object.__new__(DataLoader).dataset  # noqa: B018


def test_method_that_the_script_replaces_within_a_pass_loads_the_next_batches(hooked, monkeypatch):
    batches = iter(DataLoader(Replaced(), BATCH))
    assert next(batches)[1].tolist() == [0, 1]
    monkeypatch.setattr(Replaced, "__getitem__", lambda samples, index: (torch.zeros(4), 7))
    assert [labels.tolist() for _, labels in batches] == [[7, 7]] * (COUNT // BATCH - 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_error_of_a_dataset_has_the_same_traceback_and_later_batches_are_timed(hooked, workers):
    def failure():
        iterator, found = iter(DataLoader(Broken(), BATCH, num_workers=workers)), []
        for _ in range(COUNT // BATCH):
            try:
                found.append(next(iterator))
            except ValueError as error:
                text = "".join(traceback.format_exception(error)) if sys.version_info >= (3, 11) else str(error)
                found.append(text[text.index("fetch.py") :])
        return found

    measured = failure()
    hooks.loader_agent = None
    bare = failure()
    assert [str(each) for each in measured] == [str(each) for each in bare]
    hooks.loader_agent = hooked.agent
    iterator = iter(DataLoader(Broken(), BATCH, num_workers=workers))
    for _ in range(COUNT // BATCH):
        try:
            hooked.step(next(iterator)[0])
        except ValueError:
            continue
    assert next(iterator, None) is None
    (window,) = epochs_of(hooked.folder)
    assert window.parts["steps"] == COUNT // BATCH - 1
    assert "loader_fetch_s" in window.parts


@pytest.fixture
def alone():
    """Child processes that earlier tests have left, as for replays, do not work meanwhile: that counts as help."""
    children = [int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    for child in children:
        os.kill(child, signal.SIGSTOP)
    yield
    for child in children:
        os.kill(child, signal.SIGCONT)


@pytest.mark.parametrize("workers", [0, 1])
def test_sleep_is_reading_and_processor_time_is_preprocessing(hooked, workers, monkeypatch, alone):
    monkeypatch.setattr(sampling, "LOADING_BUDGET", 1.0)  # all are timed, also if a busy machine delays one of them
    # Of three passes, a busy machine may have disturbed some, in which waits and work are not known apart.
    windows = train(hooked, DataLoader(Known(), BATCH, num_workers=workers), epochs=3)
    parts = next((window.parts for window in windows if "loader_read_s" in window.parts), windows[0].parts)
    loading_s = parts["loader_fetch_s"] + parts["loader_collate_s"]
    assert parts["loader_read_s"] + parts["loader_preprocess_s"] == pytest.approx(loading_s)
    assert parts["loader_read_s"] >= COUNT * WAIT_S  # both are longer on a busy machine
    assert parts["loader_preprocess_s"] >= COUNT * WORK_S


@pytest.mark.parametrize("data", [Threaded, Piped])
@pytest.mark.parametrize("workers", [0, 1])
def test_waits_for_threads_and_processes_of_a_dataset_are_not_reading(hooked, data, workers):
    (window,) = train(hooked, DataLoader(data(), BATCH, num_workers=workers))
    assert "loader_fetch_s" in window.parts
    assert "loader_read_s" not in window.parts


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, sample):
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Slow:
    def __call__(self, sample):
        time.sleep(WAIT_S)
        return sample


def quick(sample):
    return sample


class Transformed(Samples):
    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return self.transform(inputs), target


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("transform", "names"),
    [
        (Compose([quick, Slow(), quick]), ["Slow", "quick (1)", "quick (2)"]),
        (nn.Sequential(nn.Identity(), nn.ReLU()), ["Identity", "ReLU"]),
        (Slow(), ["Slow"]),
    ],
    ids=["Compose", "Sequential", "one"],
)
def test_transforms_are_timed_by_name_and_in_their_place_again(hooked, workers, transform, names):
    data = Subset(Transformed(transform), range(COUNT))
    steps = list(getattr(transform, "transforms", []))
    (window,) = train(hooked, DataLoader(data, BATCH, num_workers=workers))
    assert sorted(window.loading["transforms"]) == names
    assert window.parts["loader_transform_s"] <= window.parts["loader_fetch_s"]
    if "Slow" in names:
        assert next(iter(window.loading["transforms"])) == "Slow"
        assert window.loading["transforms"]["Slow"] >= 0.5 * COUNT * WAIT_S
    assert list(getattr(transform, "transforms", [])) == steps
    assert data.dataset.transform is transform


def test_timed_transform_raises_its_error_and_is_pickled_as_itself():
    def broken(sample):
        raise KeyError(sample)

    data = Transformed(Compose([Slow(), broken]))
    times = TransformTimes(data)
    times.install()
    timed, _ = data.transform.transforms
    assert isinstance(timed, Slow)
    assert pickle.dumps(timed) == pickle.dumps(Slow())
    with pytest.raises(KeyError):
        data[0]
    times.remove()
    assert [type(each) for each in data.transform.transforms] == [Slow, type(broken)]
    assert times.take().keys() == {"Slow", broken.__qualname__}
    assert times.take() == {}


class Scaled(Compose):
    """Transforms with special methods, and with a parameter."""

    scale = 1

    def __iter__(self):
        return iter(["a", "b"])

    def __len__(self):
        return 2


def test_timed_transform_is_the_key_and_has_the_methods_and_the_attributes_of_its_transform():
    transform = Scaled([])
    del transform.transforms
    data = Transformed(transform)
    times, uses = TransformTimes(data), {transform: 1}
    times.install()
    timed = data.transform
    assert timed is not transform
    assert (uses[timed], timed == transform, transform == timed) == (1, True, True)
    assert (len(timed), list(timed)) == (2, ["a", "b"])
    timed.scale = 3
    timed.of_script = 4
    assert (transform.scale, transform.of_script, timed.scale) == (3, 4, 3)
    del timed.of_script
    assert not hasattr(transform, "of_script")
    times.remove()
    assert data.transform is transform


class Shuffled(Compose):
    """Transforms that it reorders, and of which it drops one, while it transforms a sample."""

    def __call__(self, sample):
        self.transforms.reverse()
        self.transforms.pop()
        return super().__call__(sample)


def test_transforms_that_a_dataset_moves_are_its_own_again():
    slow, data = Slow(), Transformed(Shuffled([quick, quick]))
    data.transform.transforms.append(slow)
    times = TransformTimes(data)
    for left in ([slow, quick], [slow]):
        times.install()
        data[0]
        times.remove()
        assert data.transform.transforms == left
        data.transform.transforms[:] = [*left[::-1]]


def unchanged(samples):
    return samples


@pytest.mark.parametrize("is_importable", [True, False])
def test_spawned_worker_makes_the_timed_parts_again_or_loads_without_them(hooked, monkeypatch, is_importable):
    loader = DataLoader(Samples(), BATCH, collate_fn=unchanged)
    parts = hooked.agent.passes._timed_parts(loader)
    content = pickle.dumps(parts)
    assert b"epochmeter.agent" not in content.replace(b"epochmeter/agent", b"")
    if not is_importable:
        monkeypatch.setattr(importlib, "import_module", missing)
    path = [*sys.path]
    again = pickle.loads(content)  # noqa: S301
    assert sys.path == path
    assert isinstance(again["dataset"], Samples)
    assert [type(again[name]) is type(getattr(loader, name)) for name in parts] == [not is_importable] * len(parts)
    assert again["dataset"][1][1] == 1
    assert again["collate_fn"]([1]) == [1]


def missing(name):
    raise ImportError(name)


def test_failure_of_the_timing_is_noted_and_the_batches_are_delivered(hooked, monkeypatch):
    monkeypatch.setattr(batch_timer, "monotonic_ns", lambda: 1 / 0)
    train(hooked, DataLoader(Samples(), BATCH, num_workers=1))
    assert process.UNTIMED.format("ZeroDivisionError: division by zero") in windows_of(hooked.folder).notes
    assert hooked.agent.is_on
