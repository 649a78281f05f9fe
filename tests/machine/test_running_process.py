"""Processes that run already, of this and of other users, and those that do not run."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from epochmeter.machine import running_process
from epochmeter.machine.running_process import find_earlier_process, find_process, wait_for_end
from epochmeter.shared.problem import InputError

PROGRAM = "print(flush=True); input()"
LONG_S = 600  # longer than any pause of the machine


@pytest.fixture
def child():
    """A process that runs for a minute, unless a test ends it."""
    command = [sys.executable, "-c", PROGRAM, "an argument"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # it runs its program
        yield process
        process.kill()


def fake(tmp_path, pid=7, *, state="S", flags=0, command=b"train\0--lr\0", **files):
    """Write the files of a process; `None` for one that is not there."""
    folder = tmp_path / str(pid)
    (folder / f"task/{pid}").mkdir(parents=True)
    fields = [state, "1", "1", "1", "0", "-1", str(flags), *["0"] * 40]
    texts = {"stat": f"{pid} (a name) {' '.join(fields)}", "status": "", "schedstat": "", "children": "", **files}
    for name, text in texts.items():
        if text is not None:
            (folder / (f"task/{pid}/{name}" if name == "children" else name)).write_text(text)
    (folder / "cmdline").write_bytes(command)
    return tmp_path


def test_process_has_its_command_and_identity(child):
    process = find_process(child.pid)
    assert process.command == [sys.executable, "-c", PROGRAM, "an argument"]
    assert (process.identity.pid, process.user, process.unreadable, process.is_alive) == (child.pid, "", [], True)


def test_wait_ends_at_the_end_of_the_process_or_at_the_limit(child):
    process = find_process(child.pid)
    assert not wait_for_end(process, 0.01)
    child.kill()
    begun_s = time.monotonic()
    assert wait_for_end(process, LONG_S)  # although its parent has not waited for it
    assert time.monotonic() - begun_s < LONG_S


def test_end_is_found_without_the_kernels_report(child, monkeypatch):
    def forbidden(pid):
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    process = find_process(child.pid)
    assert not wait_for_end(process, 0.01)
    child.kill()
    while not wait_for_end(process, 1):
        pass
    assert not process.is_alive


def test_a_later_process_with_the_same_number_is_another_one(child):
    process = find_process(child.pid)
    reused = process._replace(identity=process.identity._replace(start_ticks="1"))
    assert (reused.is_alive, wait_for_end(reused, 5)) == (False, True)
    with pytest.raises(InputError, match="a later one has its number now"):
        find_earlier_process(child.pid)  # it began after this process
    assert find_earlier_process(os.getppid()).identity.pid == os.getppid()


def test_process_that_has_ended_is_refused_as_a_zombie_and_then_as_absent(child):
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(InputError, match=f"has ended already: its parent, process {os.getpid()}"):
        find_process(child.pid)
    child.wait()
    with pytest.raises(InputError, match="no process has the number"):
        find_process(child.pid)


@pytest.mark.parametrize("facts", [{"flags": 0x00200000}, {"command": b""}], ids=["kernel", "no command"])
def test_thread_of_the_kernel_is_refused(tmp_path, facts):
    with pytest.raises(InputError, match="process 7 runs no program"):
        find_process(7, fake(tmp_path, **facts))


def test_hidden_process_is_refused(tmp_path, monkeypatch):
    def hidden(pid, proc):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(running_process, "read_stat", hidden)
    with pytest.raises(InputError, match="hidden from this user: Permission denied\n  hint: measure as its user"):
        find_process(7, fake(tmp_path))


def test_what_of_another_users_process_cannot_be_read_is_stated(tmp_path, monkeypatch):
    monkeypatch.setattr(running_process, "pwd", SimpleNamespace(getpwuid=lambda uid: SimpleNamespace(pw_name="ann")))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    process = find_process(7, fake(tmp_path, schedstat=None, children=None))
    assert process.user == "ann"
    assert process.unreadable == [
        "the processes that it has started (No such file or directory)",
        "the time that its threads wait for a core (No such file or directory)",
    ]
