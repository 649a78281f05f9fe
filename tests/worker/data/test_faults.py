import errno
import os
import signal
import time
from multiprocessing import active_children, get_context
from threading import Timer
from types import SimpleNamespace

import pytest
import torch
from torch._utils import ExceptionWrapper

from epochmeter.worker.data import faults
from epochmeter.worker.data.faults import BadSampleError, StorageGoneError, bad_sample_error
from epochmeter.worker.data.loader import train_loader
from epochmeter.worker.data.timed_dataset import TimedDataset, TimedLoader
from epochmeter.worker.errors import error_text, failure_kind
from epochmeter.worker.strategy import Single

TORCH_MESSAGES = [
    "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit.",
    "unable to write to file </torch_77_1>: No space left on device (28)",
    "unable to mmap 38535168 bytes from file </torch_77_2>: Cannot allocate memory (12)",
    "unable to allocate shared memory(shm) for file </torch_77_3>: No space left on device (28)",
    "unable to open shared memory object </torch_77_4> in read-write mode: No space left on device (28)",
]
"""Messages of torch 1.10 to 2.x if /dev/shm is full."""


def set_free_shared_memory(monkeypatch, free_bytes):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free_bytes, f_frsize=1))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN])
def test_storage_failure_is_not_a_bad_sample(tmp_path, number):
    error = bad_sample_error("a.png", OSError(number, "reason"), str(tmp_path))
    assert isinstance(error, StorageGoneError)
    assert "a.png" in str(error)
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_single_unreadable_file_is_a_bad_sample(tmp_path, number):
    assert isinstance(bad_sample_error("a.png", OSError(number, "reason"), str(tmp_path)), BadSampleError)


def test_lost_folder_is_a_storage_failure(tmp_path):
    error = bad_sample_error("a.png", FileNotFoundError(errno.ENOENT, "no such file"), str(tmp_path / "unplugged"))
    assert isinstance(error, StorageGoneError)


def test_undecodable_contents_are_a_bad_sample(tmp_path):
    assert isinstance(
        bad_sample_error("a.png", OSError("image file is truncated"), str(tmp_path / "no")), BadSampleError
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StorageGoneError("gone"), "storage"),
        (BadSampleError("bad"), "exception"),
        (MemoryError(), "oom"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "oom"),
        *((RuntimeError(text), "shared_memory") for text in TORCH_MESSAGES),
    ],
)
def test_failure_class_by_error(error, kind):
    assert failure_kind(error) == kind


@pytest.mark.parametrize("text", TORCH_MESSAGES)
def test_exhausted_shared_memory_has_a_remedy(text):
    assert "--shm-size" in error_text(RuntimeError(text))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.ENOSPC, "No space left on device", "/runs/weights.pt"),
        RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376"),
        RuntimeError("unable to open shared memory object </torch_77_5> in read-write mode: Too many open files (24)"),
    ],
    ids=["full disk", "full disk, named", "shared memory of a GPU", "open files"],
)
def test_similar_messages_are_not_shared_memory_errors(error, monkeypatch):
    set_free_shared_memory(monkeypatch, 64 << 20)
    assert failure_kind(error) == "exception"
    assert error_text(error) == str(error)


def test_queue_without_room_is_detected_by_full_shared_memory(monkeypatch):
    set_free_shared_memory(monkeypatch, 4096)
    assert failure_kind(OSError(errno.ENOSPC, "No space left on device")) == "shared_memory"
    assert failure_kind(OSError(errno.ENOSPC, "No space left on device", "/runs/weights.pt")) == "exception"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("label"), "KeyError: 'label'"),
        (AssertionError(), "AssertionError"),
        (ValueError("give another"), "give another"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.png"), "[Errno 2] No such file: 'a.png'"),
        (BadSampleError("image a.png cannot be read: it is empty."), "image a.png cannot be read: it is empty."),
        (RuntimeError("CUDA error: no kernel\nFor debugging consider: waiting"), "CUDA error: no kernel"),
    ],
    ids=str,
)
def test_error_message_includes_the_class_where_needed(error, message):
    def raises():
        raise error

    try:
        raises()
    except Exception:
        sent = ExceptionWrapper(where="in DataLoader worker process 0")
    assert error_text(error).startswith(message)
    with pytest.raises(type(error)) as raised:
        sent.reraise()
    assert error_text(raised.value) == message


class SlowSamples(list):
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.zeros(2), index


def train_until_a_worker_ends(number, connection):
    samples = TimedDataset(lambda transform: SlowSamples(range(400)), None)
    job = {"batch": 2, "seed": 0, "workers": 1, "prefetch": 2, "persistent_workers": True, "pin_memory": False}
    job["drop_last"] = False
    try:
        batches = iter(train_loader(samples, job, Single(1), cuda=False))
        next(batches)
        os.kill(active_children()[0].pid, number)
        list(batches)
    except Exception as error:
        connection.send((failure_kind(error), error_text(error)))


def ended_by(number):
    """Return the failure class and message if a signal ends a DataLoader worker.

    In a process of its own, as torch raises from a signal handler at any time.
    """
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=train_until_a_worker_ends, args=(number, sender))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    return result


@pytest.mark.parametrize(("counts", "kind"), [(True, "killed"), (False, "oom")])
def test_killed_dataloader_worker_has_a_remedy(monkeypatch, counts, kind):
    """If the kernel counts its out-of-memory kills, the controller finds the cause."""
    monkeypatch.setattr(faults, "kernel_counts_kills", lambda: counts)
    actual_kind, message = ended_by(signal.SIGKILL)
    assert actual_kind == kind
    assert "workers=0" in message


def test_bus_error_is_a_shared_memory_failure():
    kind, message = ended_by(signal.SIGBUS)
    assert kind == "shared_memory"
    assert "--shm-size" in message


def test_cause_of_an_error_is_considered():
    error = RuntimeError("DataLoader worker (pid(s) 77) exited unexpectedly")
    error.__cause__ = RuntimeError(TORCH_MESSAGES[0])
    assert failure_kind(error) == "shared_memory"
    assert "--shm-size" in error_text(error)


class BrokenLoader:
    """A loader whose worker dies while it sends a batch: torch only raises the error of the connection."""

    def __init__(self, act):
        self.act = act
        self.process = get_context("fork").Process(target=time.sleep, args=(60,))

    def __iter__(self):
        self.process.start()
        return self._batches()

    def _batches(self):
        self.act(self.process)
        raise ConnectionResetError("Connection reset by peer")
        yield


def test_worker_that_dies_while_sending_is_reported_by_its_signal():
    with pytest.raises(RuntimeError, match="is killed by signal: Killed") as raised:
        list(TimedLoader(BrokenLoader(lambda process: process.kill())))
    assert isinstance(raised.value.__cause__, ConnectionResetError)


def test_normally_ended_workers_are_ignored():
    ended, living = (get_context("fork").Process(target=time.sleep, args=(seconds,)) for seconds in (0, 60))
    for process in (ended, living):
        process.start()
    ended.join()
    Timer(0.3, living.kill).start()
    assert "is killed by signal: Killed" in str(faults.dead_loader_error([ended, living]))


def test_connection_error_with_live_workers_is_unchanged(monkeypatch):
    monkeypatch.setattr(faults, "EXIT_WAIT_S", 0.05)
    loader = BrokenLoader(lambda process: None)
    try:
        with pytest.raises(ConnectionResetError):
            list(TimedLoader(loader))
    finally:
        loader.process.kill()
        loader.process.join()


def test_message_protects_a_users_own_files(tmp_path):
    error = bad_sample_error("a.png", OSError("image file is truncated"), str(tmp_path))
    assert str(error).endswith("your own dataset is not.")
