"""Identity of a process by host, pid, start time and boot."""

import os
import shutil
import subprocess

import pytest

from epochmeter.shared.process_identity import is_alive, start_ticks, this_process


def of(process):
    return this_process()._replace(pid=process.pid, start_ticks=start_ticks(process.pid))


def test_zombie_process_is_not_running(other_process):
    process = of(other_process)
    assert is_alive(process)
    other_process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process)
    other_process.wait()
    assert not is_alive(process)
    assert start_ticks(process.pid) is None


@pytest.mark.parametrize("changed", [{"start_ticks": "0"}, {"boot_id": "the boot before"}, {"pid": 2**22 + 1}])
def test_reused_pid_is_another_process_and_those_of_another_host_are_assumed_running(changed):
    assert not is_alive(this_process()._replace(**changed))
    assert is_alive(this_process()._replace(**changed, host="board-7"))


def test_process_name_with_parentheses_is_parsed(tmp_path):
    program = shutil.copy(shutil.which("sleep"), tmp_path / "x) Z 1 (y")
    with subprocess.Popen([program, "60"]) as process:
        assert is_alive(of(process))
        process.kill()
