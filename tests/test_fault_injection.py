"""The count of lost epochs after a fault, and the detection of a fault without effect."""

import subprocess
from types import SimpleNamespace

import pytest
from fault_injection import EPOCHS, FAULTS, MeasuredEpochs, Scene, inject
from project import Project

from epochmeter.shared.record import Record


@pytest.fixture
def after(tmp_path):
    """after(record_id, resumed=epoch) -> the record after the second command."""

    def make_record(record_id, **resumed):
        record = Record(tmp_path)
        record.describe({}, {"record_id": record_id, "resumed": [{"epoch": epoch} for epoch in resumed.values()]})
        return record

    return make_record


@pytest.mark.parametrize("epochs", [5, 12])
def test_restarted_run_loses_all_epochs_except_the_interrupted_one(after, epochs):
    assert MeasuredEpochs("first", epochs, was_completed=False).lost_epochs(after("second")) == epochs - 1


def test_epochs_before_a_checkpoint_are_not_lost(after):
    first = MeasuredEpochs("first", 5, was_completed=False)
    assert first.lost_epochs(after("first", resumed=5)) == 0
    assert first.lost_epochs(after("first", resumed=4)) == 0, "the interrupted one"
    assert first.lost_epochs(after("first", resumed=2)) == 2


def test_completed_run_must_not_be_measured_again(after):
    completed = MeasuredEpochs("first", 12, was_completed=True)
    assert completed.lost_epochs(after("first")) == 0
    assert completed.lost_epochs(after("second")) == 12


@pytest.fixture
def scene(tmp_path):
    """A scene whose run has measured all of its epochs, and whose command is `true`."""
    record = Record(tmp_path / "project" / "multirun" / "sweep" / "0")
    record.folder.mkdir(parents=True)
    for epoch in range(EPOCHS):
        record.append({"window": "epoch", "epoch": epoch, "metrics": {"epoch/e2e_s": 0.0}})
    board = tmp_path / "board"
    board.mkdir()
    methods = {"until": Project.until, "at_work_in": Project.at_work_in}
    created = Scene(SimpleNamespace(root=tmp_path / "project", records=lambda: [record], **methods), board, seed=0)
    created.command = subprocess.Popen(["true"])
    created.command.wait()
    created.start = lambda: created.command
    return created


def test_fault_after_the_end_of_the_command_is_an_error(scene):
    with pytest.raises(AssertionError, match="the command ended before the fault: 0"):
        inject(FAULTS["SIGTERM"], scene)


def test_missing_training_process_is_an_error(scene):
    steps = FAULTS["SIGKILL of the worker"](scene)
    next(steps)
    with pytest.raises(AssertionError, match="there is no training process"):
        next(steps)


def test_completed_run_after_a_fault_is_an_error(scene):
    steps = FAULTS["SIGTERM"](scene)
    next(steps)
    next(steps)
    scene.record().describe({}, {})
    scene.record().write_summary({"state": "completed"}, "1d")
    with pytest.raises(AssertionError, match="the run was completed in spite of the fault"):
        next(steps)
