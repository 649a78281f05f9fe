"""The use of the processor: known counters, and a real process that is kept busy."""

import os
import subprocess
import sys
import time

import pytest
from cases import case, cases
from processes import ScriptedProc
from project import put

from epochmeter.machine import cpu_load, marks
from epochmeter.machine.busy_processes import BusyProcess
from epochmeter.machine.cpu_load import UNKNOWN, CpuLoad, family, used_ticks

SECOND = 1_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")
RUN, WORKER, OTHER = 7, 8, 99  # pids of a run, its child, and another process
BUSY = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass"


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A scripted /proc of two cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return ScriptedProc(tmp_path)


@pytest.fixture
def scripted(proc, monkeypatch):
    """scripted(always_names=False) -> the load of the run on the scripted /proc; load.mark_at(9) reads it at 9 s."""

    def make(**keys):
        load = CpuLoad(proc.root, **keys)
        load.own_pids = {RUN}

        def mark_at(at_s):
            monkeypatch.setattr(cpu_load.time, "monotonic_ns", lambda: round(at_s * SECOND))
            load.mark()

        load.mark_at = mark_at
        return load

    return make


@cases(
    case("others", counts="300 0 100 0 0 0 0 0", own=150, fraction=0.625, is_noted=True),
    # 40 ticks were stolen by other virtual machines
    case("stolen", counts="300 0 60 0 0 0 0 40", own=300, fraction=0.25, is_noted=True),
    # almost half of the time was idle
    case("idle", counts="150 10 50 170 20 0 0 0", own=160, fraction=0.125, is_noted=False),
    case("few", counts="380 0 20 0 0 0 0 0", own=380, fraction=0.05, is_noted=False),
    # ticks of a process are precise, those of cores are sampled
    case("precise", counts="390 0 10 0 0 0 0 0", own=410, fraction=0.0, is_noted=False),
    # a descendant has left the family
    case("left", counts="390 0 10 0 0 0 0 0", own=-50, fraction=1.0, is_noted=True),
    case("short", counts="40 0 9 0 0 0 0 0", own=0, fraction=None, is_noted=False),
)
def test_others_use_what_is_neither_idle_nor_of_the_run(proc, scripted, counts, own, fraction, is_noted):
    load = scripted()
    assert load.window(0, 9 * SECOND) == UNKNOWN
    for at_s, used, line in ((0, 1000, "0 0 0 0 0 0 0 0"), (9, 1000 + own, counts)):
        proc.process(RUN, used)
        put(proc.root, {"proc/stat": f"cpu  {line} 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"})
        load.mark_at(at_s)
    use = load.window(0, 9 * SECOND)
    assert (use.other_fraction, use.is_contended, bool(use.note)) == (fraction, is_noted, is_noted)
    (proc.root / "proc/stat").unlink()
    load.mark_at(18)
    assert load.window(9 * SECOND, 18 * SECOND) == UNKNOWN, "not that of an earlier window"


def test_time_and_waits_of_processes_beside_the_run_are_not_those_of_the_run(proc, scripted):
    """The child waits all the time; its 2 of 20 ticks per second are neither those of others nor of a thread."""
    load = scripted()
    load.background_pids = {WORKER}
    for at_s in (0, 10):
        proc.processor(user=2 * TICKS * at_s)
        proc.process(RUN, 18 * TICKS * at_s // 10, children=[WORKER], threads={RUN: (30 + 9 * SECOND * at_s // 10, 0)})
        proc.process(WORKER, 2 * TICKS * at_s // 10, threads={WORKER: (2 * SECOND * at_s // 10, SECOND * at_s)})
        load.mark_at(at_s)
    use = load.window(0, 10 * SECOND)
    assert (use.other_fraction, use.wait_fraction) == (0.0, 0.0)
    assert use.runnable_threads == pytest.approx(1.8)


def test_waits_of_threads_are_relative_to_the_time_in_which_they_could_run(proc, scripted):
    """In 10 s, two threads wait half of the time, and others sleep; they wanted 2.4 cores on average."""
    load = scripted()
    for at_s in (0, 10, 20):
        proc.processor(user=2 * TICKS * at_s)
        threads = {RUN: (5 * SECOND * at_s // 10, 5 * SECOND * at_s // 10), 71: (0, 0), 72: (30, 3)}
        proc.process(RUN, round(0.6 * TICKS * at_s), children=[WORKER], threads=threads)
        proc.process(
            WORKER, round(0.6 * TICKS * at_s), threads={WORKER: (7 * SECOND * at_s // 10, 7 * SECOND * at_s // 10)}
        )
        load.mark_at(at_s)
    assert load.reason == ""
    for opened_s, closed_s in ((0, 10), (10, 20), (0, 20)):
        use = load.window(opened_s * SECOND, closed_s * SECOND)
        assert (use.wait_fraction, use.runnable_threads) == pytest.approx((0.5, 2.4))


def test_waits_are_a_lower_bound_if_threads_have_ended(proc, scripted):
    """The child ran 4 s and waited 4 s; its waits are lost at its end, but not its ticks, which its parent has."""
    load = scripted()
    proc.processor()
    proc.process(RUN, children=[WORKER], threads={RUN: (SECOND, 0)})
    proc.process(WORKER, threads={WORKER: (SECOND, SECOND)})
    load.mark_at(0)
    proc.end(WORKER)
    proc.processor(user=20 * TICKS)
    proc.process(RUN, ticks=6 * TICKS, threads={RUN: (3 * SECOND, 2 * SECOND)})
    load.mark_at(10)
    use = load.window(0, 10 * SECOND)
    assert (use.wait_fraction, use.runnable_threads) == pytest.approx((2 / (2 + 6), (2 + 6) / 10))


def test_waits_are_absent_with_the_reason_if_the_kernel_does_not_count_them(proc, scripted, monkeypatch):
    load = scripted()
    assert load.reason == cpu_load.NOT_READ
    for at_s in (0, 10):
        proc.processor(user=2 * TICKS * at_s)
        proc.process(RUN, TICKS * at_s, threads={RUN: (0, 0)})
        load.mark_at(at_s)
    use = load.window(0, 10 * SECOND)
    assert (use.wait_fraction, use.runnable_threads, load.reason) == (None, None, cpu_load.NOT_COUNTED)
    assert use.other_fraction == 0.5
    monkeypatch.setattr(cpu_load, "CHILDREN", "/no/such/file")
    assert load.reason == cpu_load.NO_CHILDREN
    load.own_pids.add(0)
    assert load.reason == cpu_load.HIDDEN


def test_processes_of_others_are_named_in_windows_in_which_no_core_was_free(proc, scripted):
    """From 20 s on, another process uses one of two cores, and the run the other one."""
    load, always = scripted(), scripted(always_names=True)
    for at_s in (0, 10, 20, 30, 32):
        others, of_run = TICKS * max(0, at_s - 20), TICKS * at_s
        proc.processor(user=others + of_run, idle=2 * TICKS * at_s - others - of_run)
        proc.process(RUN, of_run, threads={RUN: (at_s * SECOND, 0)})
        proc.process(OTHER, others, "make")
        load.mark_at(at_s)
        always.mark_at(at_s)
    found = {}
    for opened_s, closed_s in ((0, 10), (10, 20), (20, 30), (30, 32)):
        use = load.window(opened_s * SECOND, closed_s * SECOND)
        found[closed_s] = (use.is_contended, use.others)
    busy = [BusyProcess("make", OTHER, 0.5)]
    assert found == {10: (False, ()), 20: (False, ()), 30: (True, busy), 32: (True, busy)}
    assert always.window(10 * SECOND, 20 * SECOND).others == []
    assert always.window(20 * SECOND, 30 * SECOND).others == busy
    load.discard_before(32 * SECOND)
    assert load.window(20 * SECOND, 30 * SECOND) == UNKNOWN


def test_family_has_children_of_all_threads_and_the_time_of_ended_ones():
    parent = "import subprocess, sys, threading\nthread = threading.Thread(target=subprocess.run, args="
    parent += f"([sys.executable, '-c', {BUSY.format(1)!r}],))\nthread.start()\nthread.join()\ninput()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while len([*family([process.pid])]) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert {process.pid} < {*family([process.pid])} < {*family([os.getpid()])}
        while used_ticks(process.pid) < os.sysconf("SC_CLK_TCK") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert used_ticks(process.pid) >= os.sysconf("SC_CLK_TCK")
        process.communicate("\n")
    assert [*family([process.pid])] == [process.pid]
    assert used_ticks(process.pid) == 0


def test_load_of_a_process_is_of_others_until_it_belongs_to_the_run(monkeypatch):
    monkeypatch.setattr(marks, "MAX_DISTANCE_S", 60.0)  # the thread may pause between a look and its mark
    with subprocess.Popen([sys.executable, "-c", BUSY.format(60)]) as process:
        without, including = CpuLoad(), CpuLoad()
        without.own_pids, including.own_pids = set(), {process.pid}
        borders_ns = []
        for wait_s in (1.0, 0.0):
            without.mark()
            borders_ns.append(time.monotonic_ns())
            including.mark()
            time.sleep(wait_s)
        process.kill()
    window = borders_ns[0], borders_ns[1]
    assert including.window(*window).other_fraction < without.window(*window).other_fraction
    hidden = CpuLoad()
    hidden.own_pids.add(0)
    monkeypatch.setattr(cpu_load, "MIN_TICKS", 0)
    for load, children in ((hidden, cpu_load.CHILDREN), (CpuLoad(), "/no/such/file")):
        monkeypatch.setattr(cpu_load, "CHILDREN", children)
        load.mark()
        load.mark()
        assert load.window(0, time.monotonic_ns()) == UNKNOWN
