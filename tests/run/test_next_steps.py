"""What this machine offers to the next steps of a run."""

import shlex
from pathlib import Path

import pytest
from controls import Board
from default_jobs import job_of
from metadata import run_info

from epochmeter.config import installation
from epochmeter.results.bottleneck import Verdict
from epochmeter.run import next_steps
from epochmeter.run.next_steps import find_machine, is_usable, next_steps_of
from epochmeter.shared.record import Record

MEASURED = {"energy": {"source": "counter"}}


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path)


def test_a_meter_is_offered_only_if_it_can_measure_here_and_the_run_has_no_energy(board):
    job = job_of(machine={"root": str(board.root)})
    assert find_machine(job, run_info(), {}).meters == ()
    board.with_rapl()
    is_usable.cache_clear()
    assert find_machine(job, run_info(), {}).meters == ("rapl",)
    assert find_machine(job, run_info(**MEASURED), {}).meters == ()
    on_gpu = run_info(training={"accelerator": "cuda:0"})
    assert find_machine(job, on_gpu, {}).meters == (), "no driver lists the GPU"
    assert not is_usable("nvml", (), Path("/"))


def test_facts_of_the_machine_are_those_of_its_record(board, monkeypatch):
    monkeypatch.setattr(next_steps, "usable_cores", lambda: 6)
    job = job_of(machine={"root": str(board.root)})
    jetson = {"board": {"model": "NVIDIA Jetson"}, "power_modes": [{"id": 0}], "memory_bytes": 8}
    machine = find_machine(job, run_info(**MEASURED), jetson)
    assert (machine.cores, machine.gpus, machine.memory_bytes, machine.has_fan) == (6, 0, 8, False)
    board.with_kernel_fan()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert find_machine(job, run_info(**MEASURED), jetson).has_fan
    assert not find_machine(job, run_info(**MEASURED), {}).has_fan


def test_steps_name_the_run_as_a_value_of_a_key_and_the_commands_of_the_installation(tmp_path, monkeypatch):
    monkeypatch.setattr(next_steps, "ROOT", tmp_path)
    metrics = {"trace/steps": 5.0, "steady/e2e_s": 1.0, "steady/compute_s": 1.0}
    verdict, run = Verdict("compute", {}, {}), run_info(**MEASURED)

    def words(folder):
        record = Record(folder)
        record.folder.mkdir(parents=True, exist_ok=True)
        (step,) = next_steps_of(record, [], job_of(), run, metrics, [], verdict)
        return shlex.split(step.change)

    command = ["python", "src/report.py"]
    assert words(tmp_path / "multirun/sweep/0") == [*command, "run=sweep/0", "view=trace"]
    assert words(tmp_path / "a b/0") == [*command, f"run='{tmp_path}/a b/0'", "view=trace"]
    monkeypatch.setattr(installation, "IS_INSTALLED", True)
    assert words(tmp_path / "multirun/sweep/0")[:2] == ["epochmeter", "report"]
