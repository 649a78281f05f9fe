"""Runs from folders and from MLflow by the names of their sweeps."""

import shutil

import pytest
from sweeps import row, write

from epochmeter.report.runs import load
from epochmeter.report.runs.load import load_runs, with_links

FIRST, SECOND, THIRD = (f"2026-11-{day}_12-00-00-{name}" for day, name in ((20, "aa"), (21, "bb"), (22, "cc")))


def none(folder, choose):
    raise AssertionError("MLflow is not asked")


@pytest.fixture
def multirun(tmp_path):
    """Three sweeps: of a study, of none, and of it again."""
    folder = tmp_path / "multirun"
    for name, study, numbers in ((FIRST, "edge/grid", (0, 1)), (SECOND, None, (0,)), (THIRD, "edge/grid", (0, 3))):
        for number in numbers:
            typed = {"experiment": study} if study else {"batch": "64"}
            write(folder / name, row(number, "storage", 1.0 + number, typed=typed))
    (folder / "reports").mkdir()
    return folder


def names(sweep):
    return [f"{each.number}:{each.name[-4:]}" for each in sweep.runs]


def asked(multirun, *sweeps, study=None, source="records", shown=none):
    return load_runs(sweeps, study, source, multirun, shown)


def test_newest_sweep_is_the_default(multirun):
    sweep = asked(multirun)
    assert (sweep.folder, sweep.title) == (multirun / THIRD, THIRD)
    assert [each.number for each in sweep.runs] == [0, 3]


@pytest.mark.parametrize(
    ("sweeps", "study", "told"),
    [
        ((FIRST, SECOND), None, ["0:aa/0", "1:aa/1", "2:bb/0"]),
        (("2026-11-2[01]*",), None, ["0:aa/0", "1:aa/1", "2:bb/0"]),
        ((FIRST, "*aa"), None, ["0:aa/0", "1:aa/1"]),
        ((), "edge/grid", ["0:aa/0", "1:aa/1", "2:cc/0", "3:cc/3"]),
        ((SECOND, THIRD), "edge/grid", ["0:cc/0", "3:cc/3"]),
    ],
)
def test_several_sweeps_are_numbered_consecutively(multirun, sweeps, study, told):
    assert names(asked(multirun, *sweeps, study=study)) == told


def test_sweep_is_named_by_a_folder_or_a_run_folder(multirun):
    assert len(asked(multirun, str(multirun / FIRST)).runs) == 2
    assert names(asked(multirun, str(multirun / FIRST / "1"))) == ["1:aa/1"]


def test_damaged_records_are_named_with_their_sweep(multirun):
    (multirun / FIRST / "1" / "job.json").write_text("{")
    assert list(asked(multirun, FIRST, SECOND).unreadable) == [f"{FIRST}/1"]


@pytest.mark.parametrize(
    ("sweeps", "study", "said"),
    [
        (("other",), None, f"sweep=other: no runs there: .* The last one that has is {THIRD}"),
        (("reports",), None, "sweep=reports: no runs there"),
        ((), "smoke", "study=smoke: no run took it. There are runs of: edge/grid. Run: .* -m experiment=smoke"),
    ],
)
def test_missing_sweep_or_study_lists_existing_ones(multirun, sweeps, study, said):
    with pytest.raises(ValueError, match=said):
        asked(multirun, *sweeps, study=study)


def test_without_runs_the_error_suggests_a_command(tmp_path):
    with pytest.raises(ValueError, match=r"There are no runs yet\. Run first: python src/train.py"):
        asked(tmp_path / "multirun")


@pytest.mark.parametrize(
    ("sweeps", "study", "names"),
    [((), None, [THIRD]), (("*aa",), None, [FIRST]), ((), "edge/grid", [FIRST, SECOND, THIRD])],
)
def test_chosen_sweeps_are_downloaded_and_reported_as_of_the_project(multirun, tmp_path, sweeps, study, names):
    chosen = []

    def download(folder, choose):
        chosen.extend(choose([THIRD, FIRST, SECOND]))
        for name in chosen:
            shutil.copytree(multirun / name, folder / name)

    sweep = asked(tmp_path / "here", *sweeps, study=study, source="mlflow", shown=download)
    assert chosen == names
    assert sweep.folder == tmp_path / "here" / (names[0] if len(names) == 1 else "")
    assert [run.metrics for run in sweep.runs] == [run.metrics for run in asked(multirun, *sweeps, study=study).runs]


def test_server_error_is_reported(tmp_path):
    def away(folder, choose):
        raise ConnectionError("refused\nand pages of it")

    with pytest.raises(ValueError, match=r"source=mlflow: the runs cannot be loaded: ConnectionError: refused$"):
        asked(tmp_path, source="mlflow", shown=away)


def test_runs_have_the_links_of_their_pages(multirun):
    sweep = with_links(asked(multirun, FIRST), {f"{FIRST}/1": "http://127.0.0.1/#/1"})
    assert [each.link for each in sweep.runs] == [None, "http://127.0.0.1/#/1"]


def test_other_sweeps_are_not_searched(multirun, monkeypatch):
    looked = []
    has_runs = load.has_runs
    monkeypatch.setattr(load, "has_runs", lambda folder: looked.append(folder.name) or has_runs(folder))
    asked(multirun, FIRST)
    asked(multirun, "*bb")
    assert {name for name in looked if "*" not in name} == {FIRST, SECOND}


def test_unknown_source_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"source=report\.csv: give records or mlflow"):
        asked(tmp_path, source="report.csv")
