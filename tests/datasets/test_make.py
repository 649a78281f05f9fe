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


def test_only_dataset_and_lock_are_left_on_the_storage(tmp_path):
    make(dataset(one_file), tmp_path / "tiny", say=print)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", ".tiny.lock"}
    assert {path.name for path in (tmp_path / "tiny").iterdir()} == {"train", "manifest.json"}


@pytest.mark.parametrize(
    ("maker", "error"), [(half_then_full_disk, RuntimeError), (half_then_interrupted, KeyboardInterrupt)]
)
def test_failed_maker_leaves_nothing(tmp_path, maker, error):
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
def test_missing_facts_of_a_maker_are_reported(tmp_path, maker, says):
    with pytest.raises(ValueError, match=rf"dataset tiny: \S+{says}\. See docs/extending\.md"):
        make(dataset(maker, classes=1), tmp_path / "tiny", say=print)
    assert {path.name for path in tmp_path.iterdir()} == {".tiny.lock"}


def test_leftovers_of_a_killed_maker_are_replaced(tmp_path):
    (tmp_path / ".tiny.partial" / "train").mkdir(parents=True)
    (tmp_path / ".tiny.partial" / "train" / "half").write_bytes(b"half")
    make(dataset(one_file), tmp_path / "tiny", say=print)
    assert [path.name for path in (tmp_path / "tiny" / "train").iterdir()] == ["0"]


def test_second_process_waits_for_the_first(tmp_path):
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


def test_new_version_is_created_again(tmp_path):
    make(dataset(one_file), tmp_path / "tiny", say=print)
    (tmp_path / "tiny" / "train" / "of the old one").touch()
    make(dataset(one_file, version=2), tmp_path / "tiny", say=print)
    assert [path.name for path in (tmp_path / "tiny" / "train").iterdir()] == ["0"]
    assert {path.name for path in tmp_path.iterdir()} == {"tiny", ".tiny.lock"}


def test_disk_space_is_checked_first(tmp_path):
    needed = r"not enough disk space in .*: dataset tiny needs 1000000000000 MB, and [\d.]+ MB are free"
    with pytest.raises(RuntimeError, match=needed):
        make(dataset(one_file, space_bytes=10**18), tmp_path / "tiny", say=print)
    assert not (tmp_path / "tiny").exists()


def test_dataset_of_unknown_size_is_created(tmp_path):
    make(dataset(one_file, space_bytes=None), tmp_path / "tiny", say=print)
    assert (tmp_path / "tiny" / "manifest.json").exists()


def test_full_disk_error_has_needed_and_free_space(tmp_path):
    needed = r"disk full at .*: dataset tiny needs 2 MB, and [\d.]+ MB are free. .*dataset.root="
    with pytest.raises(RuntimeError, match=needed):
        make(dataset(half_then_full_disk, space_bytes=2_000_000), tmp_path / "tiny", say=print)


def test_unwritable_storage_is_an_error():
    with pytest.raises(RuntimeError, match=r"cannot write dataset tiny to /proc/data: .*dataset.root="):
        make(dataset(one_file), Path("/proc/data/tiny"), say=print)
