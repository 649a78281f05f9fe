"""Every experiment, run by the command with tiny settings, on generated data in the formats of the real datasets."""

import math
import re
from pathlib import Path

import pytest
import tiny
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2] / "conf" / "experiment"
NAMES = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("[!_]*.yaml"))
RUN_HERE = [name for name in NAMES if not re.match("edge/(?!lenet_mnist).*_|smoke|stalls|memory", name)]
"""Experiments that no other test runs, and one of those that differ in model and dataset only."""


@pytest.mark.system
@pytest.mark.parametrize("name", RUN_HERE)
def test_experiment_is_completed(project, composed, name):
    overrides = tiny.typed(composed(f"experiment={name}"), project.own_data().parent)
    is_sweep = OmegaConf.select(OmegaConf.load(ROOT / f"{name}.yaml"), "hydra.mode") == "MULTIRUN"
    has_seeds = composed(f"experiment={name}")._get_node("seed")._is_interpolation()
    overrides |= {"sweep.sample": 1 + has_seeds} if is_sweep else {}
    project.run("train", *project.quick(**{"experiment": name, **overrides}), check=True)
    records = project.records()
    assert [record.job()["seed"] for record in records] == ([0, 1] if has_seeds else [0]), "each run has its own seed"
    for record in records:
        assert record.is_completed()
        losses = [window["metrics"]["epoch/train_loss"] for window in record.windows() if window["window"] == "epoch"]
        assert losses
        assert all(map(math.isfinite, losses))


@pytest.mark.system
def test_largest_batch_is_at_most_the_training_set(project):
    keys = {"dataset": "jpeg", "dataset.size": 32, "dataset.classes": 1, "tracking": "none"}
    keys |= {"experiment": "memory/largest_batch", "model": "lenet", "machine.lock_dir": project.root / "locks"}
    search = [f"{key}={value}" for key, value in keys.items()]
    done = project.run("train", *search, "dataset.count=5", check=True)
    batches = [record.job()["batch"] for record in project.records()]
    samples = project.records()[0].run()["dataset"]["splits"]["train"]
    assert batches == [1, 2, samples]
    assert f"Largest batch per rank that fits: {samples} (a batch of all training samples; 3 tries)." in done.stdout
    failed = project.run("train", *search, "dataset.count=4")
    assert failed.returncode == 1
    assert "error: the run with batch=1 failed, but not for lack of memory\n  hint: correct" in failed.stderr
    assert "Traceback" not in failed.stderr
