"""Event files for TensorBoard."""

import pytest
from events import event_files, scalars_of

from epochmeter.tracking.scalars import LOSS

pytestmark = pytest.mark.system
pytest.importorskip("tensorboard", reason="no tensorboard in this environment: make .venv/.with-tensorboard")


@pytest.fixture(scope="module")
def shown(new_project):
    """A project with a completed run of two epochs that has event files only."""
    project = new_project()
    project.done = project.run("train", *project.quick(epochs=2, **{"tracking.tensorboard": "true"}))
    return project


def test_run_folder_has_tensorboard_events(shown):
    assert (shown.done.returncode, shown.done.stderr) == (0, "")
    record = shown.record()
    curve = [(scalar.step, scalar.value) for scalar in scalars_of(record) if scalar.name == "epoch/e2e_s"]
    epochs = [window["metrics"] for window in record.windows() if window["window"] == "epoch"]
    assert curve == [(epoch, pytest.approx(metrics["epoch/e2e_s"])) for epoch, metrics in enumerate(epochs)]
    assert {LOSS, "val/accuracy", "steady/e2e_s", "total/e2e_s"} <= {scalar.name for scalar in scalars_of(record)}


def test_tensorboard_events_can_be_written_later(new_project):
    project = new_project()
    project.run("train", *project.quick())
    assert event_files(project.record()) == []
    done = project.run("publish", "--tensorboard")
    assert (done.returncode, "1 of 1 runs published" in done.stdout) == (0, True), done.stderr
    assert "total/e2e_s" in {scalar.name for scalar in scalars_of(project.record())}
