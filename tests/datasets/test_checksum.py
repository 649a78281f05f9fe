import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epochmeter.datasets import checksum
from epochmeter.datasets.ready import SOURCE_ROOT


@pytest.fixture
def many(tmp_path):
    """Files enough for several processes."""
    for number in range(1000):
        path = tmp_path / str(number % 3) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number % 256]) * number)
    return str(tmp_path)


def test_several_processes_give_the_same_checksum_as_one(many, monkeypatch):
    shared = checksum.sum_batches(checksum.iter_batches(many), checksum.hash_contents(many))
    monkeypatch.setattr(checksum, "POOL_THRESHOLD", 10**6)
    assert checksum.sum_batches(checksum.iter_batches(many), checksum.hash_contents(many)) == shared
    assert (shared.files, shared.bytes) == (1000, 499_500)


def test_checksum_covers_names_sizes_and_contents(tmp_path):
    def digest():
        return checksum.sum_batches(checksum.iter_batches(str(tmp_path)), checksum.hash_contents(str(tmp_path))).digest

    digests = set()
    for name, text in [("a", "1"), ("a", "2"), ("b", "1"), ("b", "11")]:
        (tmp_path / name).write_text(text)
        digests.add(digest())
        (tmp_path / name).unlink()
    assert len(digests) == 4


def test_error_in_a_pool_process_is_raised(many):
    def fail(batch):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checksum.sum_batches(checksum.iter_batches(many), fail)


def test_links_are_followed_and_loops_end(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "real.png").touch()
    (tmp_path / "a" / "linked.png").symlink_to("real.png")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "b").symlink_to("a")
    assert sorted(checksum.iter_files(str(tmp_path))) == ["a/linked.png", "a/real.png", "b/linked.png", "b/real.png"]


def test_broken_link_is_an_error(tmp_path):
    (tmp_path / "lost.png").symlink_to("nowhere")
    with pytest.raises(RuntimeError, match=f"{tmp_path}/lost.png is neither"):
        list(checksum.iter_files(str(tmp_path)))


def test_only_training_files_of_a_users_folder_count(tmp_path):
    for name in ["train/a/1.JPG", "train/a/.hidden.jpg", "train/a/notes.txt", "val/a/2.png", "test/3.png", "all.tar"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(checksum.iter_files(str(tmp_path), images=True)) == ["train/a/1.JPG", "val/a/2.png"]


def test_pool_processes_end_with_a_killed_parent(many, tmp_path):
    program = f"""
import os, time
from epochmeter.datasets import checksum
def task(batch):
    print(os.getpid(), flush=True)
    time.sleep(60)
checksum.sum_batches(checksum.iter_batches({many!r}), task)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], env={"PYTHONPATH": SOURCE_ROOT}, stdout=subprocess.PIPE
    ) as parent:
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    for _ in range(100):
        stat = Path(f"/proc/{child}/stat")
        if not stat.exists() or " Z " in stat.read_text():
            return
        time.sleep(0.02)
    pytest.fail(f"process {child} is still running")
