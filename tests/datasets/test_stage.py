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

from epochmeter.datasets import checksum, manifest
from epochmeter.datasets import stage as room
from epochmeter.datasets.ready import SOURCE_ROOT
from epochmeter.datasets.stage import existing_copy, stage

DATASET = {"name": "tiny", "layout": "files", "make": {"_target_": "none"}, "adopt": None}
FACTS = {"splits": {"train": 400, "val": 0}, "classes": 2, "channels": 1, "source": "this test"}
COPY, LOCK = "tiny", ".tiny.lock"


def describe(home):
    manifest.write(home / manifest.MANIFEST_NAME, manifest.describe_made(home, DATASET, FACTS))


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home" / "tiny"
    for number in range(400):
        path = folder / "train" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number % 256]) * 1000)
    describe(folder)
    return folder


@pytest.fixture
def place(tmp_path):
    (tmp_path / "card").mkdir()
    return tmp_path / "card" / "tiny"


def staged(home, place, say=print, reread=False, note=None):
    stage(DATASET, home, note, place, reread, say)


def there(place):
    return {path.name for path in place.parent.iterdir()}


def contents(folder):
    return {path: (folder / path).read_bytes() for path in checksum.iter_files(str(folder))}


@pytest.mark.parametrize("reread", [False, True])
def test_copy_equals_the_home_and_records_its_origin(home, place, reread):
    said = []
    staged(home, place, said.append, reread)
    assert contents(place) == contents(home)
    assert there(place) == {COPY, LOCK}
    told = json.loads((home / "manifest.json").read_text())
    assert json.loads((place / "manifest.json").read_text()) == {**told, "staged_from": str(home)}
    assert said[0] == f"staging dataset tiny from {home} to {place}: 400 files, 0.4 MB"


def test_complete_copy_is_reused(home, place):
    staged(home, place)
    said = []
    staged(home, place, said.append)
    assert said == []


def test_progress_has_files_bytes_speed_and_time_left(monkeypatch):
    now = iter([0.0, 1.9, 4.0])
    monkeypatch.setattr(room.time, "monotonic", lambda: next(now))
    said = []
    tell = room._progress(DATASET, {"files": 400, "bytes": 40_000_000}, said.append)
    tell(checksum.Checksum(50, 5_000_000))
    tell(checksum.Checksum(100, 20_000_000))
    assert said == ["staging tiny: 100 of 400 files, 20 of 40 MB, 5.0 MB/s, 12 s left"]


def test_outdated_copy_is_replaced(home, place):
    staged(home, place)
    (home / "train" / "0" / "0.png").write_bytes(b"another")
    describe(home)
    staged(home, place)
    assert contents(place) == contents(home)
    assert there(place) == {COPY, LOCK}


def test_copy_of_another_home_is_not_overwritten(home, place, tmp_path):
    other = tmp_path / "other" / "tiny"
    shutil.copytree(home, other)
    (other / "train" / "0" / "0.png").write_bytes(b"another")
    describe(other)
    staged(other, place)
    with pytest.raises(
        RuntimeError, match=f"it was staged from {other}, and is not overwritten. Move that folder away"
    ):
        staged(home, place)
    assert contents(place) == contents(other)


def test_foreign_folder_is_not_touched(home, place):
    place.mkdir()
    (place / "mine").write_text("mine")
    with pytest.raises(RuntimeError, match=r"was not created by epochmeter: .* storage.root="):
        staged(home, place)
    assert contents(place) == {"mine": b"mine"}


def test_file_lost_from_a_copy_is_named(home, place):
    staged(home, place)
    (place / "train" / "1" / "7.png").unlink()
    told = manifest.load_valid(home, DATASET)
    with pytest.raises(RuntimeError, match=f"{place}/train/1/7.png is missing: .* has 399 files of 399000 bytes"):
        existing_copy(place, DATASET, home, told, images=False)


def test_truncated_source_is_an_error_and_leaves_nothing(home, place):
    (home / "train" / "0" / "8.png").write_bytes(b"short")
    with pytest.raises(RuntimeError, match=f"{home} has 400 files of 399005 bytes; its manifest lists 400 .*400000"):
        staged(home, place)
    assert there(place) == {LOCK}


def test_source_with_other_bytes_is_an_error(home, place):
    (home / "train" / "0" / "8.png").write_bytes(bytes(1000))
    with pytest.raises(RuntimeError, match="400000 bytes, with other contents"):
        staged(home, place)


def test_source_that_grows_during_the_copy_is_an_error(home, place, monkeypatch):
    growing = home / "train" / "0" / "8.png"
    read = os.read

    def grows(descriptor, size):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(growing):
            with open(growing, "ab") as file:
                file.write(b"more")
            monkeypatch.setattr(os, "read", read)
        return read(descriptor, size)

    monkeypatch.setattr(checksum, "POOL_THRESHOLD", 100)
    monkeypatch.setattr(os, "read", grows)
    with pytest.raises(RuntimeError, match=f"{growing} changed while it was copied"):
        staged(home, place)
    assert there(place) == {LOCK}


def test_source_lost_during_the_copy_is_an_error(home, place, monkeypatch):
    walk = checksum.iter_batches

    def loses_one(top, images=False):
        found = list(walk(top, images))
        (home / "train" / "0" / "8.png").unlink(missing_ok=True)
        return iter(found)

    monkeypatch.setattr(checksum, "iter_batches", loses_one)
    with pytest.raises(RuntimeError, match=f"cannot read {home}/train/0/8.png: No such file"):
        staged(home, place)
    assert there(place) == {LOCK}


def test_flipped_bit_is_detected_by_rereading(home, place, monkeypatch):
    compare = room._compare

    def flips_then(home, told, total, partial, images):
        compare(home, told, total, partial, images)
        with open(partial / "train" / "1" / "9.png", "r+b") as file:
            file.write(bytes([9 ^ 4]))
            os.fsync(file.fileno())

    monkeypatch.setattr(room, "_compare", flips_then)
    with pytest.raises(RuntimeError, match=f"{place}/train/1/9.png differs from {home}"):
        staged(home, place, reread=True)
    assert there(place) == {LOCK}


def test_disk_space_is_checked_in_blocks(home, place, monkeypatch):
    real = os.statvfs(place.parent)

    class Room:
        f_frsize, f_bavail, f_files, f_favail = 4096, 399, real.f_files, real.f_favail

    monkeypatch.setattr(os, "statvfs", lambda _: Room)
    needs = r"dataset tiny needs 1.6 MB \(400 files in blocks of 4096 bytes\), and 1.6 MB are free"
    with pytest.raises(RuntimeError, match=needs):
        staged(home, place)
    Room.f_bavail = 400
    staged(home, place)


def test_free_inodes_are_checked_first(home, place, monkeypatch):
    class Room:
        f_frsize, f_bavail, f_files, f_favail = 4096, 10**6, 1000, 399

    monkeypatch.setattr(os, "statvfs", lambda _: Room)
    with pytest.raises(RuntimeError, match=r"399 inodes are free \(df -i\)"):
        staged(home, place)


def test_full_disk_leaves_nothing(home, place, monkeypatch):
    makes = os.open

    def full(path, flags, *mode, **folder):
        if path == "101.png" and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return makes(path, flags, *mode, **folder)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(RuntimeError, match=f"disk full at {place.parent}: .*No space left.* MB are free"):
        staged(home, place)
    assert there(place) == {LOCK}


def test_file_size_limit_leaves_nothing(home, place):
    (home / "train" / "1" / "large.png").write_bytes(bytes(3_000_000))
    describe(home)
    begun = command(home, place)
    done = subprocess.run(
        begun,
        env={"PYTHONPATH": SOURCE_ROOT},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000)),
    )
    assert (done.returncode, there(place)) == (1, {LOCK})
    assert f"cannot stage dataset tiny to {place}: [Errno 27] File too large" in done.stderr


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_real_full_file_system_is_restored(home, tmp_path, monkeypatch):
    card = tmp_path / "small"
    card.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "none", str(card)], check=True)
    try:
        monkeypatch.setattr(room, "_check_space", lambda *_: None)
        with pytest.raises(RuntimeError, match=f"disk full at {card}: .*No space left"):
            staged(home, card / "tiny")
        assert {path.name for path in card.iterdir()} == {LOCK}
    finally:
        subprocess.run(["umount", str(card)], check=True)


def command(home, place):
    arguments = {"dataset": DATASET, "home": str(home), "note": None, "place": str(place), "reread": False}
    return [sys.executable, "-m", "epochmeter.datasets", "stage", json.dumps(arguments)]


def started_and_half_done(home, place, tmp_path):
    """A start that has copied some and waits: its `os.read` blocks once a few files are done."""
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
    process = subprocess.Popen(
        [sys.executable, str(program), *command(home, place)[3:]],
        env={"PYTHONPATH": SOURCE_ROOT},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert any("half done" in line for line in process.stdout)
    return process


def test_killed_process_leaves_no_valid_copy(home, place, tmp_path):
    with started_and_half_done(home, place, tmp_path) as process:
        process.send_signal(signal.SIGKILL)
    assert not place.exists()
    assert ".tiny.partial" in there(place)
    staged(home, place)
    assert contents(place) == contents(home)
    assert there(place) == {COPY, LOCK}


def test_terminated_process_cleans_up(home, place, tmp_path, monkeypatch):
    with started_and_half_done(home, place, tmp_path) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM
    assert there(place) == {LOCK}


def test_second_process_waits_for_the_first(home, place):
    said = []
    both = [threading.Thread(target=staged, args=(home, place, said.append)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(timeout=30)
    assert sum(line.startswith("staging dataset") for line in said) == 1
    assert contents(place) == contents(home)


def test_links_in_a_users_folder_are_copied_as_contents(tmp_path, place):
    mine = tmp_path / "mine"
    (mine / "train" / "cat").mkdir(parents=True)
    (tmp_path / "elsewhere.jpg").write_bytes(b"cat")
    (mine / "train" / "cat" / "1.jpg").symlink_to(tmp_path / "elsewhere.jpg")
    (mine / "train" / "cat" / "round").symlink_to(mine / "train")
    (mine / "train" / "cat" / "notes.txt").write_text("mine")
    dataset = {**DATASET, "make": None, "adopt": {"_target_": "none"}}
    note = tmp_path / "note.json"
    manifest.write(note, manifest.describe_user_folder(mine, dataset, FACTS))
    stage(dataset, mine, note, place, False, print)
    copy = place / "train" / "cat" / "1.jpg"
    assert contents(place) == {"train/cat/1.jpg": b"cat"}
    assert not copy.is_symlink()
    assert not (mine / "manifest.json").exists()


def test_unwritable_place_is_named(home):
    with pytest.raises(RuntimeError, match=r"cannot stage dataset tiny to /proc/data/tiny: .*storage.root="):
        staged(home, Path("/proc/data/tiny"))
