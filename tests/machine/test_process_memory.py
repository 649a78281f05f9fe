import subprocess
import sys
import time

import pytest
from clocks import time_with

from epochmeter.machine import process_memory
from epochmeter.machine.process_memory import NO_MEMORY, ProcessMemory, anonymous_bytes

HOLDING = """
import subprocess, sys
held = bytearray(b"x") * {own}
code = "held = bytearray(b'x') * {other}; print(1, flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
input()
"""
OWN, OTHER = 64_000_000, 32_000_000
SECOND = 1_000_000_000


@pytest.fixture
def holding():
    """A process that holds memory, with a child that holds some too."""
    code = HOLDING.format(own=OWN, other=OTHER)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.read(1)
        yield process
        process.communicate(b"\n")


def test_memory_at_the_end_of_a_window_is_that_of_a_process_and_its_children(holding, monkeypatch):
    memory = ProcessMemory()
    memory.own_pids.add(holding.pid)
    monkeypatch.setattr(process_memory, "time", time_with(monotonic_ns=iter([SECOND, 2 * SECOND]).__next__))
    memory.mark()
    memory.mark()
    found = memory.window(SECOND, 2 * SECOND)["process_memory_bytes"]
    assert OWN + OTHER <= found <= OWN + OTHER + 40_000_000
    assert anonymous_bytes([holding.pid]) < found


def test_memory_that_cannot_be_read_is_absent(tmp_path):
    memory = ProcessMemory(tmp_path)
    memory.own_pids.add(7)
    memory.mark()
    assert memory.window(0, time.monotonic_ns()) == NO_MEMORY.window(0, 9) == {}
