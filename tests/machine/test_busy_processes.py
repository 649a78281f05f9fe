"""The processes that used most processor time, on a scripted /proc."""

import os

import pytest
from clocks import time_with
from processes import ScriptedProc

from epochmeter.machine import busy_processes
from epochmeter.machine.busy_processes import BusyProcess, BusyProcesses, Usage, used_ticks_since

SECOND = 1_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return ScriptedProc(tmp_path)


def test_busiest_processes_of_a_window_are_named_with_their_fraction_of_all_cores(proc):
    busy = BusyProcesses(proc.root / "proc")
    used = {11: ("make", 0.5), 12: ("cc1plus", 0.9), 13: ("idle", 0.0), 14: ("ld\x1b[1m", 0.3), 15: ("sh", 0.2)}
    for at_s in (0, 10, 20):
        for pid, (name, cores) in used.items():
            proc.process(pid, round(TICKS * cores * at_s), name)
        proc.process(7, 5 * TICKS * at_s, "train")  # of the run
        proc.process(20, 5 * TICKS * at_s, "kworker/0:1", parent=2)  # of the kernel
        busy.mark(at_s * SECOND, {7})
    found = [
        BusyProcess("cc1plus", 12, 0.45),
        BusyProcess("make", 11, 0.25),
        BusyProcess("ld\N{REPLACEMENT CHARACTER}[1m", 14, 0.15),
    ]
    assert busy.busiest(0, 10 * SECOND) == found
    assert busy.busiest(3 * SECOND, 18 * SECOND) == found
    assert busy.busiest(20 * SECOND, 30 * SECOND) == []
    busy.discard_before(20 * SECOND)
    assert busy.busiest(0, 20 * SECOND) == []


def test_process_that_used_little_is_not_named(proc):
    busy = BusyProcesses(proc.root / "proc")
    for at_s in (0, 100):
        proc.process(11, TICKS * at_s // 100, "cron")
        busy.mark(at_s * SECOND, ())
    assert busy.busiest(0, 100 * SECOND) == []


def test_reading_is_due_if_it_is_old_or_the_processor_was_contended_and_it_costs_little(proc, monkeypatch):
    busy, clock_ns = BusyProcesses(proc.root / "proc"), iter([0, 20_000_000])
    assert busy.is_due(0, is_contended=False)
    monkeypatch.setattr(busy_processes, "time", time_with(monotonic_ns=lambda: next(clock_ns)))
    busy.mark(0, ())  # takes 20 ms
    assert [busy.is_due(at_s * SECOND, is_contended=False) for at_s in (9, 10)] == [False, True]
    assert [busy.is_due(at_s * SECOND, is_contended=True) for at_s in (1, 2)] == [False, True]


def test_ticks_of_ended_children_count_from_the_earlier_reading_on():
    before = {1: Usage("5", 0, 100), 2: Usage("6", 1, 9), 3: Usage("7", 2, 5000), 4: Usage("8", 1, 40)}
    now = {
        1: Usage("5", 0, 100 + 9 + 5000 + 30 + 40),  # 3 used 30 ticks more; 3, then its parent 2, and 4 have ended
        4: Usage("900", 1, 8),  # another process with the same number
    }
    assert used_ticks_since(before, now) == {1: 30, 4: 8}
    assert used_ticks_since({1: Usage("5", 0, 100)}, {1: Usage("5", 0, 100), 9: Usage("6", 1, 7)}) == {9: 7}
