"""The load of known times and the programs with known times, as processes of this machine."""

import os
import signal
import sys
import time

import pytest
from project import ROOT

from epochmeter.shared.problem import MachineError
from epochmeter.validation import programs
from epochmeter.validation.programs import KnownPrograms, LoadProcess, Turns, known_times, pairs


@pytest.fixture(scope="module")
def load():
    process = LoadProcess(sys.executable, "cpu")
    yield process
    process.close()


@pytest.mark.timed
def test_pulses_follow_the_schedule_on_the_clock_of_this_process(load):
    begun_s = time.monotonic()
    load.switch([(0.05, 0.1), (0.1, 0.05), (0.05, 0.2)])
    pulses = load.pulses()
    ended_s = time.monotonic()
    assert len(pulses) == 3
    assert begun_s <= pulses[0][0]
    assert pulses[-1][1] <= ended_s
    starts_s = [begin_s - pulses[0][0] for begin_s, _ in pulses]
    assert all(actual >= planned - 0.001 for actual, planned in zip(starts_s, (0, 0.15, 0.3), strict=True))
    assert ended_s - begun_s >= 0.55


def test_work_is_the_same_number_of_operations_each_time(load):
    done = []
    for _ in range(2):
        load.work(0.2)
        done.append(load.done())
    assert done[0].flop == done[1].flop > 0
    assert all(work.ended_s > work.begun_s for work in done)


@pytest.mark.timed
def test_peaks_and_kernels_are_measured(load):
    (peak,) = load.peaks(1)
    assert peak > 1e8
    with load.kernels("copies", 0.1):
        begun = time.monotonic()
    assert time.monotonic() - begun >= 0.05


def test_load_that_cannot_run_says_why(tmp_path):
    with pytest.raises(MachineError, match="the known load cannot run"):
        LoadProcess(sys.executable, "no such device")
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ImportError: no torch' >&2; exit 3\n")
    python.chmod(0o755)
    with pytest.raises(MachineError, match="ImportError: no torch"):
        LoadProcess(str(python), "cpu")


def test_load_that_gives_no_answer_is_ended_at_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "LIMIT_S", 0.2)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 3600\n")
    python.chmod(0o755)
    with pytest.raises(MachineError, match=r"the known load cannot run: it gave no answer within 0\.2 s"):
        LoadProcess(str(python), "cpu")


def test_known_times_leave_out_the_first_epoch_and_other_output():
    output = 'a warning\n{"stall": 9.0}\n{"stall": 1.0}\n{"stall": 2.0}\n'
    assert known_times(output) == [{"stall": 1.0}, {"stall": 2.0}]


class Recorded:
    def __init__(self, *epochs):
        self.epochs = epochs

    def windows(self):
        return [{"window": "epoch", "metrics": {"epoch/steps": 10, **metrics}} for metrics in self.epochs]


def test_pairs_are_medians_per_step_and_a_missing_part_is_an_error():
    record = Recorded({"epoch/copy_s": 99.0}, {"epoch/copy_s": 1.0}, {"epoch/copy_s": 3.0}, {"epoch/copy_s": 2.0})
    found = pairs(record, [{"copy": 0.1}, {"copy": 0.3}, {"copy": 0.2}], {"copy": "copy_s"})
    assert found == {"copy": (0.2, pytest.approx(0.2))}
    with pytest.raises(MachineError, match="no `compute_s`"):
        pairs(record, [{"compute": 0.1}], {"compute": "compute_s"})


def test_epochs_in_turns_are_timed_by_their_process(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    with Turns([sys.executable, "-m", "epochmeter.worker.known_script", "turns", "cpu"], tmp_path) as turns:
        assert all(0 < turns.epoch_s() < 60 for _ in range(2))
    with pytest.raises(MachineError, match="ended with 2"), Turns([sys.executable, "-c", "exit(2)"], tmp_path):
        pass


@pytest.mark.system
def test_waits_of_a_measured_script_are_close_to_known_ones(load, tmp_path):
    programs = KnownPrograms(
        sys.executable, load, tmp_path, device="cpu", keys=[f"machine.lock_dir={tmp_path}"], counters=[]
    )
    found = programs.waits()
    assert found.keys() == {"stall", "fetch", "prep"}
    assert all(cases.keys() == {"0 workers", "1 worker"} for cases in found.values())
    for cases in found.values():
        for pair in cases.values():
            assert pair.measured == pytest.approx(pair.known, rel=0.3)


def test_load_that_is_killed_is_an_error_not_a_hang(load):
    """The last test of this file, which ends its process."""
    load.switch([(0.5, 10.0)])
    os.kill(load._process.pid, signal.SIGKILL)
    with pytest.raises(MachineError, match="cannot run: it ended with -9"):
        load.pulses()
    with pytest.raises(MachineError, match="cannot run: it ended with -9"):
        load.peaks(1)  # of a later check
