import time
from itertools import islice
from multiprocessing import active_children, get_context

import pytest
import torch
from project import wait_until

from epochmeter.shared.process_identity import is_alive, this_process
from epochmeter.worker.data.loader import make_loader, open_split
from epochmeter.worker.data.timed_dataset import TimedDataset
from epochmeter.worker.strategy import Single

JOB = {"batch": 4, "seed": 0, "workers": 0, "prefetch": 2, "pin_memory": "auto", "persistent_workers": True,
       "drop_last": False}  # fmt: skip
SAMPLES = TimedDataset(lambda transform: [(torch.tensor(number), number) for number in range(10)], lambda image: image)


def training(samples=SAMPLES, cuda=False, **keys):
    return make_loader(samples, {**JOB, **keys}, Single(1), cuda)


def order(loader):
    return [number for _, labels in loader for number in labels.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_pass_can_be_cut_and_drop_last_applies_only_to_training(workers):
    loader = training(workers=workers)
    assert len(order(islice(loader, 2))) == 8
    assert len(loader.load_times()) == 2
    assert sorted(order(loader)) == list(range(10))
    config = {**JOB, "drop_last": True, "workers": workers}
    dropping, validation = (make_loader(SAMPLES, config, Single(1), False, is_train) for is_train in (True, False))
    assert ([len(inputs) for inputs, _ in dropping], len(dropping), len(order(validation))) == ([4, 4], 2, 10)


def test_order_depends_only_on_the_seed_and_evaluation_is_in_order():
    state = torch.random.get_rng_state()
    inline, processes = (training(workers=workers) for workers in (0, 2))
    epochs = [order(inline), order(inline)]
    torch.rand(3)  # other random numbers do not change it
    assert [order(processes), order(processes)] == epochs
    assert epochs[0] != epochs[1]
    assert order(training(seed=1)) != epochs[0]
    torch.random.set_rng_state(state)
    assert order(training()) == epochs[0]
    loader = make_loader(SAMPLES, {**JOB, "workers": 1}, Single(1), cuda=False, is_training=False)
    assert (order(loader), loader.persistent_workers) == (list(range(10)), False)
    assert torch.equal(torch.random.get_rng_state(), state), "no loader changes the default random state"


class Noise(list):
    """Samples that are drawn as they are read."""

    def __getitem__(self, index):
        return torch.rand(2), index


def test_restored_state_continues_the_workers_seeds():
    noisy = TimedDataset(lambda transform: Noise(range(4)), lambda image: image)
    first, second = (training(noisy, workers=2, persistent_workers=False) for _ in range(2))
    before = [inputs.tolist() for inputs, _ in first]
    second.load(first.state())
    after = [inputs.tolist() for inputs, _ in second]
    assert after == [inputs.tolist() for inputs, _ in first] != before


def test_pinning_is_as_configured_and_automatic_with_a_gpu(monkeypatch):
    for setting, cuda, available, pinned in (
        ("auto", False, True, False), ("auto", True, True, True), (False, True, True, False), (True, False, True, True),
        (True, False, False, False),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert training(cuda=cuda, pin_memory=setting).pin_memory is pinned


def start_workers(connection):
    loader = iter(training(workers=2))
    next(loader)
    connection.send([worker.pid for worker in active_children()])
    time.sleep(60)


def test_workers_end_with_a_killed_parent():
    receiver, sender = get_context("fork").Pipe(duplex=False)
    parent = get_context("fork").Process(target=start_workers, args=(sender,))
    parent.start()
    workers = [this_process()._replace(pid=pid, start_ticks=None) for pid in receiver.recv()]
    parent.kill()
    parent.join()
    assert len(workers) == 2
    wait_until(lambda: not any(map(is_alive, workers)), limit_s=2)  # torch alone takes 5 s to notice


def test_dataset_is_opened_by_layout(tmp_path):
    """A user's dataset may have one specification for all layouts."""
    config = {"channels": 1, "size": 8, "normalize": {"mean": [0], "std": [1]}, "layout": "memory"}
    layouts = {"files": {"_target_": "no.such.thing"}, "memory": {"_target_": "builtins.list"}}
    for opened, layout, target in ((layouts, "memory", "list"), (layouts["memory"], "memory", "list"),
                                   (layouts, "files", "such")):  # fmt: skip
        with pytest.raises(ValueError, match=rf"\.{target}\b"):
            open_split({**config, "layout": layout, "open": opened}, tmp_path, "train")
    for on_bad in ("skip", "error"):
        opened = open_split({**config, "open": {"_target_": "builtins.slice"}, "on_bad": on_bad}, tmp_path, "train")
        assert opened.skip == (on_bad == "skip")
