"""The worker on what an original Jetson Nano has: Python 3.6 and torch 1.10, while the steward runs on a new one."""

import gzip
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
OLD = Path(__file__).parents[2] / ".py36" / "bin" / "python"


@pytest.fixture(scope="module")
def old(new_project):
    """A project in which a run of two epochs came to its end on the old Python."""
    if not OLD.exists():
        pytest.skip(f"no Python 3.6 here: `make py36` makes {OLD}")
    project = new_project()
    asked = project.quick(epochs=2, workers=2, profiler="torch", save_model="true", **{"device.python": OLD})
    project.done = project.run("train", *asked)
    return project


def test_a_board_trains_on_its_own_python_to_the_end(old):
    assert old.done.returncode == 0, old.done.stdout + old.done.stderr
    assert old.record().is_whole()
    training = old.record().run()["training"]
    assert training["python"].startswith("3.6.")
    assert training["torch"].startswith("1.10.")


def test_the_old_clock_accounts_for_every_epoch_to_a_thousandth(old):
    epochs = [window["metrics"] for window in old.record().windows() if window["window"] == "epoch"]
    assert len(epochs) == 2
    for metrics in epochs:
        assert abs(metrics["epoch/clock_residual_s"]) <= 0.001 * metrics["epoch/e2e_s"]
        assert metrics["epoch/steps"] == 12
        assert metrics["epoch/loader_read_s"] > 0
        assert metrics["epoch/loader_preprocess_s"] > metrics["epoch/loader_decode_s"] > 0


def test_the_old_profiler_leaves_a_trace_that_opens_and_weights(old):
    with gzip.open(old.record().folder / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert len({event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")}) == 5
    assert (old.record().folder / "weights.pt").stat().st_size > 4 * 60_000
    assert old.record().summary()["notes"] == []


def test_a_failure_on_the_old_python_is_told_in_words(old, project):
    asked = project.quick(**{"device.python": OLD, "dataset.open.files._target_": "nowhere.Images"})
    done = project.run("train", *asked)
    assert done.returncode == 1
    assert "Failed: _target_ asked for 'nowhere.Images', which cannot be had" in done.stdout
