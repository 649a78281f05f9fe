"""The wait for an idle processor, with a scripted /proc and a scripted clock."""

import os
from types import SimpleNamespace

import pytest
from default_jobs import job_of
from metadata import run_info
from processes import ScriptedProc

from epochmeter.machine import cpu_load
from epochmeter.results.run_result import RunResult
from epochmeter.run import idle_wait

TICKS, OTHER = os.sysconf("SC_CLK_TCK"), 99


@pytest.fixture
def waited(tmp_path, monkeypatch, terminal):
    """waited(most_s, busy_s) -> metadata, notes and output; another process uses 1 of 2 cores until then."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    proc = ScriptedProc(tmp_path)

    def wait(most_s, busy_s=0.0, stop_s=None):
        now_s = 0.0

        def sleep(seconds):
            nonlocal now_s
            if stop_s is not None and now_s >= stop_s:
                raise KeyboardInterrupt
            now_s += seconds
            used = round(TICKS * min(now_s, busy_s))
            proc.processor(user=used, idle=round(2 * TICKS * now_s) - used)
            proc.process(OTHER, used, "make")

        sleep(0)
        clock = SimpleNamespace(monotonic=lambda: now_s, monotonic_ns=lambda: round(now_s * 1e9), sleep=sleep)
        for module in (idle_wait, cpu_load):
            monkeypatch.setattr(module, "time", clock)
        plan, result = SimpleNamespace(run=run_info(), describe=lambda **_: None), RunResult(0, [])
        plan.job = job_of(sweep={"wait_idle": most_s}, machine={"root": str(tmp_path)})
        printed = len(terminal.console.file.getvalue())
        idle_wait.wait_idle(plan, result, terminal)
        return plan.run.idle_wait, result.notes, terminal.console.file.getvalue()[printed:]

    return wait


def test_run_begins_at_once_by_default_or_if_the_processor_is_idle(waited):
    assert waited(0, busy_s=100) == (None, [], "")
    assert waited(600) == ({"waited_s": 1.0, "other_cpu_fraction": 0.0}, [], "")


def test_run_waits_for_the_end_of_others_and_names_them_once(waited):
    metadata, notes, printed = waited(600, busy_s=5)
    assert (metadata, notes) == ({"waited_s": 6.0, "other_cpu_fraction": 0.0}, [])
    assert "use 50 % of the processor: make (pid 99) 50 %. Waiting up to 600 s " in " ".join(printed.split())
    assert printed.count("make") == 1


def test_run_that_waited_long_enough_begins_with_a_note(waited):
    metadata, (note,), _ = waited(3, busy_s=100)
    assert metadata == {"waited_s": 3.0, "other_cpu_fraction": 0.5}
    assert "after 3 s of waiting (`sweep.wait_idle=3`)" in note
    assert "make (pid 99) 50 %" in note


def test_wait_has_no_effect_with_a_note_if_the_use_is_not_known(waited, monkeypatch):
    monkeypatch.setattr(cpu_load, "CHILDREN", "/no/such/file")
    metadata, (note,), printed = waited(600, busy_s=100)
    assert metadata == {"waited_s": 1.0, "reason": idle_wait.UNKNOWN_USE}
    assert note.startswith("sweep.wait_idle=600 has no effect: ")
    assert printed == ""


def test_wait_ends_by_ctrl_c(waited):
    with pytest.raises(KeyboardInterrupt):
        waited(600, busy_s=100, stop_s=4)


def test_script_that_waits_for_this_process_is_not_another_process(waited, monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: OTHER)
    monkeypatch.setenv(idle_wait.ATTACHED, "3")
    assert waited(600, busy_s=100) == ({"waited_s": 1.0, "other_cpu_fraction": 0.0}, [], "")
