"""Run folders as runs: what was measured, which runs are excluded and why, and sweeps by name."""

import json
import os
import subprocess
import sys
from shutil import which

import pytest
from sweeps import row, trained, write

from epochmeter.report.analyses import failures
from epochmeter.report.runs.filter import select
from epochmeter.report.runs.folders import run_folders, sweep_folders
from epochmeter.report.runs.load import load_sweep, read_sweep
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_info import device_count
from epochmeter.results.run_status import NO_COMPLETION
from epochmeter.results.sweep_order import sort_key, write_start
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.problem import Problem
from epochmeter.shared.process_identity import this_process


def test_record_is_loaded_as_written_with_its_origin_and_platform(tmp_path):
    covers = {"source": "counter", "covers": "GPUs used", "domains": ["gpu0"], "reason": None}
    typed = {"batch": "8", "+note": "mine", "experiment": "stalls"}
    record = write(tmp_path / "a sweep", row(3, "cached", 2.5, steady={"energy_j": 40.0}, typed=typed), energy=covers)
    flags = {"gpu_shared": "process 7", "diverged": "epoch window 3"}
    run = {**record.run(), "host": "orin", "training": {"torch": "2.5.0"}, "flags": flags}
    record.describe(record.job(), run)
    write_json(record.folder / "host.json", {
        "cpu": {"model": "Cortex-A78AE", "cores": 8}, "memory_bytes": 2**33,
        "gpus": [{"model": "H200"}, {"model": "H200"}], "git": {"commit": "0123456789abcdef", "dirty": True},
        "governors": ["schedutil"], "power_mode": {"id": 2, "name": "15W"},
    })  # fmt: skip
    (found,) = read_sweep(tmp_path / "a sweep").runs
    assert [*map(vars, read_sweep(record.folder).runs)] == [vars(found)], "a single run is a sweep of one"
    assert vars(found).items() >= {
        "number": 3, "sweep": "a sweep", "folder": record.folder, "state": "completed", "host": "orin", "cores": 8,
        "keys": {"data_source": "cached", "batch": "8", "note": "mine", "experiment": "stalls"}, "added": ["+note"],
        "experiment": "stalls", "disturbed": {"gpu_shared": "process 7"}, "no_energy": None,
        "energy_source": "counter", "energy_covers": "GPUs used", "energy_domains": ["gpu0"],
        "platform": {
            "host": "orin", "CPU": "Cortex-A78AE, 8 cores", "GPU": "2 x H200", "memory": "8.0 GiB", "torch": "2.5.0",
            "git commit": "0123456789ab, changed since", "governor": "schedutil", "power mode": "15W",
        },
    }.items()  # fmt: skip
    assert (found.name, found.steady("e2e_s"), found.steady("data_stall_s")) == ("a sweep/3", 2.5, None)


def test_run_without_result_has_a_reason(tmp_path):
    write(tmp_path, row(0, "storage", 1.0))
    write(tmp_path, row(1, "storage", 1.0), state="failed")
    write(tmp_path, row(2, "storage", 1.0), rehearsal=["device=nano requested, this machine is device=cpu"])
    write(tmp_path, row(3, "storage", None))
    for number, lost in ((4, "summary.json"), (5, "completed.json")):
        ended = write(tmp_path, row(number, "storage", 1.0))
        (ended.folder / lost).unlink()
        ended.describe(ended.job(), {**ended.run(), **this_process()._asdict(), "start_ticks": "0"})
    (tmp_path / "4/completed.json").unlink()
    running = write(tmp_path, row(6, "storage", 1.0))
    for name in ("summary.json", "completed.json"):
        (running.folder / name).unlink()
    running.describe(running.job(), {**running.run(), **this_process()._asdict()})
    failed = tmp_path / "1" / "summary.json"
    write_json(failed, {**read_json(failed), "failure": {"message": "no space left\nat line 1"}})
    runs = read_sweep(tmp_path).runs
    assert [(run.excluded_because, run.state) for run in runs] == [
        (None, "completed"),
        ("failures", "failed"),
        ("rehearsals", "completed"),
        ("too_short", "completed"),
        ("failures", "killed"),
        ("failures", "failed"),
        ("failures", "running"),
    ]
    assert runs[1].failure == Problem("no space left\nat line 1")
    assert runs[5].failure == Problem(NO_COMPLETION)
    statuses = [RunFolder(tmp_path / str(run.number)).state for run in runs]
    assert [run.state for run in runs] == statuses, "the same as everywhere else"
    assert {run.number for run in select(read_sweep(tmp_path), {"state": "killed"}).excluded} == {4}
    elsewhere = {**running.run(), "host": "board-7"}
    running.describe(running.job(), elsewhere)
    sweep = read_sweep(tmp_path)
    assert sweep.runs[6].state == RunFolder(running.folder).state == "running"
    assert {failure.run for failure in failures.analyze(select(sweep))} == {"1", "4", "5", "6"}


def test_damaged_record_is_reported_and_others_are_loaded(tmp_path):
    write(tmp_path, row(0, "storage", 1.0))
    for number, text in enumerate(['{"job": {"mod', "{}", "[]", ""], start=1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "job.json").write_text(text)
    (write(tmp_path, row(5, "storage", 1.0)).folder / "summary.json").write_text("{")
    (write(tmp_path, row(9, "storage", 1.0)).folder / "summary.json").write_text("")
    (write(tmp_path, row(6, "storage", 1.0)).folder / "host.json").write_text("{")
    for number, schema in enumerate([{"schema": 2}, {}], start=7):
        path = write(tmp_path, row(number, "storage", 1.0)).folder / "job.json"
        described = read_json(path)
        assert described.pop("schema") == 1
        write_json(path, {**described, **schema})
    sweep = read_sweep(tmp_path)
    cores = {run.number: run.cores for run in sweep.runs}
    assert cores == {0: 8, 6: None, 8: 8}, "a lost host costs nothing else; the first records had no schema"
    assert set(sweep.unreadable) == {"1", "2", "3", "4", "5", "7", "9"}
    assert all(sweep.unreadable.values())
    assert "schema 2, and schema 1 is read here" in sweep.unreadable["7"]


def test_metric_that_is_not_finite_and_damaged_epoch_are_absent_and_reported(tmp_path):
    epochs = [{"epoch/e2e_s": float(time)} for time in (9, 2, 3)]
    steady = {"train_loss": float("nan"), "energy_j": float("inf"), "steps": 1e101}
    path = write(tmp_path, trained(0, 100.0, steady=steady, epochs=epochs)).folder / "epochs.jsonl"
    first, _, last = path.read_text().splitlines()
    path.write_text(f'{first}\n{{\n[]\n{last}\n{{"window": "epoch", "metr')
    (found,) = read_sweep(tmp_path).runs
    assert (found.steady("train_loss"), found.energy_covers) == (None, None)
    assert found.epochs == {0: {"epoch/e2e_s": 9.0}, 2: {"epoch/e2e_s": 3.0}}
    *metrics, lines = found.read_errors
    assert sorted(metrics) == [
        "steady/energy_j: not finite", "steady/steps: too large", "steady/train_loss: not finite",
    ]  # fmt: skip
    assert lines == "epochs.jsonl: 2 unreadable lines"


@pytest.mark.parametrize(
    ("last", "expected"),
    [({"loss": 0.25, "accuracy": 0.75}, {"val/loss": 0.25, "val/accuracy": 0.75}),
     ({"loss": float("nan"), "e2e_s": 1.0}, {}), (None, {})],
)  # fmt: skip
def test_quality_of_a_run_is_that_of_its_last_evaluation(tmp_path, last, expected):
    path = write(tmp_path, trained(0, 100.0)).folder / "epochs.jsonl"
    qualities = [] if last is None else [{"loss": 1.5, "accuracy": 0.5}, last]
    windows = [{"window": "val", "epoch": epoch, "metrics": {f"val/{name}": value for name, value in values.items()}}
               for epoch, values in enumerate(qualities)]  # fmt: skip
    path.write_text("".join(json.dumps(window) + "\n" for window in windows))
    (found,) = read_sweep(tmp_path).runs
    assert {name: value for name, value in found.metrics.items() if name.startswith("val/")} == expected


def test_quality_is_absent_if_a_damaged_line_may_be_that_of_the_last_evaluation(tmp_path):
    path = write(tmp_path, trained(0, 100.0)).folder / "epochs.jsonl"
    evaluation = {"window": "val", "epoch": 0, "metrics": {"val/accuracy": 0.5}}
    for lines, expected in ((["{", json.dumps(evaluation)], 0.5), ([json.dumps(evaluation), "{"], None)):
        path.write_text("".join(f"{line}\n" for line in lines))
        (found,) = read_sweep(tmp_path).runs
        assert (found.metrics.get("val/accuracy"), found.read_errors) == (expected, ["epochs.jsonl: 1 unreadable line"])


def test_run_has_its_power_mode_and_the_clocks_of_all(tmp_path):
    record = write(tmp_path, row(0, "storage", 1.0))
    clocks = {"cores": 4, "cpu_hz": 1.5e9, "gpu_hz": 6e8, "emc_hz": 2e9}
    modes = [{"id": 0, "name": "15W", **clocks}, {"id": 2, "name": "25W", **clocks, "cores": 6},
             {"id": 3, "name": "25W", **clocks, "gpu_hz": 9e8}]  # fmt: skip
    host = {"power_mode": {"id": 2, "name": "25W"}, "power_modes": modes, "board": {"model": "Orin"}}
    by_name = {"15W": [4, 1.5e9, 6e8, 2e9], "id:2": [6, 1.5e9, 6e8, 2e9], "id:3": [4, 1.5e9, 9e8, 2e9]}
    unknown = [{"power_modes": [*modes, {"id": 4, "name": "7W"}]}, {"power_mode": {"id": 9}}, {"power_modes": []}]
    for change, expected in (({}, ("Orin", "id:2", by_name)), *((change, ("", "", {})) for change in unknown)):
        write_json(record.folder / "host.json", {**host, **change})
        (run,) = read_sweep(tmp_path).runs
        assert (run.board, run.mode, run.mode_clocks) == expected, "two modes have the name 25W"


def test_sweeps_with_runs_are_ordered_by_time_and_archived_attempts_are_no_runs(tmp_path):
    names = ["baseline", "2026-11-20_12-00-00-aa", "2026-11-20_12-00-00.2-aa", "2026-11-20_12-00-00.10-aa"]
    for name in names:
        record = write(tmp_path / name, row(0, "storage", 1.0))
    write(record.folder / "attempt1", row(0, "storage", 9.0))
    for name in ("2026-11-22_12-00-00-cc", f"{names[-1]}/notes"):
        (tmp_path / name).mkdir()
    assert [folder.name for folder in sweep_folders(tmp_path)] == names
    assert run_folders(tmp_path / names[-1]) == [record.folder]
    assert run_folders(tmp_path / "none") == sweep_folders(tmp_path / "none") == []


def test_number_of_devices_is_reported_by_the_training_process():
    for name, training, devices in (
        ("ddp", {"ranks": 4, "gpus": []}, 4),  # two on each of two nodes
        ("dp", {"gpus": ["gpu0", "gpu1"]}, 2),
        ("dp", {"gpus": []}, 1),  # a rehearsal without any
        ("single", {}, 1),
        ("ddp", {}, 2),
        ("dp", {}, None),
    ):
        job = {"strategy": {"name": name, "ranks": {"ddp": 2, "dp": None, "single": 1}[name]}}
        assert device_count(job, training) == devices


FIRST, SECOND, THIRD = (f"2026-11-{day}_12-00-00-{name}" for day, name in ((20, "aa"), (21, "bb"), (22, "cc")))


@pytest.fixture
def multirun(tmp_path):
    """Three sweeps."""
    folder = tmp_path / "a [copy]" / "multirun"
    for name, numbers in ((FIRST, (0, 1)), (SECOND, (0,)), (THIRD, (0, 3))):
        for number in numbers:
            write(folder / name, row(number, "storage", 1.0 + number, typed={"batch": "64"}))
    (folder / "reports").mkdir()
    return folder


@pytest.mark.parametrize(
    ("sweeps", "expected", "title"),
    [
        ((), ["0:cc/0", "3:cc/3"], THIRD),
        ((FIRST, SECOND), ["0:aa/0", "1:aa/1", "2:bb/0"], f"{FIRST}, {SECOND}"),
        (("2026-11-2[01]*",), ["0:aa/0", "1:aa/1", "2:bb/0"], f"{FIRST}, {SECOND}"),
        ((FIRST, "*aa"), ["0:aa/0", "1:aa/1"], FIRST),
        (("*",), ["0:aa/0", "1:aa/1", "2:bb/0", "3:cc/0", "4:cc/3"], f"{FIRST}, {SECOND}, {THIRD}"),
        ((f"/{FIRST}",), ["0:aa/0", "1:aa/1"], FIRST),
        ((f"/{FIRST}/1",), ["1:aa/1"], FIRST),
    ],
)
def test_sweeps_are_named_by_patterns_or_folders_and_numbered_consecutively(multirun, sweeps, expected, title):
    sweep = load_sweep([f"{multirun}{name}" if name.startswith("/") else name for name in sweeps], multirun)
    assert ([f"{run.number}:{run.name[-4:]}" for run in sweep.runs], sweep.title) == (expected, title)


def test_missing_sweep_lists_an_existing_one_and_damaged_records_name_theirs(multirun):
    for folder, sweeps, message in (
        ("multirun", ["other"], f"(?s)no runs in `other`: .* the last sweep with runs is {THIRD}"),
        ("multirun", ["reports"], "no runs in `reports`"),
        ("none", [], "(?s)there are no runs yet.*python src/train.py"),
    ):
        with pytest.raises(ValueError, match=message):
            load_sweep(sweeps, multirun.parent / folder)
    (multirun / FIRST / "1" / "job.json").write_text("{")
    assert list(load_sweep([FIRST, SECOND], multirun).unreadable) == [f"{FIRST}/1"]


def test_without_a_name_the_sweep_that_was_started_last_is_loaded(multirun):
    last = sweep_folders(multirun)[-1]
    write_start(multirun / FIRST, (sort_key(last.name)[0], 2))
    assert load_sweep([], multirun).folder.name == FIRST


READ_AS_ANOTHER_USER = """
import sys
from pathlib import Path
from epochmeter.report.runs.folders import sweep_folders
from epochmeter.report.runs.load import load_sweep

newest = sweep_folders(Path(sys.argv[1]))[-1]
print(newest.name, *load_sweep([newest], newest.parent).unreadable)
load_sweep(sys.argv[2:], newest.parent)
"""


@pytest.mark.skipif(os.geteuid() == 0 and not which("setpriv"), reason="root may read all files")
def test_sweep_of_another_user_is_an_error_if_named_and_a_private_run_is_reported(multirun):
    for folder in (private := multirun / THIRD, multirun / SECOND / "0"):
        folder.chmod(0)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
    as_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*as_user, sys.executable, "-c", READ_AS_ANOTHER_USER, multirun, THIRD]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [SECOND, "0"]
    assert done.stderr.endswith(f"PermissionError: [Errno 13] Permission denied: '{private}'\n")
