"""Run folders as runs: what was measured, and which runs are excluded and why."""

import pytest
from sweeps import row, trained, write

from epochmeter.report.runs import load
from epochmeter.report.runs.load import read, run_folders, sweep_folders
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.process_identity import this_process


def test_record_is_loaded_as_written(tmp_path):
    covers = {"source": "counter", "covers": "GPUs used", "domains": ["gpu0"], "reason": None}
    typed = {"batch": "8", "+note": "mine"}
    record = write(tmp_path, row(3, "cached", 2.5, steady={"energy_j": 40.0}, typed=typed), energy=covers)
    record.describe(record.job(), {**record.run(), "flags": {"gpu_shared": "process 7", "diverged": "epoch window 3"}})
    (found,) = read(tmp_path).runs
    assert [*map(vars, read(record.folder).runs)] == [vars(found)], "a single run is a sweep of one"
    assert vars(found).items() >= {
        "number": 3, "state": "completed", "added": ["+note"], "cores": 8, "no_energy": None,
        "keys": {"data_source": "cached", "batch": "8", "note": "mine"}, "disturbed": {"gpu_shared": "process 7"},
        "energy_covers": "GPUs used", "energy_domains": ["gpu0"],
    }.items()  # fmt: skip
    assert (found.steady("e2e_s"), found.steady("data_stall_s")) == (2.5, None)


def test_run_without_result_has_a_reason(tmp_path):
    write(tmp_path, row(0, "storage", 1.0))
    write(tmp_path, row(1, "storage", 1.0), state="failed")
    write(tmp_path, row(2, "storage", 1.0), rehearsal=["device=nano asked for, this machine is device=cpu"])
    write(tmp_path, row(3, "storage", None))
    (write(tmp_path, row(4, "storage", 1.0)).folder / "summary.json").unlink()
    (write(tmp_path, row(5, "storage", 1.0)).folder / "completed.json").unlink()
    running = write(tmp_path, row(6, "storage", 1.0)).folder
    (running / "summary.json").unlink()
    description = read_json(running / "job.json")
    description["run"].update(this_process()._asdict())
    write_json(running / "job.json", description)
    failed = tmp_path / "1" / "summary.json"
    write_json(failed, {**read_json(failed), "failure": {"message": "no space left\nat line 1"}})
    runs = read(tmp_path).runs
    assert [(run.excluded_because, run.state) for run in runs] == [
        (None, "completed"),
        ("failures", "failed"),
        ("rehearsals", "completed"),
        ("too_short", "completed"),
        ("failures", "unfinished"),
        ("failures", "unfinished"),
        ("failures", "running"),
    ]
    assert runs[1].failure == "no space left"


def test_damaged_record_is_reported_and_others_are_loaded(tmp_path):
    write(tmp_path, row(0, "storage", 1.0))
    for number, text in enumerate(['{"job": {"mod', "{}", "[]", ""], start=1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "job.json").write_text(text)
    (write(tmp_path, row(5, "storage", 1.0)).folder / "summary.json").write_text("{")
    (write(tmp_path, row(6, "storage", 1.0)).folder / "host.json").write_text("{")
    sweep = read(tmp_path)
    assert [found.number for found in sweep.runs] == [0, 6]
    assert sweep.runs[1].cores is None, "what is lost is not known; the rest is"
    assert set(sweep.unreadable) == {"1", "2", "3", "4", "5"}
    assert all(sweep.unreadable.values())


def test_record_of_another_schema_is_reported(tmp_path):
    for number, schema in enumerate([{"schema": 2}, {}]):
        path = write(tmp_path, row(number, "storage", 1.0)).folder / "job.json"
        described = read_json(path)
        assert described.pop("schema") == 1
        write_json(path, {**described, **schema})
    sweep = read(tmp_path)
    assert "schema 2, and schema 1 is read here" in sweep.unreadable["0"]
    assert [run.number for run in sweep.runs] == [1], "a record from before there were schemas is of the first"


def test_metric_that_is_not_finite_is_absent_and_reported(tmp_path):
    write(tmp_path, row(0, "storage", 1.0, steady={"train_loss": float("nan"), "energy_j": float("inf")}))
    (found,) = read(tmp_path).runs
    assert (found.steady("train_loss"), found.energy_covers) == (None, None)
    assert sorted(found.read_errors) == ["steady/energy_j: not finite", "steady/train_loss: not finite"]


def test_damaged_line_loses_its_epoch_only(tmp_path):
    record = write(tmp_path, trained(0, 100.0, epochs=[{"epoch/e2e_s": float(time)} for time in (9, 2, 3)]))
    path = record.folder / "epochs.jsonl"
    first, _, last = path.read_text().splitlines()
    path.write_text(f'{first}\n{{\n[]\n{last}\n{{"window": "epoch", "metr')
    (found,) = read(tmp_path).runs
    assert found.epochs == {0: {"epoch/e2e_s": 9.0}, 2: {"epoch/e2e_s": 3.0}}
    assert found.read_errors == ["epochs.jsonl: 2 unreadable lines"]


def test_run_has_its_origin_and_platform(tmp_path):
    record = write(tmp_path / "a sweep", row(3, "storage", 1.0, typed={"experiment": "stalls"}))
    record.describe(record.job(), {**record.run(), "host": "orin", "training": {"torch": "2.5.0"}})
    write_json(record.folder / "host.json", {
        "cpu": {"model": "Cortex-A78AE", "cores": 8}, "memory_bytes": 2**33,
        "gpus": [{"model": "H200"}, {"model": "H200"}], "git": {"commit": "0123456789abcdef", "dirty": True},
        "governors": ["schedutil"], "power_mode": {"id": 2, "name": "15W"},
    })  # fmt: skip
    (found,) = read(tmp_path / "a sweep").runs
    assert (found.sweep, found.name, found.host) == ("a sweep", "a sweep/3", "orin")
    assert (found.folder, found.experiment, found.energy_source) == (record.folder, "stalls", "none")
    assert found.platform == {
        "host": "orin", "CPU": "Cortex-A78AE, 8 cores", "GPU": "2 x H200", "memory": "8.0 GiB", "torch": "2.5.0",
        "git commit": "0123456789ab, changed since", "governor": "schedutil", "power mode": "15W",
    }  # fmt: skip


def test_run_has_its_power_mode_and_the_clocks_of_all(tmp_path):
    record = write(tmp_path, row(0, "storage", 1.0))
    clocks = {"cores": 4, "cpu_hz": 1.5e9, "gpu_hz": 6e8, "emc_hz": 2e9}
    modes = [{"id": 0, "name": "15W", **clocks}, {"id": 2, "name": "25W", **clocks, "cores": 6},
             {"id": 3, "name": "25W", **clocks, "gpu_hz": 9e8}]  # fmt: skip
    host = {"power_mode": {"id": 2, "name": "25W"}, "power_modes": modes, "board": {"model": "Orin"}}
    write_json(record.folder / "host.json", host)
    (run,) = read(tmp_path).runs
    assert (run.board, run.mode) == ("Orin", "id:2"), "two modes have the name 25W"
    assert run.mode_clocks == {
        "15W": [4, 1.5e9, 6e8, 2e9], "id:2": [6, 1.5e9, 6e8, 2e9], "id:3": [4, 1.5e9, 9e8, 2e9]
    }  # fmt: skip
    for change in ({"power_modes": [*modes, {"id": 4, "name": "7W"}]}, {"power_mode": {"id": 9}}, {"power_modes": []}):
        write_json(record.folder / "host.json", {**host, **change})
        (run,) = read(tmp_path).runs
        assert (run.board, run.mode, run.mode_clocks) == ("", "", {}), "some clocks are unknown"


def test_two_processes_load_the_same_as_one(tmp_path, monkeypatch):
    for number in range(12):
        write(tmp_path, row(number, "storage", 1.0 + number, steady={"energy_j": 2.0}))
    (tmp_path / "11" / "summary.json").write_text("{")
    alone = read(tmp_path)
    monkeypatch.setattr(load, "MAX_ONE_PROCESS", 3)
    again = read(tmp_path)
    assert ([*map(vars, again.runs)], again.unreadable) == ([*map(vars, alone.runs)], alone.unreadable)
    assert list(alone.unreadable) == ["11"]
    assert [found.number for found in alone.runs] == list(range(11))


def test_archived_attempts_and_other_folders_are_no_runs(tmp_path):
    record = write(tmp_path, row(0, "storage", 1.0))
    write(record.folder / "attempt1", row(0, "storage", 9.0))
    (tmp_path / "notes").mkdir()
    assert run_folders(tmp_path) == [record.folder]
    assert run_folders(tmp_path / "none") == sweep_folders(tmp_path / "none") == []


def test_sweeps_with_runs_are_ordered_by_time_and_renamed_ones_come_first(tmp_path):
    names = ["baseline", "2026-11-20_12-00-00-aa", "2026-11-20_12-00-00.2-aa", "2026-11-20_12-00-00.10-aa"]
    for name in names:
        write(tmp_path / name, row(0, "storage", 1.0))
    (tmp_path / "2026-11-22_12-00-00-cc").mkdir()
    assert [folder.name for folder in sweep_folders(tmp_path)] == names


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
def test_number_of_devices_is_reported_by_the_training_process(tmp_path, strategy, ranks, training, devices):
    record = write(tmp_path, trained(0, 100.0, strategy=strategy, ranks=2))
    job = {**record.job(), "strategy": {"name": strategy, "ranks": ranks}}
    record.describe(job, {**record.run(), "training": training})
    assert read(tmp_path).runs[0].devices == devices
