import errno
import os
import signal
import time
from multiprocessing import active_children, get_context
from threading import Timer

import pytest
import torch
from torch._utils import ExceptionWrapper

from epochmeter.worker.data import faults
from epochmeter.worker.data.faults import BadSampleError, StorageGoneError, unreadable
from epochmeter.worker.data.loader import train_loader
from epochmeter.worker.data.timed_dataset import Batches, Timed
from epochmeter.worker.errors import failure, words
from epochmeter.worker.strategy import Single

TORCHS_OWN = [
    "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit.",
    "unable to write to file </torch_77_1>: No space left on device (28)",
    "unable to mmap 38535168 bytes from file </torch_77_2>: Cannot allocate memory (12)",
    "unable to allocate shared memory(shm) for file </torch_77_3>: No space left on device (28)",
    "unable to open shared memory object </torch_77_4> in read-write mode: No space left on device (28)",
]
"""What torch's loader says, versions 1.10 to 2.x, where /dev/shm is full."""


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN])
def test_a_medium_that_fails_is_no_bad_sample(tmp_path, number):
    found = unreadable("a.png", OSError(number, "it says"), str(tmp_path))
    assert isinstance(found, StorageGoneError)
    assert "a.png" in str(found)
    assert str(tmp_path) in str(found)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_a_file_alone_that_fails_is_a_bad_sample(tmp_path, number):
    assert isinstance(unreadable("a.png", OSError(number, "it says"), str(tmp_path)), BadSampleError)


def test_a_folder_that_went_away_is_a_storage_that_is_gone(tmp_path):
    found = unreadable("a.png", FileNotFoundError(errno.ENOENT, "no such file"), str(tmp_path / "unplugged"))
    assert isinstance(found, StorageGoneError)


def test_contents_that_are_no_image_are_a_bad_sample_wherever_they_lie(tmp_path):
    assert isinstance(unreadable("a.png", OSError("image file is truncated"), str(tmp_path / "no")), BadSampleError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StorageGoneError("gone"), "storage"),
        (BadSampleError("bad"), "exception"),
        (MemoryError(), "oom"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), "oom"),
        *((RuntimeError(text), "shared_memory") for text in TORCHS_OWN),
    ],
)
def test_each_end_has_its_word(error, kind):
    assert failure(error) == kind


@pytest.mark.parametrize("text", TORCHS_OWN)
def test_shared_memory_that_is_too_small_is_said_as_such_with_what_to_do(text):
    said = words(RuntimeError(text))
    assert "/dev/shm has" in said
    assert "--shm-size" in said


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
def test_what_only_sounds_like_shared_memory_is_left_as_it_is(error, monkeypatch):
    monkeypatch.setattr(faults, "_free_bytes", lambda: 64 << 20)
    assert failure(error) == "exception"
    assert words(error) == str(error)


def test_a_queue_that_finds_no_room_is_known_by_shared_memory_being_full(monkeypatch):
    monkeypatch.setattr(faults, "_free_bytes", lambda: 4096)
    assert failure(OSError(errno.ENOSPC, "No space left on device")) == "shared_memory"
    assert failure(OSError(errno.ENOSPC, "No space left on device", "/runs/weights.pt")) == "exception"


@pytest.mark.parametrize(
    ("error", "said"),
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
def test_an_error_is_told_by_its_text_and_by_its_kind_where_that_says_more(error, said):
    def raises():
        raise error

    try:
        raises()
    except Exception:
        sent = ExceptionWrapper(where="in DataLoader worker process 0")
    assert words(error).startswith(said)
    with pytest.raises(type(error)) as raised:
        sent.reraise()
    assert words(raised.value) == said, "as where it happened"


class Unhurried(list):
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.zeros(2), index


def train_until_a_loader_process_ends(number, tell):
    samples = Timed(lambda transform: Unhurried(range(400)), None)
    job = {"batch": 2, "seed": 0, "workers": 1, "prefetch": 2, "persistent_workers": True, "pin_memory": False}
    job["drop_last"] = False
    try:
        batches = iter(train_loader(samples, job, Single(1), cuda=False))
        next(batches)
        os.kill(active_children()[0].pid, number)
        list(batches)
    except Exception as error:
        tell.send((failure(error), words(error)))


def ended_by(number):
    """How a loader process that a signal ends is told of: (failure, words).

    By a process of its own, since torch raises at once, whatever is being done then.
    """
    hear, tell = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=train_until_a_loader_process_ends, args=(number, tell))
    process.start()
    tell.close()
    told = hear.recv()
    process.join()
    return told


@pytest.mark.parametrize(("counts", "kind"), [(True, "killed"), (False, "oom")])
def test_a_loader_process_that_was_killed_is_said_as_such_with_what_to_do(monkeypatch, counts, kind):
    """Where the kernel counts the processes that it kills for memory, the controller finds out which this was."""
    monkeypatch.setattr(faults, "kernel_counts_kills", lambda: counts)
    found_kind, message = ended_by(signal.SIGKILL)
    assert found_kind == kind
    assert "workers=0" in message


def test_a_loader_process_that_finds_no_shared_memory_ends_by_a_bus_error():
    kind, message = ended_by(signal.SIGBUS)
    assert kind == "shared_memory"
    assert "--shm-size" in message


def test_of_a_loader_process_that_died_only_the_cause_says_how():
    error = RuntimeError("DataLoader worker (pid(s) 77) exited unexpectedly")
    error.__cause__ = RuntimeError(TORCHS_OWN[0])
    assert failure(error) == "shared_memory"
    assert "--shm-size" in words(error)


class HandingOver:
    """A loader one of whose processes dies as it hands a batch over: the connection fails, and torch says no more."""

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


def test_a_process_that_dies_as_it_hands_a_batch_over_is_told_by_how_it_died():
    with pytest.raises(RuntimeError, match="is killed by signal: Killed") as raised:
        list(Batches(HandingOver(lambda process: process.kill())))
    assert isinstance(raised.value.__cause__, ConnectionResetError)


def test_one_that_has_ended_well_before_tells_nothing_of_the_others():
    ended, living = (get_context("fork").Process(target=time.sleep, args=(seconds,)) for seconds in (0, 60))
    for process in (ended, living):
        process.start()
    ended.join()
    Timer(0.3, living.kill).start()
    assert "is killed by signal: Killed" in str(faults.died([ended, living]))


def test_a_connection_that_fails_while_all_processes_live_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(faults, "ENDS_S", 0.05)
    loader = HandingOver(lambda process: None)
    try:
        with pytest.raises(ConnectionResetError):
            list(Batches(loader))
    finally:
        loader.process.kill()
        loader.process.join()


def test_a_persons_own_files_are_not_to_be_removed(tmp_path):
    said = str(unreadable("a.png", OSError("image file is truncated"), str(tmp_path)))
    assert said.endswith("your own dataset is not.")
