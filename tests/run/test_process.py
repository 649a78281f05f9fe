"""The measurement of a process that runs already: windows, their energy, and how it ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from clocks import time_with
from default_jobs import job_of
from followed import POWER_W, counter
from metadata import run_info

from epochmeter.machine.cpu_load import CpuUse
from epochmeter.power.meter import NullMeter
from epochmeter.power.window_energy import take_reading
from epochmeter.results.account import account_of
from epochmeter.results.footprint import evaluate
from epochmeter.results.run_result import RunResult
from epochmeter.results.summary import summarize
from epochmeter.run import process as subject
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.nodes import Node
from epochmeter.run.process import follow_process
from epochmeter.run.recording import Recording
from epochmeter.shared.problem import MachineError
from epochmeter.shared.record import Record

S = 10**9


@pytest.fixture
def sleeper(monkeypatch):
    """sleeper(seconds) -> a process that ends after a time; it counts as one that began before this one."""
    started = []

    def start(seconds):
        started.append(subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"]))
        return started[-1].pid

    monkeypatch.setattr(subject, "find_earlier_process", subject.find_earlier_process.__globals__["find_process"])
    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def follow(tmp_path):
    """follow(pid, meter=, **keys) -> the plan after the measurement, and its notes."""

    def act(pid, meter=None, **keys):
        record = Record(tmp_path)
        moments = {"command_ns": time.monotonic_ns(), "process_ns": time.monotonic_ns()}
        job = job_of(measure={"command": ["train.py"], "pid": pid, **keys}, meter={"idle_s": 0})
        plan = SimpleNamespace(
            record=record, job=job, targets={}, run=run_info(moments=moments), gpus=[], on_gpu=False,
            node=Node(), set_flags=lambda flags: None, describe=lambda: None,
        )  # fmt: skip
        gauges = Mock(series=None, window=lambda *_: {"cpu_utilization": 0.5}, throttled=lambda *_: [])
        load = Mock(window=lambda *_: CpuUse(0.25), own_pids=set())
        instruments = WindowInstruments(meter or NullMeter("none"), gauges, Mock(window=lambda *_: {}), load)
        recording = Recording(plan, instruments, Mock(drift_messages=list), Mock())
        recording.start(take_reading(instruments.meter))
        result = RunResult(0, [])
        follow_process(plan, instruments, recording, Mock(), result, Mock())
        recording.process_ended()
        plan.run.moments |= {"ended_ns": time.monotonic_ns(), "recorded_ns": time.monotonic_ns()}
        return plan, result.notes

    return act


@pytest.mark.timed
def test_windows_follow_each_other_until_the_process_ends(follow, sleeper, monkeypatch):
    monkeypatch.setattr(subject, "WINDOW_S", 0.3)
    pid = sleeper(1)
    plan, notes = follow(pid)
    windows = plan.record.windows()
    assert notes[-1] == f"process {pid} has ended."
    assert [(window["window"], window["epoch"]) for window in windows] == [("process", n) for n in range(len(windows))]
    assert len(windows) >= 2
    assert windows[0]["metrics"]["process/cpu_utilization"] == 0.5
    assert windows[0]["metrics"]["process/other_cpu_fraction"] == 0.25
    gaps_s = [(after["opened_ns"] - before["closed_ns"]) / S for before, after in pairwise(windows)]
    assert max(gaps_s) < 0.3, "no window is missing between them"


@pytest.mark.timed
def test_energy_of_all_stages_is_that_of_the_meter_and_rows_add_up(follow, sleeper, monkeypatch):
    monkeypatch.setattr(subject, "WINDOW_S", 0.5)
    waits_s = []

    def wait(process, seconds):
        time.sleep(seconds)
        waits_s.append(seconds)
        return False

    monkeypatch.setattr(subject, "wait_for_end", wait)
    monkeypatch.setattr(subject, "time", time_with(monotonic=lambda: sum(waits_s)))  # no pause of the machine counts
    plan, _ = follow(sleeper(60), counter(), duration_s=1.2)
    footprint = {"intensity": 100, "price": 0.5, "currency": "EUR"}
    job = job_of(measure={"command": ["train.py"], "pid": 1}, footprint=footprint)
    totals = summarize(plan.record.windows(), [], job) | evaluate(plan.record.windows(), plan.run, job)[0]
    assert totals["total/energy_j"] == pytest.approx(POWER_W * totals["total/e2e_s"], rel=0.01)
    assert totals["total/co2e_g"] == pytest.approx(totals["total/energy_j"] / 3.6e6 * 100)
    assert totals["total/cost"] == pytest.approx(totals["total/energy_j"] / 3.6e6 * 0.5)
    account = account_of(plan.run, plan.record.windows(), [], 1).metrics
    rows_s = [account.get(f"run/{row}_s", 0) for row in ("prepare", "build", "window", "between", "finish", "analyze")]
    assert sum(rows_s) == pytest.approx(account["run/wall_s"])
    assert waits_s == pytest.approx([0.5, 0.5, 0.2])
    lasted_s = [(window["closed_ns"] - window["opened_ns"]) / S for window in plan.record.windows()]
    assert [window_s >= wait_s for window_s, wait_s in zip(lasted_s, waits_s, strict=True)] == [True, True, True]
    assert account["run/window_s"] == pytest.approx(sum(lasted_s))
    measured_s = account["run/wall_s"] - account["run/prepare_s"] - account["run/analyze_s"]
    assert account["run/energy_j"] == pytest.approx(POWER_W * measured_s, rel=0.05)
    assert account["run/window_energy_j"] == pytest.approx(POWER_W * account["run/window_s"], rel=0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_measurement_and_not_the_process(follow, sleeper, number):
    pid = sleeper(60)
    threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
    plan, notes = follow(pid)
    assert notes[-1] == f"the measurement was stopped by {number.name}."
    (window,) = plan.record.windows()
    assert window["metrics"]["process/e2e_s"] < 30
    os.kill(pid, 0)


def test_process_that_ends_before_its_first_window_is_an_error(follow, sleeper, monkeypatch):
    pid = sleeper(60)
    process = subject.find_earlier_process(pid)
    gone = process._replace(identity=process.identity._replace(start_ticks="1"))  # its number was given to another one
    monkeypatch.setattr(subject, "find_earlier_process", lambda pid: gone)
    with pytest.raises(MachineError, match=f"process {pid} ended before it was measured"):
        follow(pid)


def test_what_cannot_be_read_of_another_users_process_is_a_note(follow, sleeper, monkeypatch):
    process = subject.find_earlier_process(sleeper(60))._replace(user="ann", unreadable=["its memory (why)"])
    monkeypatch.setattr(subject, "find_earlier_process", lambda pid: process)
    _, notes = follow(process.identity.pid, duration_s=0.1)
    assert subject.UNREADABLE.format(process.identity.pid, "ann", "its memory (why)") in notes
