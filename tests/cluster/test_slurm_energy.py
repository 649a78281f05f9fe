"""The energy of a run and that of Slurm's accounting, from the recorded output of `sacct` and `scontrol`."""

import pytest
from cases import case, cases
from default_jobs import job_keys
from metadata import RUN
from stub import executable

from epochmeter.cluster.slurm_energy import check_slurm_energy
from epochmeter.machine.slurm import accounts_whole_nodes, consumed_energy_j
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.record import Record

RECORDED = "17|36500\n17.batch|36240\n17.extern|36500\n17.0|35910\n"
"""`sacct --parsable2` of a job on one node: the rows of the job, of its script, of the node, and of a step."""
CONFIG = "AccountingStorageType   = accounting_storage/slurmdbd\nAcctGatherEnergyType    = acct_gather_energy/{}\n"
METERED = {"energy": {"source": "counter", "covers": "node", "domains": ["node"], "reason": None}}
STAGES = {"start": {"energy_j": 2000.0, "uncertainty_j": 20.0}, "finish": {"energy_j": 500.0, "uncertainty_j": 5.0}}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """programs(sacct, plugin): Slurm's programs on the PATH, with this output."""

    def make(sacct, plugin="pm_counters"):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, text in {"sacct": sacct, "scontrol": CONFIG.format(plugin)}.items():
            executable(folder / name, f"#!/bin/sh\nprintf '%s' '{text}'\n")
        monkeypatch.setenv("PATH", str(folder))

    return make


@pytest.fixture
def record(tmp_path):
    """record(energy_j) -> a completed run with this energy in its windows, and 2.5 kJ outside of them."""

    def make(energy_j, run=METERED, **whole):
        record = Record(tmp_path / "sweep/0")
        record.folder.mkdir(parents=True)
        record.describe(job_keys(), {**RUN, **run, "stage_energies": STAGES})
        metrics = {"steady/e2e_s": 2.0, "total/energy_j": energy_j, "total/energy_uncertainty_j": 300.0, **whole}
        valid = {"energy_valid": True}
        verdicts = {"steady": valid, "total": valid}
        summary = {"state": "completed", "metrics": metrics, "energy": verdicts, "notes": [], "failure": None}
        record.write_summary(summary, "id")
        return record

    return make


@cases(
    case(sacct=RECORDED, joules=36500.0),
    case(sacct="17|\n17.batch|361\n", joules=361.0),
    case(sacct="17|0\n17.batch|0\n", joules=None),
    case(sacct="17|18446744073709551614\n", joules=None),
    case(sacct="", joules=None),
)
def test_energy_of_a_job_is_the_largest_of_its_rows(programs, sacct, joules):
    programs(sacct)
    assert consumed_energy_j("17") == joules


@pytest.mark.parametrize(
    ("plugin", "is_whole"), [("pm_counters", True), ("ipmi", True), ("rapl", False), ("none", False)]
)
def test_only_plugins_of_whole_nodes_can_be_compared(programs, plugin, is_whole):
    programs(RECORDED, plugin)
    assert accounts_whole_nodes() == is_whole


def test_run_that_used_less_than_its_job_keeps_its_verdict_and_has_the_energy_of_the_job(programs, record):
    programs(RECORDED)
    check_slurm_energy(made := record(33000.0), "17")
    folder = RunFolder(made.folder)
    assert (folder.run.slurm_energy_j, folder.run.flags) == (36500.0, {})
    assert folder.energy_verdict == {"energy_valid": True}


def test_run_that_used_more_than_its_job_does_not_hold(programs, record):
    programs(RECORDED)
    check_slurm_energy(made := record(40000.0), "17")
    folder = RunFolder(made.folder)
    assert folder.energy_verdict["energy_valid"] is False
    assert [reason["code"] for reason in folder.energy_verdict["energy_reasons"]] == ["counters_disagree"]
    assert "4.25e+04 J" in folder.run.flags["energy_disagrees"]
    assert folder.state == "completed"
    assert len(folder.summary["notes"]) == 1


@cases(
    case(sacct=RECORDED, plugin="rapl", run=METERED),
    case(sacct="", plugin="pm_counters", run=METERED),
    case(sacct=RECORDED, plugin="pm_counters", run={"energy": {"source": "none", "reason": "no meter"}}),
)
def test_nothing_is_compared_without_an_energy_on_both_sides(programs, record, sacct, plugin, run):
    programs(sacct, plugin)
    check_slurm_energy(made := record(99e6, run), "17")
    folder = RunFolder(made.folder)
    assert (folder.run.slurm_energy_j, folder.energy_verdict) == (None, {"energy_valid": True})


def test_slurm_that_does_not_answer_changes_nothing(record, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    check_slurm_energy(made := record(99e6), "17")
    assert RunFolder(made.folder).energy_verdict == {"energy_valid": True}


@pytest.mark.parametrize(("half_j", "is_valid"), [(200.0, False), (2000.0, True)])
def test_energy_and_uncertainty_of_the_whole_process_are_compared_if_they_are_known(programs, record, half_j, is_valid):
    """Errors at the borders of windows and stages cancel: 39 kJ are outside of 36.5 kJ by 2.5 kJ, less 5 %."""
    programs(RECORDED)
    whole = {"run/energy_j": 39000.0, "run/energy_uncertainty_j": half_j}
    check_slurm_energy(made := record(1.0, **whole), "17")
    assert RunFolder(made.folder).energy_verdict["energy_valid"] is is_valid


def test_resumed_run_is_not_compared_with_its_last_job(programs, record):
    """Its windows before the resumption are no part of that job."""
    programs(RECORDED)
    check_slurm_energy(made := record(99e6, {**METERED, "resumed": [{"epoch": 1, "at": "2026-11-30T00:00:00"}]}), "17")
    folder = RunFolder(made.folder)
    assert folder.run.resumed
    assert (folder.run.slurm_energy_j, folder.energy_verdict) == (None, {"energy_valid": True})
