"""Runs as data: the example of the documentation, and frames of incomplete records."""

import re
import subprocess
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import trained, write

import epochmeter
from epochmeter.report.runs.frames import Runs
from epochmeter.shared.record import Record

DOCUMENT = Path(__file__).parents[3] / "docs/analysis.md"


@pytest.fixture
def sweep(tmp_path):
    """Two completed runs of two epochs with two steps each, and a run that has just started."""
    folder = tmp_path / "multirun" / "2026-11-20_12-00-00-aa"
    epoch = {"epoch/e2e_s": 2.0, "epoch/steps": 2}
    for number in range(3):
        epochs = [epoch, {**epoch, "epoch/e2e_s": 1.0}] if number < 2 else []
        record = write(
            folder, trained(number, 100.0, batch=8 * (number + 1), epochs=epochs, steady={"data_stall_s": 0.1})
        )
        if number < 2:
            record.append_steps(array("f", range(16)))
            record.append_losses(array("f", [3.0, 2.0, 1.0, 0.5]))
            record.append_power([10**9, 2 * 10**9], {"total": [5.0, float("nan")]})
    for name in ("summary.json", "completed.json"):
        (folder / "2" / name).unlink()
    return folder


def test_documented_example_runs(sweep, monkeypatch, capsys):
    monkeypatch.chdir(sweep.parents[1])
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    exec(compile(example, DOCUMENT.name, "exec"), {})  # noqa: S102 the example of the documentation
    printed = capsys.readouterr().out
    assert "2026-11-20_12-00-00-aa/1 no meter here" in printed
    assert "damaged records: {}" in printed


def test_frames_have_one_row_per_run_epoch_step_and_power_sample(sweep):
    runs = epochmeter.load_runs(sweep)
    table = runs.to_pandas()
    assert list(table["run.number"]) == [0, 1, 2]
    assert list(table["batch"]) == [8, 16, 24]
    assert list(table["run.state"]) == ["completed", "completed", "unfinished"]
    assert table["steady/e2e_s"].isna().tolist() == [False, False, True]
    epochs = runs.epochs.to_pandas()
    assert list(epochs["epoch/e2e_s"]) == [2.0, 1.0] * 2
    assert list(epochs["epoch"]) == [0, 1] * 2
    steps = runs[:1].steps.to_pandas()
    assert list(steps["epoch"]) == [0, 0, 1, 1]
    assert list(steps["compute_s"]) == [3.0, 7.0, 11.0, 15.0]
    assert list(steps["loss"]) == [3.0, 2.0, 1.0, 0.5]
    power = runs[:1].power.to_pandas()
    assert list(power["time_s"]) == [0.0, 1.0]
    assert power["total_w"].isna().tolist() == [False, True]


def test_several_folders_and_patterns_are_loaded_once(sweep):
    runs = epochmeter.load_runs([sweep / "1", f"{sweep.parent}/*/[01]"])
    assert [run.name[-4:] for run in runs] == ["aa/1", "aa/0"]
    with pytest.raises(FileNotFoundError, match="no runs in nowhere"):
        epochmeter.load_runs("nowhere")


def test_damaged_records_are_named(sweep):
    (sweep / "0" / "job.json").write_text("{")
    runs = epochmeter.load_runs(sweep)
    assert [run.number for run in runs] == [1, 2]
    assert list(runs.unreadable) == ["0"]


def test_polars_frames_have_the_same_values(sweep):
    pytest.importorskip("polars")
    first, *others = epochmeter.load_runs(sweep)
    mixed = Runs([replace(first, job={**first.job, "batch": "auto"}), *others], {})
    assert mixed.to_polars()["batch"].to_list() == ["auto", "16", "24"]
    runs = epochmeter.load_runs(sweep)
    for frame in (runs, runs.epochs, runs.steps, runs.power):
        expected = frame.to_pandas()
        assert frame.to_polars().to_pandas().to_json() == expected.to_json()


def test_polars_frames_need_polars(sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="pip install polars"):
        epochmeter.load_runs(sweep).to_polars()


def test_importing_the_package_imports_no_module_of_it():
    code = "import sys, epochmeter; sys.exit(any(name.startswith('epochmeter.') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(epochmeter.__file__).parents[1])


def test_record_that_grows_has_frames_of_its_closed_epochs(sweep):
    record = Record(sweep / "1")
    record.append_steps(array("f", range(8)))
    with open(record.folder / "power.csv", "a") as file:
        file.write("3000")
    runs = epochmeter.load_runs(sweep / "1")
    assert len(runs.steps.to_pandas()) == 4
    assert len(runs.power.to_pandas()) == 2
