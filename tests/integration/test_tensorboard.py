"""Event files for TensorBoard."""

import pytest
from events import scalars_of

from epochmeter.tracking.scalars import LOSS

pytestmark = pytest.mark.system
pytest.importorskip("tensorboard", reason="no tensorboard in this environment: make .venv/.with-tensorboard")


def test_run_folder_has_tensorboard_events(project):
    done = project.run("train", *project.stubbed(**{"tracking.tensorboard": "true"}))
    assert (done.returncode, done.stderr) == (0, "")
    record = project.record()
    curve = [(scalar.step, scalar.value) for scalar in scalars_of(record) if scalar.name == "epoch/e2e_s"]
    epochs = [window["metrics"] for window in record.windows() if window["window"] == "epoch"]
    assert curve == [(epoch, pytest.approx(metrics["epoch/e2e_s"])) for epoch, metrics in enumerate(epochs)]
    assert {LOSS, "steady/e2e_s", "total/e2e_s"} <= {scalar.name for scalar in scalars_of(record)}
