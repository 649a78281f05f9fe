"""Metadata of runs: written, read, and extended by other versions."""

import json
from dataclasses import fields

import pytest
from metadata import RUN, run_info

from epochmeter.results import documents
from epochmeter.results.run_info import Clock, Description, Energy, RunInfo, Start, read_run
from epochmeter.shared.process_identity import Process
from epochmeter.shared.record import Record

CLOCK = {"wall_s": 1000.5, "monotonic_ns": 5 * 10**9, "boottime_ns": 7 * 10**9}
SCOPE = {"covers": "CPU, GPU", "domains": ["cpu", "gpu0"]}
STEPS = {"opened_ns": 1, "closed_ns": 9, "wall_offset_ns": 3, "loads": [[1, 2, 3, 4, -1]]}
FULL = {
    "record_id": "r", "sweep_id": "sweep", "number": 3, "of_sweep": True, "name": "lenet", "identity": "1d",
    "choices": {"device": "nano"}, "overrides": ["batch=8"], "command": "python src/train.py", "started": "2026-11-28",
    "host": "nano-1", "pid": 7, "boot_id": "b", "start_ticks": "42", "pid_namespace": "pid:[1]",
    "rehearsal": ["no limit"],
    "energy": {"source": "counter", "covers": "CPU", "domains": ["cpu"], "reason": "no GPU", "machine": SCOPE},
    "power_limit_applied": "100 W", "power_limit_w": 100, "power_limit_max_w": 120.5, "power_limit_devices": 2,
    "flags": {"throttled": "hot"}, "dataset": {"name": "digits", "digest": "d", "splits": {"train": 9, "val": None}},
    "clock": CLOCK, "resumed": [{"epoch": 2, "started": "2026-11-29", "clock": {**CLOCK, "wall_s": 9}}],
    "attempts": [{"moments": {"command_ns": 1, "recorded_ns": 9}, "epochs": 2, "gap_s": 60.5}],
    "rest": {"waited_s": 1.5, "temperature_c": 40.0}, "idle_wait": {"waited_s": 3.0, "other_cpu_fraction": 0.05},
    "settling": {"waited_s": 12.0, "is_settled": True}, "usable_cores": 2, "applied": {"power_limit": "100 W"},
    "storage": {"medium": "ssd", "disks": ["sda"]}, "idle": {"before": {"power_w": 2.0, "uncertainty_w": 0.1}},
    "model": {"parameters": 61706, "flops_per_sample": None},
    "training": {"torch": "2.5", "gpus": ["uuid", None], "threads": 2, "peaks": {"flop_per_s": 1e12}, "operators": {}},
    "forecast": {"reason": "it has a target"},
    "budget": {"key": "time_s", "limit": 9, "used": 7.5, "expected": 10.0, "epochs": 3},
    "bleu": 23.5, "no_bleu": "no memory", "power_limit_search": [{"chosen": "100 W", "probes": [{"steps": 1}]}],
    "traced": {**STEPS, "energy_uncertainty_j": 0.5, "response": {"averaging_s": None, "is_filter": False}},
    "moments": {"command_ns": 1, "peaks_ns": [3, 4], "saves_ns": [[5, 6]], "ended_ns": 7},
    "stage_energies": {"start": {"energy_j": 2.0, "uncertainty_j": 0.1}},
    "stage_energy_reasons": {"finish": [{"code": "not_read", "text": "it could not be read"}]}, "slurm_energy_j": 9.0,
    "gpu_counters": {"reason": "not allowed"}, "run_queue": {"reason": "not counted"},
    "validation": {"validated": "2026-11-29", "version": "1", "driver": None, "passed": 9, "failed": 1, "untested": 3,
                   "validated_response": {"gpu0": {"averaging_s": 0.1, "lag_s": 0.02, "renewal_s": 0.1}}},
}  # fmt: skip


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


def test_every_field_is_read_as_it_was_written(record):
    assert {entry.name for entry in fields(RunInfo)} == {*FULL, "other"}
    record.describe({}, FULL)
    run = read_run(record)
    assert (run.energy.machine, run.resumed[0].epoch, run.power_limit_w) == (SCOPE, 2, 100)
    assert json.loads(json.dumps(run.document())) == FULL
    assert [*run.document()] == [*FULL], "in the order of the fields"
    record.describe({}, run.document())
    assert read_run(record) == run


def test_new_run_has_the_fields_that_readers_of_other_versions_expect(record):
    run = RunInfo(**RUN, energy=Energy(source="none", reason="no meter was opened"))
    nothing = ("start_ticks", "pid_namespace", "dataset")
    limits = ("power_limit_applied", "power_limit_w", "power_limit_max_w", "power_limit_devices")
    assert run.document() == {
        **RUN, "of_sweep": False, "flags": {}, **dict.fromkeys((*nothing, *limits)),
        "energy": {"source": "none", "covers": None, "domains": [], "reason": "no meter was opened"},
    }  # fmt: skip


def test_fields_that_an_older_record_lacks_are_absent():
    for run in (run_info(), run_info(**dict.fromkeys(FULL.keys() - RUN.keys()))):  # also if they are null
        values = {entry.name: getattr(run, entry.name) for entry in fields(RunInfo) if entry.name not in RUN}
        empty = Energy(), "", False, None, [], {}
        assert [name for name, value in values.items() if value not in empty] == []
    assert (run.medium, run.training_samples, run.energy.missing) == (None, None, None)
    assert not run.energy.is_measured
    assert run.process == Process("", 0, None, None, None)
    with pytest.raises(ValueError, match=r"^`run.clock` is missing$"):
        run.clock_of(0)
    older = run_info(clock={"wall_s": 1, "monotonic_ns": 0})
    assert older.clock == Clock(wall_s=1, monotonic_ns=0)
    assert older.clock.change_s(Clock(wall_s=2, monotonic_ns=0, boottime_ns=5)) is None


def test_fields_of_a_newer_version_or_of_a_user_are_kept(record):
    own = {"note": "mine", "other": {"a": [1]}, "carbon": None, "ALWAYS": 1}
    newer = {**FULL, **own, "energy": {**FULL["energy"], "phase": "L1"}, "clock": {**CLOCK, "tai_s": 37}}
    record.describe({}, newer)
    run = read_run(record)
    assert (run.other, run.energy.other, run.clock.other) == (own, {"phase": "L1"}, {"tai_s": 37})
    assert run.document() == newer


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("number", "3", "number"),
        ("number", True, "number"),
        ("pid", 2**63, "pid"),
        ("record_id", None, "record_id"),
        ("overrides", ["a=1", 2], "overrides.1"),
        ("rehearsal", "no limit", "rehearsal"),
        ("energy", {"source": 1}, "energy.source"),
        ("energy", [], "energy"),
        ("clock", {"wall_s": "1", "monotonic_ns": 0}, "clock.wall_s"),
        ("clock", {"wall_s": 1}, "clock.monotonic_ns"),
        ("resumed", [{"epoch": 1.5}], "resumed.0.epoch"),
        ("dataset", {"splits": {"train": "9"}}, "dataset.splits.train"),
        ("training", {"peaks": {"flop_per_s": "fast"}}, "training.peaks.flop_per_s"),
        ("flags", {"throttled": None}, "flags.throttled"),
    ],
)
def test_field_of_another_type_is_named(record, name, value, field):
    record.describe({}, {**FULL, name: value})
    with pytest.raises(ValueError, match=rf"^`run\.{field}`: "):
        read_run(record)
    with pytest.raises(ValueError, match=rf"^`run\.{field}`: "):
        documents.read(record.folder / "job.json", Description)


@pytest.mark.parametrize("name", RUN)
def test_record_without_a_field_of_every_version_is_damaged(record, name):
    record.describe({}, {key: value for key, value in FULL.items() if key != name})
    with pytest.raises(ValueError, match=rf"^`run\.{name}`: "):
        read_run(record)


def test_texts_are_printable_for_readers_and_as_recorded_for_the_controller(record):
    record.describe({}, {**FULL, "name": "a\x1b[2J", "host": "é"})
    assert (read_run(record).name, read_run(record).host) == ("a\x1b[2J", "é")
    assert documents.read(record.folder / "job.json", Description)["run"].name == "a\ufffd[2J"


def test_each_epoch_has_the_clock_of_the_start_that_measured_it():
    clocks = [{"wall_s": 100.0 * number, "monotonic_ns": number * 10**9} for number in range(3)]
    later = [{"epoch": 2, "clock": clocks[1]}, {"epoch": 4, "clock": clocks[2]}]
    run = run_info(clock=clocks[0], started="first", resumed=later)
    assert [run.clock_of(epoch).wall_s for epoch in range(6)] == [0, 0, 100, 100, 200, 200]
    assert run.start_of(0) == Start(epoch=0, started="first", clock=run.clock)
    assert run.clock_of(5).unix_s(3 * 10**9) == 201
    suspended = Clock(wall_s=1000, monotonic_ns=0, boottime_ns=0)
    assert suspended.change_s(Clock(wall_s=4700, monotonic_ns=5, boottime_ns=100 * 10**9)) == 3600
