"""The training process on the boards' Python and torch, with the controller on this Python.

Python 3.6 and torch 1.10 (JetPack 4), 3.8 and 2.0 (JetPack 5), 3.10 and 2.5 (JetPack 6).
"""

from pathlib import Path

import pytest
import tiny

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
STACKS = {"py36": ("3.6.", "1.10."), "py38": ("3.8.", "2.0."), "py310": ("3.10.", "2.5.")}
"""Versions of Python and torch by make target."""


def interpreter(target):
    return ROOT / f".{target}" / "bin" / "python"


INSTALLED = [target for target in STACKS if interpreter(target).exists()]


@pytest.fixture(scope="module", params=STACKS)
def stack(request):
    """The name of an installed stack, and its interpreter."""
    if request.param not in INSTALLED:
        pytest.skip(f"`make {request.param}` creates the environment if that Python is installed")
    return request.param, interpreter(request.param)


def test_run_on_a_board_s_python_is_completed_and_its_clock_accounts_for_every_epoch(project, stack):
    overrides = {"epochs": 2, "workers": 2, "profiler": "torch", "save_model": "true", "device.python": stack[1]}
    done = project.run("train", *project.quick(**overrides))
    assert done.returncode == 0, done.stdout + done.stderr
    record = project.record()
    assert record.is_completed()
    training = record.run()["training"]
    python, torch = STACKS[stack[0]]
    assert (training["python"][: len(python)], training["torch"][: len(torch)]) == (python, torch)
    assert record.summary()["notes"] == []
    epochs = [window["metrics"] for window in record.windows() if window["window"] == "epoch"]
    assert len(epochs) == 2
    for metrics in epochs:
        assert abs(metrics["epoch/clock_residual_s"]) <= 0.001 * metrics["epoch/e2e_s"]
        assert metrics["epoch/steps"] == 12
        assert metrics["epoch/loader_read_s"] > 0
        assert metrics["epoch/loader_preprocess_s"] > metrics["epoch/loader_decode_s"] > 0


@pytest.mark.skipif(not INSTALLED, reason="no Python of a board is installed")
def test_edge_experiment_runs_on_the_oldest_stack(project, composed):
    """The oldest torch and torchvision have the fewest models and transforms."""
    name = "edge/mobilenet_v3_images"
    overrides = tiny.typed(composed(f"experiment={name}"), project.own_data().parent)
    overrides |= {"experiment": name, "batch": 24, "workers": 0, "device.python": interpreter(INSTALLED[0])}
    done = project.run("train", *project.quick(**overrides))
    assert done.returncode == 0, done.stdout + done.stderr
    assert project.record().is_completed()
