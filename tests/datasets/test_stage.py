import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from tiny import make_config

from epochmeter.config.installation import python_path
from epochmeter.datasets import checksum
from epochmeter.datasets import stage as stage_module
from epochmeter.datasets.manifest import describe_folder
from epochmeter.datasets.stage import stage

FILES = 400
"""Enough for several processes."""
DATASET = make_config(make={"_target_": "none"})
FACTS = {"splits": {"train": FILES, "val": 0}, "classes": 2, "channels": 1, "source": "this test"}
COPY, LOCK = "tiny", ".tiny.lock"


def describe(home):
    describe_folder(home, DATASET, FACTS, "make").write(home / "manifest.json")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "tiny"
    for number in range(FILES):
        path = folder / "train" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number % 256]) * 1000)
    describe(folder)
    return folder


@pytest.fixture
def home(original, tmp_path):
    """A dataset that the test may change."""
    return shutil.copytree(original, tmp_path / "home" / "tiny")


@pytest.fixture
def copy(tmp_path):
    (tmp_path / "card").mkdir()
    return tmp_path / "card" / "tiny"


def run_stage(home, copy, say=print, reread=False):
    stage(DATASET, home, None, copy, reread, say)


def entries(copy):
    return {path.name for path in copy.parent.iterdir()}


def contents(folder):
    return {path: (folder / path).read_bytes() for path in checksum.iter_files(str(folder))}


@pytest.mark.parametrize("reread", [False, True])
def test_copy_equals_the_home_and_is_reused(original, copy, reread):
    messages = []
    run_stage(original, copy, messages.append, reread)
    assert contents(copy) == contents(original)
    assert entries(copy) == {COPY, LOCK}
    expected = {**json.loads((original / "manifest.json").read_text()), "staged_from": str(original)}
    assert json.loads((copy / "manifest.json").read_text()) == expected
    assert messages[0] == f"staging dataset tiny from {original} to {copy}: 400 files, 0.4 MB"
    run_stage(original, copy, pytest.fail)


def test_copy_of_another_home_is_not_overwritten(original, home, copy):
    (home / "train" / "0" / "0.png").write_bytes(b"another")
    describe(home)
    run_stage(home, copy)
    with pytest.raises(RuntimeError, match=f"it was staged from {home}, and is not overwritten"):
        run_stage(original, copy)
    assert contents(copy) == contents(home)


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"short", "has 400 files of 399005 bytes; .* 400 files of 400000"), (bytes(1000), "with other contents")],
)
def test_damaged_source_is_an_error_and_leaves_nothing(home, copy, content, error):
    (home / "train" / "0" / "8.png").write_bytes(content)
    with pytest.raises(RuntimeError, match=f"{home} .*{error}"):
        run_stage(home, copy)
    assert entries(copy) == {LOCK}


def test_source_that_grows_during_the_copy_is_an_error(home, copy, monkeypatch):
    growing = home / "train" / "0" / "8.png"

    def start_and_grow(path, size, start_digest=checksum.start_digest):
        if path == "train/0/8.png":
            growing.write_bytes(bytes(2000))
        return start_digest(path, size)

    monkeypatch.setattr(checksum, "start_digest", start_and_grow)
    with pytest.raises(RuntimeError, match=f"{growing} changed while it was copied"):
        run_stage(home, copy)
    assert entries(copy) == {LOCK}


def test_flipped_bit_is_detected_by_rereading(original, copy, monkeypatch):
    def flip_after_comparison(*arguments, compare=stage_module._compare_with_manifest):
        compare(*arguments)
        _, _, _, folder, _ = arguments
        with open(folder / "train" / "1" / "9.png", "r+b") as file:
            file.write(bytes([9 ^ 4]))
            os.fsync(file.fileno())

    monkeypatch.setattr(stage_module, "_compare_with_manifest", flip_after_comparison)
    with pytest.raises(RuntimeError, match=f"{copy.parent} does not return the data written to it"):
        run_stage(original, copy, reread=True)
    assert entries(copy) == {LOCK}


def test_full_disk_leaves_nothing(original, copy, monkeypatch):
    def open_unless_full(path, mode="r", **keys):
        if str(path).endswith("101.png") and mode == "xb":
            raise OSError(errno.ENOSPC, "No space left on device")
        return open(path, mode, **keys)

    monkeypatch.setattr(stage_module, "open", open_unless_full, raising=False)
    with pytest.raises(RuntimeError, match=f"to {copy.parent}: .*No space left.* MB are free.*storage.root="):
        run_stage(original, copy)
    assert entries(copy) == {LOCK}


SLOW = """
import sys, time
from epochmeter.datasets import stage
from epochmeter.datasets.__main__ import main

copy_file, count = stage._copy_file, [0]
def slow(*arguments):
    count[0] += 1
    if count[0] == 50:
        print("half done", flush=True)
    time.sleep(0.05 * (count[0] >= 50))
    return copy_file(*arguments)

stage._copy_file = slow
sys.exit(main("stage", sys.argv[1]))
"""


@pytest.fixture
def half_done(original, copy):
    """A process that is slow after some files."""
    arguments = {"home": str(original), "user_manifest": None, "folder": str(copy), "reread": False}
    start = [sys.executable, "-c", SLOW, json.dumps({"dataset": DATASET.to_dict(), **arguments})]
    with subprocess.Popen(start, env={"PYTHONPATH": python_path()}, stdout=subprocess.PIPE, text=True) as process:
        assert any("half done" in line for line in process.stdout)
        yield process


def test_killed_process_leaves_no_valid_copy(original, copy, half_done):
    half_done.send_signal(signal.SIGKILL)
    half_done.wait(timeout=20)
    assert not copy.exists()
    assert ".tiny.partial" in entries(copy)
    run_stage(original, copy)
    assert contents(copy) == contents(original)
    assert entries(copy) == {COPY, LOCK}


def test_terminated_process_cleans_up(copy, half_done):
    half_done.send_signal(signal.SIGTERM)
    assert half_done.wait(timeout=20) == 128 + signal.SIGTERM
    assert entries(copy) == {LOCK}


def test_links_in_a_users_folder_are_copied_as_contents(tmp_path, copy):
    home = tmp_path / "mine"
    (cat := home / "train" / "cat").mkdir(parents=True)
    (tmp_path / "elsewhere.jpg").write_bytes(b"cat")
    (cat / "1.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    (cat / "loop").symlink_to(home / "train")
    (cat / "notes.txt").write_text("mine")
    dataset = make_config(adopt={"_target_": "none"})
    user_manifest = tmp_path / "user.json"
    describe_folder(home, dataset, FACTS, "adopt").write(user_manifest)
    stage(dataset, home, user_manifest, copy, False, print)
    assert contents(copy) == {"train/cat/1.jpg": b"cat"}
    assert not (copy / "train" / "cat" / "1.jpg").is_symlink()
    assert not (home / "manifest.json").exists()
