"""A sweep's records as rows: what was measured, and what is left out and why."""

import pytest
from sweeps import row, trained, write

from trainmeter.report.records import newest, read, run_folders


def test_a_record_is_read_as_it_was_written(tmp_path):
    covers = {"source": "counter", "covers": "GPUs used", "reason": None}
    write(tmp_path, row(3, "warm", 2.5, steady={"energy_j": 40.0}, typed={"batch": "8"}), energy=covers)
    (found,) = read(tmp_path).rows
    assert (found.number, found.state, found.left_out) == (3, "whole", None)
    assert found.keys == {"supply": "warm", "batch": "8"}
    assert found.steady("e2e_s") == 2.5
    assert found.steady("fetch_stall_s") is None
    assert (found.energy_covers, found.no_energy, found.cores) == ("GPUs used", None, 8)


def test_rows_come_by_number_and_not_by_letter(tmp_path):
    for number in (10, 9, 2):
        write(tmp_path, row(number, "cold", 1.0))
    assert [found.number for found in read(tmp_path).rows] == [2, 9, 10]


def test_what_is_no_result_is_left_out_and_counted_by_its_reason(tmp_path):
    write(tmp_path, row(0, "cold", 1.0))
    write(tmp_path, row(1, "cold", 1.0), state="failed")
    write(tmp_path, row(2, "cold", 1.0), rehearsal=["device=nano asked for, this machine is device=cpu"])
    write(tmp_path, row(3, "cold", None))
    (write(tmp_path, row(4, "cold", 1.0)).folder / "summary.json").unlink()
    (write(tmp_path, row(5, "cold", 1.0)).folder / "whole.json").unlink()
    sweep = read(tmp_path)
    assert [found.number for found in sweep.results] == [0]
    assert sweep.left_out() == {
        "not whole (failed)": 1,
        "a rehearsal (device=nano asked for, this machine is device=cpu)": 1,
        "no epoch after its warm-up: give more epochs": 1,
        "not whole (unfinished)": 1,
        "not whole (whole)": 1,
    }


def test_a_broken_record_is_named_and_the_others_are_read(tmp_path):
    write(tmp_path, row(0, "cold", 1.0))
    for number, text in enumerate(['{"job": {"mod', "{}", "[]", ""], start=1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "job.json").write_text(text)
    (write(tmp_path, row(5, "cold", 1.0)).folder / "summary.json").write_text("{")
    (write(tmp_path, row(6, "cold", 1.0)).folder / "host.json").write_text("{")
    sweep = read(tmp_path)
    assert [found.number for found in sweep.results] == [0, 6]
    assert sweep.results[1].cores is None, "what is lost is not known; the rest is"
    assert set(sweep.unreadable) == {"1", "2", "3", "4", "5"}
    assert sum(sweep.left_out().values()) == 5
    assert all("cannot be read" in why for why in sweep.unreadable.values())


def test_a_run_by_itself_is_a_sweep_of_one(tmp_path):
    record = write(tmp_path, row(7, "cold", 1.0))
    assert [found.number for found in read(record.folder).rows] == [7]


def test_earlier_attempts_and_other_folders_are_no_runs(tmp_path):
    record = write(tmp_path, row(0, "cold", 1.0))
    write(record.folder / "attempt1", row(0, "cold", 9.0))
    (tmp_path / "notes").mkdir()
    assert run_folders(tmp_path) == [record.folder]
    assert run_folders(tmp_path / "none") == []


def test_the_newest_sweep_is_the_last_that_has_runs(tmp_path):
    assert newest(tmp_path) is None
    assert newest(tmp_path / "none") is None
    write(tmp_path / "2026-11-20_12-00-00-aa", row(0, "cold", 1.0))
    write(tmp_path / "2026-11-21_12-00-00-bb", row(0, "cold", 1.0))
    (tmp_path / "2026-11-22_12-00-00-cc").mkdir()
    assert newest(tmp_path).name == "2026-11-21_12-00-00-bb"


def test_what_varied_is_told_by_what_was_typed(tmp_path):
    for number, (supply, batch) in enumerate([("warm", "8"), ("cold", "8"), ("cold", "8")]):
        write(tmp_path, row(number, supply, 1.0, typed={"batch": batch, "model": "lenet"}))
    assert read(tmp_path).varied() == ["supply"]


@pytest.mark.parametrize(
    ("strategy", "ranks", "training", "devices"),
    [
        ("ddp", 2, {"ranks": 4, "gpus": []}, 4),  # two on each of two nodes
        ("dp", None, {"gpus": ["gpu0", "gpu1"]}, 2),
        ("dp", None, {"gpus": []}, 1),  # a rehearsal without any
        ("single", 1, {}, 1),
        ("ddp", 2, None, 2),
        ("dp", None, None, None),
    ],
)
def test_how_many_devices_trained_is_what_the_worker_told(tmp_path, strategy, ranks, training, devices):
    record = write(tmp_path, trained(0, 100.0, strategy=strategy, ranks=2))
    job = {**record.job(), "strategy": {"name": strategy, "ranks": ranks}}
    record.describe(job, {**record.run(), "training": training})
    assert read(tmp_path).rows[0].devices == devices


def test_epochs_come_with_their_warm_up(tmp_path):
    write(tmp_path, trained(0, 100.0, epochs=[{"epoch/e2e_s": 2.0}, {"epoch/e2e_s": 1.0}]))
    assert [epoch["epoch/e2e_s"] for epoch in read(tmp_path).rows[0].epochs] == [2.0, 1.0]


def test_a_run_that_had_its_warm_up_alone_ended_but_has_no_steady_result(tmp_path):
    write(tmp_path, trained(0, 100.0, steady={"e2e_s": None}))
    write(tmp_path, trained(1, 100.0), rehearsal=["rehearse=true"])
    write(tmp_path, trained(2, 100.0), state="failed")
    sweep = read(tmp_path)
    assert [[each.number for each in some] for some in (sweep.results, sweep.ended, sweep.rehearsed)] == [[], [0], [1]]
