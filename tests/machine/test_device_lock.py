"""Device locks between real processes and between threads."""

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from epochmeter.machine import device_lock

SOURCE = Path(__file__).parents[2] / "src"
HOLDER = """
import sys, time
from epochmeter.machine.device_lock import lock_devices
with lock_devices(sys.argv[2:], sys.argv[1], "pid 7 since noon: python train.py", print):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process_holds(folder, *devices):
    command = [sys.executable, "-c", HOLDER, str(folder), *devices]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def wait_for(folder, *devices):
    """Start a thread that locks devices; return its messages, and events for the first message and for the lock."""
    messages, waits, locked = [], threading.Event(), threading.Event()

    def say(text):
        messages.append(text)
        waits.set()

    def lock():
        with device_lock.lock_devices(devices, str(folder), "me", say):
            locked.set()

    threading.Thread(target=lock, daemon=True).start()
    return messages, waits, locked


@pytest.mark.parametrize("end", [lambda holder: holder.stdin.close(), subprocess.Popen.kill], ids=["ends", "killed"])
def test_second_run_names_the_holder_and_waits_for_it_with_devices_in_sorted_order(tmp_path, monkeypatch, end):
    monkeypatch.setenv("HOME", str(tmp_path))
    with another_process_holds(tmp_path, "a") as holder:
        messages, waits, locked = wait_for(tmp_path, "b", "a")
        assert waits.wait(10)
        assert messages == ["Waiting for a, in use by pid 7 since noon: python train.py."]
        assert wait_for("~", "b")[2].wait(10), "b is still free, so that there is no deadlock"
        assert not locked.is_set()
        end(holder)
        assert locked.wait(10)


def test_lock_file_is_writable_by_all_users_in_one_folder_for_all_jobs(tmp_path, monkeypatch):
    """Root may write everywhere, and a Slurm job may have its own temporary folder."""
    shared = tmp_path / "run"
    monkeypatch.setattr(device_lock, "SHARED_LOCK_DIR", shared)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert device_lock._default_lock_dir() == Path("/tmp")
    shared.mkdir(mode=0o755)
    assert device_lock._default_lock_dir() == Path("/tmp")
    shared.chmod(0o1777)
    umask = os.umask(0o077)
    try:
        with device_lock.lock_devices(["cpu"], None, "me", print):
            assert (shared / "epochmeter-cpu.lock").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(umask)


def test_holders_text_of_another_user_is_one_printable_line(tmp_path):
    with another_process_holds(tmp_path, "a"):
        (tmp_path / "epochmeter-a.lock").write_bytes(b"pid 7\x1b[2J\nerror: x\xff\x00")
        messages, waits, _ = wait_for(tmp_path, "a")
        assert waits.wait(10)
        assert messages == ["Waiting for a, in use by pid 7\ufffd[2J error: x\ufffd\ufffd."]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.link(path.with_name("private"), path)])
def test_lock_that_is_no_plain_file_of_its_own_is_refused_without_waiting(tmp_path, make):
    (private := tmp_path / "private").write_text("private")
    make(tmp_path / "epochmeter-cpu.lock")
    refused = pytest.raises(RuntimeError, match=r"(?s)^cannot lock cpu: .*\n  hint: .*lock_dir=")
    with refused, device_lock.lock_devices(["cpu"], str(tmp_path), "me", print):
        pass
    assert private.read_text() == "private"


def test_closed_terminal_while_waiting_is_no_error_of_the_lock(tmp_path):
    with another_process_holds(tmp_path, "gpu"), pytest.raises(BrokenPipeError):  # noqa: SIM117
        with device_lock.lock_devices(["gpu"], str(tmp_path), "me", Mock(side_effect=BrokenPipeError)):
            pass


def test_refused_lock_is_an_error_with_a_hint_and_a_link_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("another user's")
    (tmp_path / "epochmeter-cpu.lock").symlink_to("file")
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=[None, OSError(errno.ENOLCK, "No locks available")]))
    for device, reason in (("cpu", "symbolic links"), ("gpu", None), ("gpu", "No locks available")):
        is_error = pytest.raises(RuntimeError, match=rf"(?s)^cannot lock {device}: .*{reason}.*\n  hint: .*lock_dir=")
        with is_error if reason else nullcontext(), device_lock.lock_devices([device], str(tmp_path), "me", print):
            pass
    assert (tmp_path / "file").read_text() == "another user's"
