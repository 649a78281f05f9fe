"""A process is known by its host, its number, and when it and that host's kernel began."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epochmeter.machine.process_identity import began, lives, this_process


@pytest.fixture
def other():
    """Another process, which lives."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def of(process):
    return this_process()._replace(pid=process.pid, began=began(process.pid))


def test_this_process_lives():
    assert lives(this_process())
    assert this_process().pid == os.getpid()


def test_a_process_that_has_ended_lives_no_more_also_before_its_parent_asks_how(other):
    told = of(other)
    assert lives(told)
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert not lives(told)
    other.wait()
    assert not lives(told)
    assert began(other.pid) is None


@pytest.mark.parametrize("changed", [{"began": "0"}, {"boot_id": "the boot before"}, {"pid": 2**22 + 1}])
def test_a_number_that_another_process_has_is_not_enough(changed):
    assert not lives(this_process()._replace(**changed))


def test_a_process_of_another_host_is_believed_to_live():
    assert lives(this_process()._replace(host="board-7", pid=1, began="0", boot_id="its-own-boot"))


def test_a_name_that_looks_like_what_the_kernel_tells_misleads_nobody(tmp_path):
    program = tmp_path / "x) Z 1 (y"
    shutil.copy(shutil.which("sleep"), program)
    process = subprocess.Popen([program, "60"])
    try:
        assert lives(of(process))
    finally:
        process.kill()
        process.wait()


def test_setting_the_clock_changes_nothing():
    """When a process began is told in ticks since the machine started."""
    ticks = int(began(os.getpid()))
    with open("/proc/uptime") as uptime:
        assert 0 < ticks <= float(uptime.read().split()[0]) * os.sysconf("SC_CLK_TCK")


def test_a_process_of_another_container_is_believed_to_live_until_the_machine_starts_anew():
    inside = this_process()._replace(pid=2**22 + 1, began="0", numbers="pid:[1]")
    assert lives(inside)
    assert not lives(inside._replace(boot_id="the boot before"))


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid(), reason="needs root, to make numbers of its own")
def test_a_container_numbers_its_own():
    told = "from epochmeter.machine.process_identity import this_process; print(*this_process())"
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", told]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(inside, env=environment, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no right to: {done.stderr.strip()}")
    host, pid, boot_id, _, numbers = done.stdout.split()
    assert (host, pid, boot_id) == (this_process().host, "1", this_process().boot_id)
    assert numbers != this_process().numbers
