import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tiny import make_config

from epochmeter.datasets import checksum, manifest
from epochmeter.datasets import stage as stage_module
from epochmeter.datasets.manifest import describe_folder
from epochmeter.datasets.ready import SOURCE_ROOT
from epochmeter.datasets.stage import existing_copy, stage

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


def test_outdated_copy_is_replaced(home, copy):
    run_stage(home, copy)
    (home / "train" / "0" / "0.png").write_bytes(b"another")
    describe(home)
    run_stage(home, copy)
    assert contents(copy) == contents(home)
    assert entries(copy) == {COPY, LOCK}


def test_copy_of_another_home_is_not_overwritten(original, home, copy):
    (home / "train" / "0" / "0.png").write_bytes(b"another")
    describe(home)
    run_stage(home, copy)
    with pytest.raises(RuntimeError, match=f"it was staged from {home}, and is not overwritten"):
        run_stage(original, copy)
    assert contents(copy) == contents(home)


def test_foreign_folder_is_not_touched(original, copy):
    copy.mkdir()
    (copy / "mine").write_text("mine")
    with pytest.raises(RuntimeError, match=r"was not created by epochmeter: .* storage.root="):
        run_stage(original, copy)
    assert contents(copy) == {"mine": b"mine"}


def test_damaged_copy_is_an_error(original, copy):
    run_stage(original, copy)
    (copy / "train" / "1" / "7.png").unlink()
    with pytest.raises(RuntimeError, match=f"{copy} has 399 files of 399000 bytes; .* storage.root="):
        existing_copy(copy, DATASET, original, manifest.load_valid(original, DATASET))


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
    read = os.read

    def read_and_grow(descriptor, size):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(growing):
            with open(growing, "ab") as file:
                file.write(b"more")
            monkeypatch.setattr(os, "read", read)
        return read(descriptor, size)

    monkeypatch.setattr(checksum, "POOL_THRESHOLD", 100)
    monkeypatch.setattr(os, "read", read_and_grow)
    with pytest.raises(RuntimeError, match=f"{growing} changed while it was copied"):
        run_stage(home, copy)
    assert entries(copy) == {LOCK}


def test_source_lost_during_the_copy_is_an_error(home, copy, monkeypatch):
    iter_batches = checksum.iter_batches

    def lose_a_file(top, images=False):
        batches = list(iter_batches(top, images))
        (home / "train" / "0" / "8.png").unlink(missing_ok=True)
        return iter(batches)

    monkeypatch.setattr(checksum, "iter_batches", lose_a_file)
    with pytest.raises(RuntimeError, match=f"cannot read {home}/train/0/8.png: No such file"):
        run_stage(home, copy)
    assert entries(copy) == {LOCK}


def test_flipped_bit_is_detected_by_rereading(original, copy, monkeypatch):
    compare = stage_module._compare_with_manifest

    def flip_after_comparison(home, description, total, partial, images):
        compare(home, description, total, partial, images)
        with open(partial / "train" / "1" / "9.png", "r+b") as file:
            file.write(bytes([9 ^ 4]))
            os.fsync(file.fileno())

    monkeypatch.setattr(stage_module, "_compare_with_manifest", flip_after_comparison)
    with pytest.raises(RuntimeError, match=f"{copy.parent} does not return the data written to it"):
        run_stage(original, copy, reread=True)
    assert entries(copy) == {LOCK}


@pytest.mark.parametrize(
    ("free_blocks", "free_inodes", "error"),
    [
        (399, 1000, r"needs 1.6 MB, and 1.6 MB are free"),
        (10**6, 399, r"399 inodes are free \(df -i\)"),
        (400, 400, None),
    ],
)
def test_disk_space_is_checked_in_blocks_and_inodes(original, copy, monkeypatch, free_blocks, free_inodes, error):
    class Disk:
        f_frsize, f_bavail, f_files, f_favail = 4096, free_blocks, 1000, free_inodes

    monkeypatch.setattr(os, "statvfs", lambda _: Disk)
    if error is None:
        run_stage(original, copy)
    else:
        with pytest.raises(RuntimeError, match=error):
            run_stage(original, copy)


def test_full_disk_leaves_nothing(original, copy, monkeypatch):
    open_file = os.open

    def open_unless_full(path, flags, *mode, **folder):
        if path == "101.png" and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_file(path, flags, *mode, **folder)

    monkeypatch.setattr(os, "open", open_unless_full)
    with pytest.raises(RuntimeError, match=f"to {copy.parent}: .*No space left.* MB are free.*storage.root="):
        run_stage(original, copy)
    assert entries(copy) == {LOCK}


def test_file_size_limit_leaves_nothing(home, copy):
    (home / "train" / "1" / "large.png").write_bytes(bytes(3_000_000))
    describe(home)
    done = subprocess.run(
        command(home, copy),
        env={"PYTHONPATH": SOURCE_ROOT},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000)),
    )
    assert (done.returncode, entries(copy)) == (1, {LOCK})
    assert "[Errno 27] File too large" in done.stderr


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_real_full_file_system_is_restored(original, tmp_path, monkeypatch):
    card = tmp_path / "small"
    card.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "none", str(card)], check=True)
    try:
        monkeypatch.setattr(stage_module, "_check_space", lambda *_: None)
        with pytest.raises(RuntimeError, match=f"to {card}: .*No space left"):
            run_stage(original, card / "tiny")
        assert {path.name for path in card.iterdir()} == {LOCK}
    finally:
        subprocess.run(["umount", str(card)], check=True)


def command(home, copy):
    arguments = {"home": str(home), "user_manifest": None, "folder": str(copy), "reread": False}
    text = json.dumps({"dataset": DATASET.to_dict(), **arguments})
    return [sys.executable, "-m", "epochmeter.datasets", "stage", text]


@pytest.fixture
def half_done(original, copy, tmp_path):
    """A process that blocks in `os.read` when it has copied some files."""
    program = tmp_path / "slow.py"
    program.write_text(
        "import os, sys, time\n"
        "from epochmeter.datasets.__main__ import main\n"
        "read, count = os.read, [0]\n"
        "def slow(descriptor, size):\n"
        "    count[0] += 1\n"
        "    if count[0] == 50:\n"
        "        print('half done', flush=True)\n"
        "        time.sleep(60)\n"
        "    return read(descriptor, size)\n"
        "os.read = slow\n"
        "sys.exit(main(*sys.argv[1:]))\n"
    )
    start = [sys.executable, str(program), *command(original, copy)[3:]]
    with subprocess.Popen(start, env={"PYTHONPATH": SOURCE_ROOT}, stdout=subprocess.PIPE, text=True) as process:
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


def test_second_process_waits_for_the_first(original, copy):
    messages = []
    both = [threading.Thread(target=run_stage, args=(original, copy, messages.append)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(timeout=30)
    assert sum(line.startswith(f"staging dataset tiny from {original}") for line in messages) == 1
    assert contents(copy) == contents(original)


def test_links_in_a_users_folder_are_copied_as_contents(tmp_path, copy):
    home = tmp_path / "mine"
    (home / "train" / "cat").mkdir(parents=True)
    (tmp_path / "elsewhere.jpg").write_bytes(b"cat")
    (home / "train" / "cat" / "1.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    (home / "train" / "cat" / "loop").symlink_to(home / "train")
    (home / "train" / "cat" / "notes.txt").write_text("mine")
    dataset = make_config(adopt={"_target_": "none"})
    user_manifest = tmp_path / "user.json"
    describe_folder(home, dataset, FACTS, "adopt").write(user_manifest)
    stage(dataset, home, user_manifest, copy, False, print)
    assert contents(copy) == {"train/cat/1.jpg": b"cat"}
    assert not (copy / "train" / "cat" / "1.jpg").is_symlink()
    assert not (home / "manifest.json").exists()


def test_unwritable_folder_is_named(original):
    with pytest.raises(RuntimeError, match=r"cannot write dataset tiny to /proc/data: .*storage.root="):
        run_stage(original, Path("/proc/data/tiny"))
