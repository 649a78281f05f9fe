import errno
import threading
from pathlib import Path

import pytest

from epochmeter.datasets.make import make

FACTS = {"splits": {"train": 1, "val": 0}, "classes": 1, "channels": 1, "source": "this test"}
started = threading.Event()
calls = []


def one_file(folder, say):
    (folder / "train").mkdir()
    (folder / "train" / "0").write_bytes(b"sample")
    return FACTS


def one_file_slowly(folder, say):
    calls.append(folder)
    started.wait(timeout=10)
    return one_file(folder, say)


def half_then_full_disk(folder, say):
    one_file(folder, say)
    raise OSError(errno.ENOSPC, "No space left on device")


def half_then_interrupted(folder, say):
    one_file(folder, say)
    raise KeyboardInterrupt


def nothing_told(folder, say):
    one_file(folder, say)


def no_val_and_no_classes_told(folder, say):
    one_file(folder, say)
    return {"splits": {"train": 1}}


def dataset(maker, **keys):
    target = {"_target_": f"{__name__}.{maker.__name__}"}
    return {"name": "tiny", "layout": "files", "space_bytes": 1000, "make": target, **keys}


def test_only_the_dataset_and_its_lock_are_left_on_the_storage(tmp_path):
    make(dataset(one_file), tmp_path / "tiny", say=print)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", ".tiny.lock"}
    assert {path.name for path in (tmp_path / "tiny").iterdir()} == {"train", "manifest.json"}


@pytest.mark.parametrize(
    ("maker", "error"), [(half_then_full_disk, RuntimeError), (half_then_interrupted, KeyboardInterrupt)]
)
def test_what_is_half_made_is_not_left(tmp_path, maker, error):
    with pytest.raises(error):
        make(dataset(maker), tmp_path / "tiny", say=print)
    assert {path.name for path in tmp_path.iterdir()} == {".tiny.lock"}


@pytest.mark.parametrize(
    ("maker", "says"),
    [
        (nothing_told, "nothing_told returned NoneType without splits.train, splits.val, classes"),
        (no_val_and_no_classes_told, "classes_told returned dict without splits.val, classes"),
    ],
)
def test_a_maker_that_leaves_out_what_it_is_to_tell_is_named_with_that(tmp_path, maker, says):
    with pytest.raises(ValueError, match=rf"dataset tiny: \S+{says}\. See docs/extending\.md"):
        make(dataset(maker, classes=1), tmp_path / "tiny", say=print)
    assert {path.name for path in tmp_path.iterdir()} == {".tiny.lock"}


def test_what_a_killed_maker_left_is_made_anew(tmp_path):
    (tmp_path / ".tiny.partial" / "train").mkdir(parents=True)
    (tmp_path / ".tiny.partial" / "train" / "half").write_bytes(b"half")
    make(dataset(one_file), tmp_path / "tiny", say=print)
    assert [path.name for path in (tmp_path / "tiny" / "train").iterdir()] == ["0"]


def test_of_two_starts_one_makes_and_the_other_waits(tmp_path):
    started.clear()
    calls.clear()
    said = []

    def hear(text):
        said.append(text)
        if "waiting" in text:
            started.set()

    both = [threading.Thread(target=make, args=(dataset(one_file_slowly), tmp_path / "tiny", hear)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(timeout=20)
    assert len(calls) == 1
    assert f"waiting for another process that prepares {tmp_path / 'tiny'}" in said


def test_another_version_makes_anew(tmp_path):
    make(dataset(one_file), tmp_path / "tiny", say=print)
    (tmp_path / "tiny" / "train" / "of the old one").touch()
    make(dataset(one_file, version=2), tmp_path / "tiny", say=print)
    assert [path.name for path in (tmp_path / "tiny" / "train").iterdir()] == ["0"]
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", ".tiny.lock"}


def test_too_little_space_is_said_before_anything_is_made(tmp_path):
    needed = r"not enough disk space in .*: dataset tiny needs 1000000000000 MB, and [\d.]+ MB are free"
    with pytest.raises(RuntimeError, match=needed):
        make(dataset(one_file, space_bytes=10**18), tmp_path / "tiny", say=print)
    assert not (tmp_path / "tiny").exists()


def test_a_dataset_whose_size_is_not_known_beforehand_is_made(tmp_path):
    make(dataset(one_file, space_bytes=None), tmp_path / "tiny", say=print)
    assert (tmp_path / "tiny" / "manifest.json").exists()


def test_a_disk_that_fills_up_is_told_with_what_is_needed_and_what_is_free(tmp_path):
    needed = r"disk full at .*: dataset tiny needs 2 MB, and [\d.]+ MB are free. .*dataset.root="
    with pytest.raises(RuntimeError, match=needed):
        make(dataset(half_then_full_disk, space_bytes=2_000_000), tmp_path / "tiny", say=print)


def test_a_storage_that_cannot_be_written_is_named():
    with pytest.raises(RuntimeError, match=r"cannot write dataset tiny to /proc/data: .*dataset.root="):
        make(dataset(one_file), Path("/proc/data/tiny"), say=print)
