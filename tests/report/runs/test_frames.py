"""Runs as data: the example of the documentation, and frames of incomplete records."""

import copy
import json
import operator
import re
import shutil
import sys
from array import array
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from sweeps import trained, write

import epochmeter
from epochmeter.report.runs import frames, load
from epochmeter.report.runs.frames import Runs
from epochmeter.results.reuse import write_reference
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record

DOCUMENT = Path(__file__).parents[3] / "docs/analysis.md"


@pytest.fixture
def sweep(tmp_path):
    """Two completed runs of two epochs with two steps each, and a run that has just started."""
    folder = tmp_path / "multirun" / "2026-11-20_12-00-00-aa"
    epoch = {"epoch/e2e_s": 2.0, "epoch/steps": 2}
    for number in range(3):
        epochs = [epoch, {**epoch, "epoch/e2e_s": 1.0}] if number < 2 else []
        run = trained(number, 100.0, batch=8 * (number + 1), epochs=epochs, steady={"data_stall_s": 0.1})
        record = write(folder, run)
        if number < 2:
            record.append_steps(array("f", range(16)))
            record.append_losses(array("f", [3.0, 2.0, 1.0, 0.5]))
            record.append_power([10**9, 2 * 10**9], {"total": [5.0, float("nan")]})
    for name in ("summary.json", "completed.json"):
        (folder / "2" / name).unlink()
    return folder


@pytest.mark.parametrize("lost", [[], ["0/power.csv", "1/power.csv"]])
def test_documented_example_runs(sweep, monkeypatch, capsys, lost):
    for name in lost:  # a machine without a meter
        (sweep / name).unlink()
    monkeypatch.chdir(sweep.parents[1])
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    exec(compile(example, DOCUMENT.name, "exec"), {})  # noqa: S102 the example of the documentation
    printed = capsys.readouterr().out
    assert "2026-11-20_12-00-00-aa/1 no meter here" in printed
    assert "damaged records: {}" in printed


def test_frames_have_one_row_per_run_epoch_step_and_power_sample(sweep):
    runs = epochmeter.load_runs(sweep)
    expected = [
        (runs, {"run.number": [0, 1, 2], "batch": [8, 16, 24], "run.state": ["completed", "completed", "running"]}),
        (
            runs.epochs,
            {"epoch/e2e_s": [2.0, 1.0] * 2, "epoch": [0, 1] * 2, "warmup": [True, False] * 2, "training": [0] * 4},
        ),
        (runs[:1].steps, {"epoch": [0, 0, 1, 1], "compute_s": [3.0, 7.0, 11.0, 15.0], "loss": [3.0, 2.0, 1.0, 0.5]}),
        (runs[:1].power, {"time_s": [0.0, 1.0]}),
    ]
    for frame, columns in expected:
        table = frame.to_pandas()
        assert {name: list(table[name]) for name in columns} == columns
    assert runs.to_pandas()["steady/e2e_s"].isna().tolist() == [False, False, True]
    assert [repr(runs), repr(runs[0])] == [
        "<Runs: 3, and 0 unreadable>",
        "<Run 2026-11-20_12-00-00-aa/0 completed strategy=single>",
    ]
    assert runs[:1].power.to_pandas()["total_w"].isna().tolist() == [False, True]
    record = Record(sweep / "1")
    record.append_steps(array("f", range(8)))
    with open(record.folder / "power.csv", "a") as file:
        file.write("3000")
    growing = epochmeter.load_runs(sweep / "1")
    assert (len(growing.steps.to_pandas()), len(growing.power.to_pandas())) == (4, 2), "of its closed epochs"


def test_bottleneck_and_stalls_are_columns_of_runs_and_epochs_also_of_older_records(sweep):
    """The records of the fixture have no verdict, as those of earlier versions."""
    parts = {"e2e_s": 10.0, "compute_s": 2.0, "copy_s": 0.0, "overhead_s": 0.0, "data_stall_s": 8.0}
    epoch = {f"epoch/{name}": value for name, value in parts.items()}
    run = trained(0, 100.0, epochs=[epoch], steady=parts)
    record = write(sweep.with_name("older"), run)
    record.describe(record.job(), {**record.run(), "storage": {"medium": "ram"}})
    runs = epochmeter.load_runs(record.folder)
    (line,), (window,) = (frame.to_pandas().to_dict("records") for frame in (runs, runs.epochs))
    assert (line["run.bottleneck"], window["bottleneck"]) == ("prep_stall", "prep_stall")
    for values, section in ((line, "steady"), (window, "epoch")):
        names = ("prep_stall_s", "prep_stall_fraction", "data_stall_fraction")
        assert [values[f"{section}/{name}"] for name in names] == [8.0, 0.8, 0.8]
        assert f"{section}/fetch_stall_s" not in values
    reason = "no storage device is read: the samples are in memory"
    assert json.loads(line["run.absent"]) == {"steady/fetch_stall_s": reason}
    verdict = {"bottleneck": "copy", "absent": {"bottleneck": "as recorded"}}
    write_json(record.folder / "summary.json", {**record.summary(), **verdict})
    (read,) = epochmeter.load_runs(record.folder)
    assert (read.bottleneck, read.absent) == ("copy", {"bottleneck": "as recorded"})


def test_several_folders_and_patterns_are_loaded_once_and_damaged_records_are_named(sweep):
    (sweep / "2" / "job.json").write_text("{")
    assert [run.name[-4:] for run in epochmeter.load_runs([sweep / "1", f"{sweep.parent}/*/[01]"])] == ["aa/1", "aa/0"]
    assert [*epochmeter.load_runs(sweep).unreadable] == ["2"]


def test_folder_of_sweeps_has_all_runs_by_a_relative_or_an_absolute_path(sweep, monkeypatch):
    shutil.copytree(sweep, sweep.with_name("2026-11-21_12-00-00-bb"))
    monkeypatch.chdir(sweep.parents[1])
    for source in ("multirun", "./multirun/", Path("multirun"), str(sweep.parent), "*"):
        runs = epochmeter.load_runs(source)
        assert [run.name[-4:] for run in runs] == ["aa/0", "aa/1", "aa/2", "bb/0", "bb/1", "bb/2"], source


def test_steps_are_absent_if_a_damaged_line_hides_whose_they_are(sweep):
    path = sweep / "1" / "epochs.jsonl"
    path.write_text("{\n" + path.read_text().partition("\n")[2])
    runs = epochmeter.load_runs(sweep)[:2]
    with pytest.warns(UserWarning, match=r"aa/1: epochs\.jsonl: 1 unreadable line$"):
        steps = runs.steps.to_pandas()
    assert steps["run"].tolist() == [runs[0].name] * 4
    with pytest.warns(UserWarning, match=r"aa/1: epochs\.jsonl: 1 unreadable line$"):
        assert runs.epochs.to_pandas()["epoch"].tolist() == [0, 1, 1]


def test_file_that_cannot_be_read_is_named_and_the_other_runs_are_in_the_frame(sweep):
    for name in ("epochs.jsonl", "steps.bin", "power.csv"):
        (sweep / "1" / name).unlink(missing_ok=True)
        (sweep / "1" / name).symlink_to(sweep / "0" / name)
    runs = epochmeter.load_runs(sweep)
    for frame, name in ((runs.epochs, "epochs.jsonl"), (runs.steps, "steps.bin"), (runs.power, "power.csv")):
        with pytest.warns(UserWarning, match=f"aa/1: .*{name}: it is a link"):
            assert "2026-11-20_12-00-00-aa/1" not in set(frame.to_pandas()["run"])


def test_polars_frames_have_the_same_values(sweep, monkeypatch):
    runs = epochmeter.load_runs(sweep)
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "polars", None)
        with pytest.raises(ImportError, match="pip install polars"):
            runs.to_polars()
    pytest.importorskip("polars")
    for frame in (runs, runs.epochs, runs.steps, runs.power):
        assert frame.to_polars().to_pandas().to_json() == frame.to_pandas().to_json()
    first, *others = runs
    mixed = Runs([replace(first, job={**first.job, "batch": "auto"}), *others], {})
    assert mixed.to_polars()["batch"].to_list() == ["auto", "16", "24"]


@pytest.mark.parametrize("folders", [1, 2])
def test_more_runs_than_are_kept_are_read_when_they_are_needed(sweep, monkeypatch, folders):
    (sweep / "2/job.json").write_text("{")  # damaged
    other = sweep.with_name("2026-11-21_12-00-00-bb")
    write(other, trained(0, 100.0, batch=64))
    (other / "1").mkdir()
    write_reference(other / "1", Record(sweep / "1"), ["batch=16"])
    sources = [sweep, other][:folders]
    every = epochmeter.load_runs(sources)
    monkeypatch.setattr(frames, "KEPT_RUNS", 1)
    runs = epochmeter.load_runs(sources)
    assert isinstance(runs, frames.ManyRuns)
    assert [(run.name, run.number) for run in runs] == [(run.name, run.number) for run in every]
    assert {**runs.unreadable} == {**every.unreadable} != {}
    assert runs[1].metrics == every[1].metrics
    with pytest.raises(IndexError):
        runs[len(every)]
    assert runs.to_pandas().equals(every.to_pandas())
    assert runs.epochs.to_pandas().equals(every.epochs.to_pandas())
    assert (len(runs), runs[-1].name, [run.name for run in runs[1:]]) == (
        len(every),
        every[-1].name,
        [run.name for run in every[1:]],
    )
    assert "data" not in vars(runs), "nothing is kept"


@pytest.fixture
def many(tmp_path, monkeypatch):
    """Six runs that are not kept, the second of which is damaged, and the number of each folder that was read."""
    for number in range(6):
        write(tmp_path / "sweep", trained(number, 100.0, batch=number + 1))
    (tmp_path / "sweep/1/job.json").write_text("{")
    read = []
    load_run = load.load_run
    monkeypatch.setattr(frames, "KEPT_RUNS", 1)
    monkeypatch.setattr(load, "load_run", lambda folder: read.append(int(folder.name)) or load_run(folder))
    return epochmeter.load_runs(tmp_path / "sweep"), read


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (repr, []),
        (bool, [0]),
        (lambda runs: runs[-1], [5]),
        (lambda runs: runs[1], [0, 1, 2]),
        (lambda runs: runs[-5], [5, 4, 3, 2, 1, 0]),
        (lambda runs: runs[:2], [0, 1, 2]),
        (lambda runs: runs[-2:], [5, 4]),
        (lambda runs: next(reversed(runs)), [5]),
        (lambda runs: next(run for run in runs if run.job["batch"] == 3), [0, 1, 2]),
        (len, [0, 1, 2, 3, 4, 5]),
        (lambda runs: [runs[place] for place in range(3)], [0, 1, 2, 3]),
        (lambda runs: (len(runs), runs[-1], runs[0]), [0, 1, 2, 3, 4, 5, 5, 0]),
        (lambda runs: [run for run in runs] and len(runs), [0, 1, 2, 3, 4, 5]),  # noqa: C416
    ],
)
def test_operations_on_many_runs_read_only_what_they_need(many, operation, expected):
    runs, read = many
    operation(runs)
    assert (read, "data" in vars(runs)) == (expected, False)


@pytest.mark.parametrize("is_known", [False, True])
def test_many_runs_are_as_a_list(many, is_known):
    numbers = [0, 2, 3, 4, 5]
    ends = (None, -6, -2, 0, 1, 4, 7)
    for place in [slice(*bounds) for bounds in product(ends, ends, (None, 1, 2, -1, -2))]:
        runs = epochmeter.load_runs(many[0]._folders[0].parent)
        assert not is_known or len(runs) == len(numbers)
        assert [run.number for run in runs[place]] == numbers[place], place
    for place in range(-6, 6):
        runs = epochmeter.load_runs(many[0]._folders[0].parent)
        assert not is_known or len(runs) == len(numbers)
        if -5 <= place < 5:
            assert runs[place].number == numbers[place]
        else:
            with pytest.raises(IndexError):
                runs[place]
    with pytest.raises(ValueError, match="step cannot be zero"):
        runs[0:3:0]
    assert [run.number for run in reversed(runs)] == numbers[::-1]
    assert [run.number for run in sorted(runs, key=lambda run: -run.number)] == numbers[::-1]
    runs.sort(key=lambda run: -run.number)
    assert ([run.number for run in runs[:2]], len(runs), runs[-1].number) == ([5, 4], 5, 0), "kept"


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda runs: runs.copy(), [0, 2, 3, 4, 5]),
        (copy.copy, [0, 2, 3, 4, 5]),
        (lambda runs: runs + runs[:2], [0, 2, 3, 4, 5, 0, 2]),
        (lambda runs: runs + [*runs][:1], [0, 2, 3, 4, 5, 0]),
        (lambda runs: operator.add([], runs), [0, 2, 3, 4, 5]),
        (lambda runs: runs[:1] + runs, [0, 0, 2, 3, 4, 5]),
        (lambda runs: runs * 2, [0, 2, 3, 4, 5, 0, 2, 3, 4, 5]),
        (lambda runs: 2 * runs, [0, 2, 3, 4, 5, 0, 2, 3, 4, 5]),
    ],
)
def test_operations_that_make_a_list_of_many_runs_keep_its_runs(many, operation, expected):
    runs, _ = many
    made = operation(runs)
    assert ([run.number for run in made], type(made)) == (expected, Runs)
    made.clear()
    assert len(runs) == 5, "it is a list of its own"


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda runs: runs[0].number, 2),
        (lambda runs: runs[-1].number, 4),
        (lambda runs: [run.number for run in runs[3:]], [4]),
        (lambda runs: [run.number for run in runs[:2]], [2]),
        (lambda runs: [run.number for run in runs[-2:]], [3, 4]),
        (lambda runs: [run.number for run in runs], [2, 3, 4]),
    ],
)
def test_runs_that_were_damaged_or_deleted_since_they_were_counted_are_left_out(many, operation, expected, tmp_path):
    runs, _ = many
    assert len(runs) == 5
    (tmp_path / "sweep/0/job.json").write_text("{")
    shutil.rmtree(tmp_path / "sweep/5")
    found = operation(runs)
    assert ([*found] if isinstance(found, Runs) else found) == expected
    with pytest.raises(IndexError):
        runs[4]
    assert [run.number for run in runs] == [2, 3, 4]
    assert (len(runs), {*runs.unreadable}) == (3, {"0", "1", "5"})


@pytest.mark.parametrize("kept", [1, 1000])
def test_numbers_in_several_sweeps_are_the_same_if_a_reused_run_is_damaged(tmp_path, monkeypatch, kept):
    for sweep, numbers in (("A", (0, 1)), ("B", (1, 2))):
        for number in numbers:
            write(tmp_path / sweep, trained(number, 100.0))
    for number in (0, 1):
        (tmp_path / f"B/{3 * number}").mkdir()
        write_reference(tmp_path / f"B/{3 * number}", Record(tmp_path / f"A/{1 - number}"), [])
    (tmp_path / "A/1/job.json").write_text("{")
    monkeypatch.setattr(frames, "KEPT_RUNS", kept)
    runs = epochmeter.load_runs([tmp_path / "A", tmp_path / "B"])
    assert [(run.number, run.name) for run in runs] == [(0, "A/0"), (3, "B/1"), (4, "B/2")]
    assert {*runs.unreadable} == {"A/1", "B/0"}
    assert "reuses A/1, which is gone" in runs.unreadable["B/0"]


def test_a_run_of_several_sweeps_has_a_number_that_is_known_without_reading_the_others(many, tmp_path):
    _, read = many
    write(tmp_path / "other", trained(0, 100.0))
    both = epochmeter.load_runs([tmp_path / "sweep", tmp_path / "other"])
    read.clear()
    assert (both[-1].number, read) == (6, [0])
    assert [run.number for run in both] == [0, 2, 3, 4, 5, 6]
