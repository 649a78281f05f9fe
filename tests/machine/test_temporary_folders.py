"""Temporary folders, which processes of the test create and leave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from epochmeter.machine import temporary_folders
from epochmeter.machine.temporary_folders import PREFIX, create_folder, temporary_folder

SOURCE = Path(__file__).parents[2] / "src"
HOLD = """
import sys
from epochmeter.machine.temporary_folders import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    (folder / "link").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """hold() -> a process that uses a folder, and the folder."""
    processes = []

    def start():
        piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        processes.append(subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], env=environment, **piped))
        return processes[-1], Path(processes[-1].stdout.readline().strip())

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_folder_of_a_killed_process_is_removed_by_the_next_one_and_no_other(hold, tmp_path, monkeypatch):
    alive, used = hold()
    killed, left = hold()
    killed.kill()
    killed.wait()
    others = [tmp_path / name for name in ("mine", f"{PREFIX}file", f"{PREFIX}link")]
    others[0].mkdir()
    others[1].touch()
    others[2].symlink_to(others[0])
    with monkeypatch.context() as other_user, temporary_folder(str(tmp_path)):
        other_user.setattr(temporary_folders.os, "geteuid", lambda: 12345)
        temporary_folders.remove_abandoned(tmp_path)
    assert not left.exists(), "removed before its own was created"
    killed, left = hold()
    killed.kill()
    killed.wait()
    with monkeypatch.context() as other_user:
        other_user.setattr(temporary_folders.os, "geteuid", lambda: 12345)
        temporary_folders.remove_abandoned(tmp_path)
        assert left.exists()
    with temporary_folder(str(tmp_path)) as folder:
        assert {*tmp_path.iterdir()} == {*others, used, folder}
        assert (used / "link").exists()
    alive.communicate("")
    assert {*tmp_path.iterdir()} == {*others}


def test_folder_that_another_process_removes_before_it_is_locked_is_created_again(tmp_path, monkeypatch):
    lock, removed = temporary_folders.fcntl.flock, []

    def remove_first(descriptor, operation):
        if not removed:
            (folder,) = tmp_path.iterdir()
            removed.append(folder)
            folder.rmdir()
        lock(descriptor, operation)

    monkeypatch.setattr(temporary_folders.fcntl, "flock", remove_first)
    folder, descriptor = create_folder(str(tmp_path))
    os.close(descriptor)
    assert [*tmp_path.iterdir()] == [folder]
    assert folder not in removed
