import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from trainmeter.worker.data.loader import train_loader, val_loader

JOB = {
    "batch": 4,
    "seed": 0,
    "workers": 0,
    "prefetch": 2,
    "pin_memory": "auto",
    "persistent_workers": True,
}
SAMPLES = list(range(10))


def job(**keys):
    return {**JOB, **keys}


def order(loader):
    return [number for batch in loader for number in batch.tolist()]


def test_every_sample_comes_once_an_epoch_and_the_last_batch_may_be_smaller():
    loader = train_loader(SAMPLES, job(), cuda=False)
    assert sorted(order(loader)) == SAMPLES
    assert [len(batch) for batch in loader] == [4, 4, 2]


def test_the_seed_alone_decides_the_order_of_every_epoch():
    inline, processes = (train_loader(SAMPLES, job(workers=workers), cuda=False) for workers in (0, 2))
    epochs = [order(inline), order(inline)]
    torch.rand(3)  # what else draws random numbers changes nothing
    assert [order(processes), order(processes)] == epochs
    assert epochs[0] != epochs[1]
    assert order(train_loader(SAMPLES, job(seed=1), cuda=False)) != epochs[0]


def test_a_loader_leaves_the_random_numbers_of_the_model_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    order(train_loader(SAMPLES, job(), cuda=False))
    order(val_loader(SAMPLES, job(), cuda=False))
    assert torch.rand(1) == expected


def test_evaluation_goes_in_the_samples_order_and_keeps_no_processes():
    loader = val_loader(SAMPLES, job(workers=1), cuda=False)
    assert order(loader) == SAMPLES
    assert not loader.persistent_workers


@pytest.mark.parametrize(
    ("asked", "cuda", "pinned"),
    [("auto", False, False), ("auto", True, True), (False, True, False), (True, False, True)],
)
def test_memory_is_pinned_as_asked_and_by_itself_only_for_a_gpu(asked, cuda, pinned):
    assert train_loader(SAMPLES, job(pin_memory=asked), cuda).pin_memory is pinned


def test_prefetch_and_persistence_are_of_loader_processes():
    assert train_loader(SAMPLES, job(workers=2, prefetch=3), cuda=False).prefetch_factor == 3
    assert train_loader(SAMPLES, job(workers=2), cuda=False).persistent_workers
    assert not train_loader(SAMPLES, job(workers=0), cuda=False).persistent_workers
    assert not train_loader(SAMPLES, job(workers=2, persistent_workers=False), cuda=False).persistent_workers


PARENT = """
import os, time
from trainmeter.worker.data.loader import train_loader
loader = iter(train_loader(list(range(8)), {job}, cuda=False))
next(loader)
print(*(worker.pid for worker in loader._workers), flush=True)
time.sleep(60)
"""


def test_loader_processes_end_with_a_parent_that_is_killed():
    source = str(Path(__file__).parents[3] / "src")
    script = PARENT.format(job=job(workers=2))
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 2  # torch alone takes 5 s to notice
    while any(running(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(workers) == 2
    assert not any(running(pid) for pid in workers)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
