"""The processor time of other processes: known counters, and a real process that is kept busy."""

import os
import subprocess
import sys
import time

import pytest

from epochmeter.machine import cpu_load
from epochmeter.machine.cpu_load import CpuLoad, family, used_ticks

SECOND = 1_000_000_000
BUSY = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass"


@pytest.mark.parametrize(
    ("counts", "own", "fraction", "is_noted"),
    [
        ("300 0 100 0 0 0 0 0", 150, 0.625, True),
        ("300 0 60 0 0 0 0 40", 300, 0.25, True),  # 40 ticks were stolen by other virtual machines
        ("150 10 50 170 20 0 0 0", 160, 0.125, False),  # almost half of the time was idle
        ("380 0 20 0 0 0 0 0", 380, 0.05, False),
        ("390 0 10 0 0 0 0 0", 410, 0.0, False),  # ticks of a process are precise, those of cores are sampled
        ("390 0 10 0 0 0 0 0", -50, 1.0, True),  # a descendant has left the family
        ("40 0 9 0 0 0 0 0", 0, None, False),
    ],
    ids=["others", "stolen", "idle", "few", "precise", "left", "short"],
)
def test_others_use_what_is_neither_idle_nor_of_the_run(tmp_path, monkeypatch, counts, own, fraction, is_noted):
    (tmp_path / "proc").mkdir()
    load, ticks, times_s = CpuLoad(tmp_path), iter([1000, 1000 + own]), iter([0, 9])
    monkeypatch.setattr(cpu_load, "family", lambda pids: [7])
    monkeypatch.setattr(cpu_load, "used_ticks", lambda pid: next(ticks))
    monkeypatch.setattr(cpu_load.time, "monotonic_ns", lambda: next(times_s) * SECOND)
    assert load.others(0, 9 * SECOND) == (None, "")
    for line in ("0 0 0 0 0 0 0 0", counts):
        (tmp_path / "proc/stat").write_text(f"cpu  {line} 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
        load.mark()
    found, note = load.others(0, 9 * SECOND)
    assert (found, bool(note)) == (fraction, is_noted)
    (tmp_path / "proc/stat").unlink()
    load.mark()
    assert load.others(9 * SECOND, 18 * SECOND) == (None, ""), "not that of an earlier window"


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
    with subprocess.Popen([sys.executable, "-c", BUSY.format(60)]) as process:
        without, including = CpuLoad(), CpuLoad()
        without.own_pids, including.own_pids = set(), {process.pid}
        for wait_s in (1.0, 0.0):
            without.mark()
            including.mark()
            time.sleep(wait_s)
        process.kill()
    window = time.monotonic_ns() - SECOND, time.monotonic_ns()
    assert including.others(*window)[0] < without.others(*window)[0]
    hidden = CpuLoad()
    hidden.own_pids.add(0)
    monkeypatch.setattr(cpu_load, "MIN_TICKS", 0)
    for load, children in ((hidden, cpu_load.CHILDREN), (CpuLoad(), "/no/such/file")):
        monkeypatch.setattr(cpu_load, "CHILDREN", children)
        load.mark()
        load.mark()
        assert load.others(0, time.monotonic_ns()) == (None, "")
