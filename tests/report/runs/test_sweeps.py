"""Runs by the names of their sweeps."""

import pytest
from sweeps import row, write

from epochmeter.report.runs.load import load_sweep

FIRST, SECOND, THIRD = (f"2026-11-{day}_12-00-00-{name}" for day, name in ((20, "aa"), (21, "bb"), (22, "cc")))


@pytest.fixture
def multirun(tmp_path):
    """Three sweeps."""
    folder = tmp_path / "multirun"
    for name, numbers in ((FIRST, (0, 1)), (SECOND, (0,)), (THIRD, (0, 3))):
        for number in numbers:
            write(folder / name, row(number, "storage", 1.0 + number, typed={"batch": "64"}))
    (folder / "reports").mkdir()
    return folder


def names(sweep):
    return [f"{each.number}:{each.name[-4:]}" for each in sweep.runs]


def test_newest_sweep_is_the_default(multirun):
    sweep = load_sweep([], multirun)
    assert (sweep.folder, sweep.title, names(sweep)) == (multirun / THIRD, THIRD, ["0:cc/0", "3:cc/3"])


@pytest.mark.parametrize(
    ("sweeps", "expected"),
    [
        ((FIRST, SECOND), ["0:aa/0", "1:aa/1", "2:bb/0"]),
        (("2026-11-2[01]*",), ["0:aa/0", "1:aa/1", "2:bb/0"]),
        ((FIRST, "*aa"), ["0:aa/0", "1:aa/1"]),
        (("*",), ["0:aa/0", "1:aa/1", "2:bb/0", "3:cc/0", "4:cc/3"]),
        ((f"/{FIRST}",), ["0:aa/0", "1:aa/1"]),
        ((f"/{FIRST}/1",), ["1:aa/1"]),
    ],
)
def test_sweeps_are_named_by_patterns_or_folders_and_numbered_consecutively(multirun, sweeps, expected):
    paths = [f"{multirun}{sweep}" if sweep.startswith("/") else sweep for sweep in sweeps]
    assert names(load_sweep(paths, multirun)) == expected


def test_damaged_records_are_named_with_their_sweep(multirun):
    (multirun / FIRST / "1" / "job.json").write_text("{")
    assert list(load_sweep([FIRST, SECOND], multirun).unreadable) == [f"{FIRST}/1"]


@pytest.mark.parametrize(
    ("folder", "sweeps", "message"),
    [
        ("multirun", ["other"], f"(?s)no runs in `other`: .* the last sweep with runs is {THIRD}"),
        ("multirun", ["reports"], "no runs in `reports`"),
        ("none", [], "(?s)there are no runs yet.*python src/train.py"),
    ],
)
def test_missing_sweep_lists_an_existing_one(multirun, folder, sweeps, message):
    with pytest.raises(ValueError, match=message):
        load_sweep(sweeps, multirun.parent / folder)
