"""Reuse of completed runs by other sweeps."""

import os
import shutil
from array import array

import pytest

from epochmeter.report.runs.load import read_sweep, read_sweeps
from epochmeter.results.reuse import (
    find_completed,
    is_usable,
    read_reference,
    record_of,
    referenced_record,
    reuse_pool,
    write_reference,
)
from epochmeter.results.sweep_files import read_points
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.record import INTERVALS, Record
from epochmeter.sweep.sweep_folder import write_points

IDENTITY = "batch8"


def completed(folder, identity=IDENTITY, state="completed", rehearsal=(), at="2026-11-20"):
    """A run of two epochs as a command leaves it."""
    folder.mkdir(parents=True)
    record = Record(folder)
    run = {"record_id": f"{folder.parent.name}-{folder.name}", "number": int(folder.name), "identity": identity,
           "rehearsal": list(rehearsal), "overrides": ["batch=8"], "energy": {"reason": "none here"},
           "host": "here", "sweep_id": folder.parent.name}  # fmt: skip
    record.describe({"repeat": 0, "evaluate": False, "batch": 8}, run)
    for epoch in range(2):
        record.append_steps(array("f", [0.1] * 3 * len(INTERVALS)))
        record.append_losses(array("f", [0.5] * 3))
        record.append({"window": "epoch", "epoch": epoch, "metrics": {"epoch/steps": 3, "epoch/e2e_s": 1.5}})
    metrics = {"total/epochs": 2, "steady/e2e_s": 1.5}
    record.write_summary({"state": state, "metrics": metrics, "notes": [], "failure": None}, identity)
    if state == "completed":
        write_json(folder / "completed.json", {"identity": identity, "finished": at})
    return record


@pytest.fixture
def new(tmp_path):
    """The folder of a new sweep, next to others in `tmp_path`."""
    (folder := tmp_path / "new").mkdir()
    reuse_pool.cache_clear()
    return folder


def refer(folder, origin, *overrides):
    """Write a run that reuses another one."""
    folder.mkdir()
    write_reference(folder, origin, [*overrides])
    return origin


def reused_by(new, *identities):
    """The runs that the next runs of a sweep reuse: `A/0`, or None for a run that is measured."""
    reuse_pool.cache_clear()
    runs = [find_completed(new / f"1{place}", identity) for place, identity in enumerate(identities)]
    return [run and f"{run.folder.parent.name}/{run.folder.name}" for run in runs]


def test_each_run_of_the_same_identity_is_reused_once_the_earliest_first(tmp_path, new):
    for number, identity in enumerate([IDENTITY, "repeat 1", IDENTITY]):
        completed(tmp_path / "A" / str(number), identity, at=f"2026-11-20T00:00:0{9 - number}")
    completed(new / "0")
    assert reused_by(new, IDENTITY, IDENTITY, IDENTITY, "batch16", "repeat 1") == ["A/2", "A/0", None, None, "A/1"]
    refer(new / "1", Record(tmp_path / "A" / "2"))
    assert reused_by(new, IDENTITY, IDENTITY) == ["A/0", None], "run 1 refers to A/2"


def test_run_of_the_first_started_sweep_is_reused_although_the_clock_was_wrong(tmp_path, new):
    completed(tmp_path / "2026-11-20_12-00-00-a" / "0", at="2099-01-01")
    completed(tmp_path / "2026-11-20_12-00-00.10-c" / "0", at="1970-01-01")
    completed(tmp_path / "2026-11-20_12-00-00.9-b" / "0", at="1970-01-02")
    names = [f"2026-11-20_12-00-00{name}/0" for name in ("-a", ".9-b", ".10-c")]
    assert reused_by(new, *[IDENTITY] * 3) == names


def cut(name):
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


@pytest.mark.parametrize(
    "harm",
    [*map(cut, ("steps.bin", "losses.bin", "epochs.jsonl", "summary.json", "completed.json", "job.json")),
     lambda folder: (folder / "completed.json").unlink()],
)  # fmt: skip
def test_damaged_or_incomplete_run_or_rehearsal_is_not_reused(tmp_path, new, harm):
    assert not is_usable(completed(tmp_path / "A" / "1", rehearsal=["no such device"]), IDENTITY)
    assert not is_usable(completed(tmp_path / "A" / "2", state="failed"), IDENTITY)
    record = completed(tmp_path / "A" / "0")
    assert is_usable(record, IDENTITY)
    harm(record.folder)
    assert not is_usable(record, IDENTITY)
    assert reused_by(new, IDENTITY) == [None]


def test_reference_is_valid_while_its_run_is_there_also_in_a_copy(tmp_path, new):
    write_points(new, [["batch=8"], ["batch=16"]])
    origin = refer(new / "0", completed(tmp_path / "A" / "0"), "batch=8")
    both, alone = tmp_path / "copy", tmp_path / "elsewhere" / "new"
    shutil.copytree(tmp_path / "A", both / "A")
    shutil.copytree(new, both / "new")
    shutil.copytree(new, alone)
    assert referenced_record(both / "new" / "0").folder == both / "A" / "0"
    assert referenced_record(alone / "0").folder == origin.folder
    assert find_completed(new / "0", IDENTITY).folder == origin.folder
    assert find_completed(new / "0", "batch16") is None
    read_points.cache_clear()
    assert read_points(new).completed == {0}
    shutil.rmtree(origin.folder)
    read_points.cache_clear()
    assert (read_points(new).completed, find_completed(new / "0", IDENTITY)) == (set(), None)
    Record(new / "0").archive_attempt()
    assert read_reference(new / "0") is None
    assert (new / "0" / "attempt1" / "reused.json").exists()


def test_the_record_of_a_failed_attempt_is_archived_before_a_reference_is_written(tmp_path, new):
    completed(new / "0", state="failed")
    write_reference(new / "0", completed(tmp_path / "A" / "0"), ["batch=8"])
    assert record_of(new / "0").folder == tmp_path / "A" / "0"
    assert read_json(new / "0" / "attempt1" / "summary.json")["state"] == "failed"


def test_report_has_a_reused_run_under_its_number_and_overrides_and_counts_it_once(tmp_path, new):
    origin = refer(new / "1", completed(tmp_path / "A" / "3"), "experiment=stalls", "+note=x")
    completed(new / "2", identity="batch16")
    rows = read_sweep(new).runs
    assert [(row.number, row.keys, row.sweep, row.reused, row.steady("e2e_s")) for row in rows] == [
        (1, {"experiment": "stalls", "note": "x"}, "new", "A/3", 1.5),
        (2, {"batch": "8"}, "new", "", 1.5),
    ]
    assert (rows[0].experiment, rows[0].added) == ("stalls", ["+note"])
    assert [row.name for row in rows] == ["A/3", "new/2"]
    both = read_sweeps([tmp_path / "A", new], tmp_path)
    assert [row.name for row in both.runs] == ["A/3", "new/2"]
    shutil.copytree(tmp_path / "A", tmp_path / "renamed")
    both = read_sweeps([tmp_path / "A", tmp_path / "renamed", new], tmp_path)
    assert [row.name for row in both.runs] == ["A/3", "new/2"]
    shutil.rmtree(origin.folder)
    gone = read_sweep(new)
    assert [row.number for row in gone.runs] == [2]
    assert "A/3, which is gone" in gone.unreadable["1"]
