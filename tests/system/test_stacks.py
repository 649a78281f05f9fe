"""The training process on the boards' Python and torch, with the controller on this Python.

Python 3.6 and torch 1.10 (JetPack 4), 3.8 and 2.0 (JetPack 5), 3.10 and 2.5 (JetPack 6).
"""

import re

import pytest
import tiny
from project import ROOT

pytestmark = pytest.mark.system
STACKS = {"py36": ("3.6.", "1.10."), "py38": ("3.8.", "2.0."), "py310": ("3.10.", "2.5.")}
"""Versions of Python and torch by make target."""
INTERPRETERS = {target: ROOT / f".{target}" / "bin" / "python" for target in STACKS}
INSTALLED = [target for target, interpreter in INTERPRETERS.items() if interpreter.exists()]


@pytest.mark.parametrize("target", STACKS)
def test_run_on_a_board_s_python_is_completed_and_its_clock_accounts_for_every_epoch(project, target):
    if target not in INSTALLED:
        pytest.skip(f"`make {target}` creates the environment if that Python is installed")
    overrides = {"epochs": 2, "workers": 2, "profiler": "torch", "save_model": "true"}
    overrides["device.python"] = INTERPRETERS[target]
    project.run("train", *project.quick(**overrides), check=True)
    record = project.record()
    assert record.is_completed()
    training = record.run()["training"]
    python, torch = STACKS[target]
    assert (training["python"][: len(python)], training["torch"][: len(torch)]) == (python, torch)
    of_other_tests = re.compile("other processes|oversubscribed")
    assert [note for note in record.summary()["notes"] if not of_other_tests.search(note)] == []
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
    overrides |= {"experiment": name, "batch": 24, "workers": 0, "device.python": INTERPRETERS[INSTALLED[0]]}
    project.run("train", *project.quick(**overrides), check=True)
    assert project.record().is_completed()
