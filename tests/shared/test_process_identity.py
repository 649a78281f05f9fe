import os
import shutil
import socket
import subprocess
import sys

import pytest

from epochmeter.shared.process_identity import has_exited, is_alive, start_ticks, this_process


def test_zombie_process_is_not_running_and_a_name_may_have_parentheses(tmp_path):
    program = shutil.copy(shutil.which("sleep"), tmp_path / "x) Z 1 (y")
    with subprocess.Popen([program, "60"]) as child:
        process = this_process()._replace(pid=child.pid, start_ticks=start_ticks(child.pid))
        assert is_alive(process)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process)
        child.wait()
    assert not is_alive(process)
    assert start_ticks(process.pid) is None


@pytest.mark.parametrize("changed", [{"start_ticks": "0"}, {"boot_id": "the boot before"}, {"pid": 2**22 + 1}])
def test_reused_pid_is_another_process_and_those_of_another_host_are_assumed_running(changed):
    assert not is_alive(this_process()._replace(**changed))
    assert is_alive(this_process()._replace(**changed, host="board-7"))


@pytest.mark.parametrize(
    ("program", "is_end"), [("", True), ("import os, sys; os.close(int(sys.argv[1])); input()", False)]
)
def test_process_has_exited_only_if_its_end_closes_a_connection(program, is_end):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", program, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE)
        theirs.close()
        assert ours.recv(1) == b""
        assert has_exited(process.pid) == is_end
        process.communicate(b"\n")
        assert has_exited(process.pid)
