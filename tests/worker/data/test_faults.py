import errno

import pytest

from trainmeter.worker.__main__ import failure, words
from trainmeter.worker.data.faults import BadSampleError, StorageGoneError, unreadable

KILLED = "DataLoader worker (pid 77) is killed by signal: Killed. "
TORCHS_OWN = [
    "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
    "shared memory. Please try to raise your shared memory limit.",
    "unable to write to file </torch_77_1>: No space left on device (28)",
    "unable to mmap 38535168 bytes from file </torch_77_2>: Cannot allocate memory (12)",
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
        (RuntimeError(KILLED), "exception"),
        *((RuntimeError(text), "shared_memory") for text in TORCHS_OWN),
    ],
)
def test_each_end_has_its_word(error, kind):
    assert failure(error) == kind


@pytest.mark.parametrize("text", TORCHS_OWN)
def test_shared_memory_that_is_too_small_is_said_as_such_with_what_to_do(text):
    said = words(RuntimeError(text))
    assert said.startswith("loader processes ran out of shared memory")
    assert "/dev/shm has" in said
    assert "--shm-size" in said
