import errno
import os
import signal
from multiprocessing import active_children, get_context

import pytest
import torch
from pipeline import Slow
from torch.utils.data import DataLoader
from worker.data.test_loader import JOB

from epochmeter.worker.data.faults import BadSampleError, StorageGoneError, bad_sample_error
from epochmeter.worker.data.loader import make_loader
from epochmeter.worker.data.timed_dataset import TimedDataset
from epochmeter.worker.errors import describe_failure
from epochmeter.worker.strategy import Single


def test_storage_failure_is_not_a_bad_sample():
    for error, folder, expected in (
        *((OSError(number, "reason"), ".", StorageGoneError) for number in (errno.EIO, errno.ENODEV, errno.ESTALE)),
        (FileNotFoundError(errno.ENOENT, "no such file"), "./unplugged", StorageGoneError),
        (FileNotFoundError(errno.ENOENT, "no such file"), ".", BadSampleError),
        (OSError("image file is truncated"), "./unplugged", BadSampleError),
    ):
        described = bad_sample_error("a.png", error, folder)
        assert (type(described), "a.png" in str(described)) == (expected, True)


def break_connection(loader, load=DataLoader.__iter__):
    """Iterate like a loader whose connection to its worker fails before torch notices that the worker died."""
    for _ in load(loader):
        os.kill(active_children()[0].pid, signal.SIGKILL)
        raise ConnectionResetError("Connection reset by peer")
    yield


def train_until_a_worker_ends(number, connection):
    samples = TimedDataset(lambda transform: Slow(400, 0.01, 0.0), lambda image: torch.zeros(2))
    job = {**JOB, "batch": 2, "workers": 1}
    loader = make_loader(samples, job, Single(1), cuda=False)
    if number is None:
        DataLoader.__iter__ = break_connection
    try:
        batches = iter(loader)
        next(batches)
        os.kill(active_children()[0].pid, number)
        list(batches)
    except Exception as error:
        connection.send(describe_failure(error, job))


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (signal.SIGKILL, "killed", "a DataLoader worker was killed"),
        (None, "killed", "a DataLoader worker was killed"),
        (signal.SIGBUS, "shared_memory", "--shm"),
    ],
    ids=["killed", "killed while sending", "bus error"],
)
def test_dataloader_worker_that_a_signal_ends_is_described(number, kind, text):
    """In a process of its own, as torch raises from a signal handler at any time."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=train_until_a_worker_ends, args=(number, sender))
    process.start()
    sender.close()
    described = receiver.recv()
    process.join()
    assert (described.code, text in str(described)) == (kind, True)
