"""What counts as lost after a fault, and what is no fault: one that has hurt nothing."""

import subprocess
from types import SimpleNamespace

import pytest
from conftest import Project
from faulty import EPOCHS, FAULTS, Measured, Scene, inject

from epochmeter.shared.record import Record


@pytest.fixture
def after(tmp_path):
    """after(record_id, resumed=epoch) -> the record that the second command has left."""

    def left(record_id, **resumed):
        record = Record(tmp_path)
        record.describe({}, {"record_id": record_id, "resumed": [{"epoch": epoch} for epoch in resumed.values()]})
        return record

    return left


@pytest.mark.parametrize("epochs", [5, 12])
def test_of_a_run_begun_anew_all_is_lost_but_the_epoch_in_flight(after, epochs):
    assert Measured("first", epochs, was_completed=False).lost(after("second")) == epochs - 1


def test_what_a_checkpoint_keeps_is_not_lost(after):
    first = Measured("first", 5, was_completed=False)
    assert first.lost(after("first", resumed=5)) == 0
    assert first.lost(after("first", resumed=4)) == 0, "which was in flight"
    assert first.lost(after("first", resumed=2)) == 2


def test_a_completed_run_is_to_be_left_alone(after):
    whole = Measured("first", 12, was_completed=True)
    assert whole.lost(after("first")) == 0
    assert whole.lost(after("second")) == 12


@pytest.fixture
def scene(tmp_path):
    """A scene whose run has measured all of its epochs, and whose command is `true`."""
    record = Record(tmp_path / "project" / "multirun" / "sweep" / "0")
    record.folder.mkdir(parents=True)
    for epoch in range(EPOCHS):
        record.append({"window": "epoch", "epoch": epoch, "metrics": {"epoch/e2e_s": 0.0}})
    board = tmp_path / "board"
    board.mkdir()
    held = {"until": Project.until, "at_work_in": Project.at_work_in}
    made = Scene(SimpleNamespace(root=tmp_path / "project", records=lambda: [record], **held), board, seed=0)
    made.command = subprocess.Popen(["true"])
    made.command.wait()
    made.start = lambda: made.command
    return made


def test_a_command_that_has_ended_is_hurt_no_more(scene):
    with pytest.raises(AssertionError, match="the command had ended before it was hurt: 0"):
        inject(FAULTS["SIGTERM"], scene)


def test_a_worker_that_is_not_there_is_not_taken_for_one_that_is_hurt(scene):
    steps = FAULTS["SIGKILL of the worker"](scene)
    next(steps)
    with pytest.raises(AssertionError, match="there is no worker to be hurt"):
        next(steps)


def test_a_run_that_is_completed_all_the_same_was_not_ended(scene):
    steps = FAULTS["SIGTERM"](scene)
    next(steps)
    next(steps)
    scene.record().describe({}, {})
    scene.record().write_summary({"state": "completed"}, "1d")
    with pytest.raises(AssertionError, match="the run completed: nothing has hurt it"):
        next(steps)
