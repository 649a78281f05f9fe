import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from project import make_unreadable
from tiny import make_config

from epochmeter.config.installation import python_path
from epochmeter.datasets import checksum
from epochmeter.datasets.manifest import describe_folder, try_read_manifest
from epochmeter.datasets.ready import stage

FILES = 400
DATASET = make_config(make={"_target_": "none"})
FACTS = {"splits": {"train": FILES, "val": 0}, "classes": 2, "channels": 1, "source": "this test"}
COPY, LOCK = "tiny", ".tiny.lock"


def describe(home):
    describe_folder(home, DATASET, FACTS, "make", print).write(home / "manifest.json")


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


def run_stage(home, copy, say=print):
    stage(DATASET, home, try_read_manifest(home / "manifest.json"), copy, say)


def entries(copy):
    return {path.name for path in copy.parent.iterdir()}


def contents(folder):
    return {path: (folder / path).read_bytes() for path in checksum.iter_files(folder)}


def test_copy_of_another_home_is_not_overwritten(original, home, copy):
    (home / "train" / "0" / "0.png").write_bytes(b"another")
    describe(home)
    run_stage(home, copy)
    with pytest.raises(RuntimeError, match=f"{copy} is not overwritten: its dataset is from {home}"):
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


def test_full_disk_leaves_nothing(original, copy, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(
        RuntimeError, match=r"cannot write dataset tiny to .* 0\.4 MB needed, 0\.0 MB free\n  hint: free disk"
    ):
        run_stage(original, copy)
    assert entries(copy) == {LOCK}


SLOW = """
import shutil, sys, time
from pathlib import Path
from epochmeter.machine.signals import Stop
from test_stage import run_stage

copy_file, count = shutil.copyfile, [0]
def slow(*arguments):
    count[0] += 1
    if count[0] == 50:
        print("half done", flush=True)
    time.sleep(0.05 * (count[0] >= 50))
    return copy_file(*arguments)

shutil.copyfile = slow
Stop().install()
run_stage(*map(Path, sys.argv[1:]))
"""


@pytest.mark.parametrize(("number", "leftovers"), [(signal.SIGKILL, {LOCK, ".tiny.partial"}), (signal.SIGTERM, {LOCK})])
def test_killed_process_leaves_no_valid_copy_and_a_terminated_one_cleans_up(original, copy, number, leftovers):
    start = [sys.executable, "-c", SLOW, str(original), str(copy)]
    path = os.pathsep.join([python_path(), str(Path(__file__).parent), str(Path(__file__).parents[1])])
    with subprocess.Popen(start, env={"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True) as process:
        assert any("half done" in line for line in process.stdout)
        process.send_signal(number)
        assert process.wait(timeout=20) == (-number if number == signal.SIGKILL else 128 + number)
    assert entries(copy) == leftovers
    messages = []
    run_stage(original, copy, messages.append)
    assert messages[0] == f"staging dataset tiny from {original} to {copy}: 400 files, 0.4 MB"
    assert contents(copy) == contents(original)
    assert entries(copy) == {COPY, LOCK}
    expected = {**json.loads((original / "manifest.json").read_text()), "staged_from": str(original)}
    assert json.loads((copy / "manifest.json").read_text()) == expected
    run_stage(original, copy, pytest.fail)


def test_links_in_a_users_folder_are_copied_as_contents(tmp_path, copy):
    home = tmp_path / "mine"
    (cat := home / "train" / "cat").mkdir(parents=True)
    (tmp_path / "elsewhere.jpg").write_bytes(b"cat")
    (cat / "1.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    (cat / "notes.txt").write_text("mine")
    dataset = make_config(adopt={"_target_": "none"})
    original = describe_folder(home, dataset, FACTS, "adopt", print)
    stage(dataset, home, original, copy, print)
    assert contents(copy) == {"train/cat/1.jpg": b"cat"}
    assert not (copy / "train" / "cat" / "1.jpg").is_symlink()
    assert not (home / "manifest.json").exists()


def test_entries_of_a_users_folder_that_cannot_be_read_are_staged_as_links_to_them(tmp_path, copy):
    home = tmp_path / "mine"
    (cat := home / "train" / "cat").mkdir(parents=True)
    (cat / "1.jpg").write_bytes(b"cat")
    names = {*make_unreadable(cat)}
    dataset = make_config(adopt={"_target_": "none"})
    original = describe_folder(home, dataset, FACTS, "adopt", print)
    stage(dataset, home, original, copy, print)
    assert (copy / "train/cat/1.jpg").read_bytes() == b"cat"
    links = {path.name: path.readlink() for path in (copy / "train/cat").iterdir() if path.is_symlink()}
    assert links == {name: cat / name for name in names}
    stage(dataset, home, original, copy, pytest.fail)  # the copy is complete
