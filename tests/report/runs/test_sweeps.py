"""Runs by the names of their sweeps."""

import pytest
from sweeps import row, write

from epochmeter.report.runs.load import load_sweep

FIRST, SECOND, THIRD = (f"2026-11-{day}_12-00-00-{name}" for day, name in ((20, "aa"), (21, "bb"), (22, "cc")))


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


def asked(multirun, *sweeps, study=None):
    return load_sweep(sweeps, study, multirun)


def test_newest_sweep_is_the_default(multirun):
    sweep = asked(multirun)
    assert (sweep.folder, sweep.title, names(sweep)) == (multirun / THIRD, THIRD, ["0:cc/0", "3:cc/3"])


@pytest.mark.parametrize(
    ("sweeps", "study", "expected"),
    [
        ((FIRST, SECOND), None, ["0:aa/0", "1:aa/1", "2:bb/0"]),
        (("2026-11-2[01]*",), None, ["0:aa/0", "1:aa/1", "2:bb/0"]),
        ((FIRST, "*aa"), None, ["0:aa/0", "1:aa/1"]),
        ((), "edge/grid", ["0:aa/0", "1:aa/1", "2:cc/0", "3:cc/3"]),
        ((SECOND, THIRD), "edge/grid", ["0:cc/0", "3:cc/3"]),
        ((f"/{FIRST}",), None, ["0:aa/0", "1:aa/1"]),
        ((f"/{FIRST}/1",), None, ["1:aa/1"]),
    ],
)
def test_sweeps_are_named_by_patterns_studies_or_folders_and_numbered_consecutively(multirun, sweeps, study, expected):
    paths = [f"{multirun}{sweep}" if sweep.startswith("/") else sweep for sweep in sweeps]
    assert names(asked(multirun, *paths, study=study)) == expected


def test_damaged_records_are_named_with_their_sweep(multirun):
    (multirun / FIRST / "1" / "job.json").write_text("{")
    assert list(asked(multirun, FIRST, SECOND).unreadable) == [f"{FIRST}/1"]


@pytest.mark.parametrize(
    ("folder", "sweeps", "study", "message"),
    [
        ("multirun", ("other",), None, f"(?s)no runs in `other`: .* the last sweep with runs is {THIRD}"),
        ("multirun", ("reports",), None, "no runs in `reports`"),
        ("multirun", (), "smoke", "there are runs of edge/grid\\n.*hint: .* -m experiment=smoke"),
        ("none", (), None, "(?s)there are no runs yet.*python src/train.py"),
    ],
)
def test_missing_sweep_or_study_lists_existing_ones(multirun, folder, sweeps, study, message):
    with pytest.raises(ValueError, match=message):
        asked(multirun.parent / folder, *sweeps, study=study)
