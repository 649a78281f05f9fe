"""Every experiment, run by the command with tiny settings, on generated data in the formats of the real datasets."""

import math
import re
from pathlib import Path

import pytest
import tiny
from omegaconf import OmegaConf

from epochmeter.run import plan

ROOT = Path(__file__).parents[2] / "conf" / "experiment"
OLD_PYTHON = ROOT.parents[1] / ".py36/bin/python"
QUICKEST = {"edge/lenet_mnist"}
EXPERIMENTS = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("[!_]*.yaml"))
"""All experiments except the bases of others."""
if OLD_PYTHON.exists():  # system/test_stacks.py runs the edge experiments, on a board's stack
    EXPERIMENTS = [name for name in EXPERIMENTS if name in QUICKEST or not re.match("edge/.*_", name)]


@pytest.mark.parametrize(
    "name", [name if name in QUICKEST else pytest.param(name, marks=pytest.mark.system) for name in EXPERIMENTS]
)
def test_experiment_is_completed(project, composed, name):
    overrides = tiny.typed(composed(f"experiment={name}"), project.own_data().parent)
    is_sweep = OmegaConf.select(OmegaConf.load(ROOT / f"{name}.yaml"), "hydra.mode") == "MULTIRUN"
    overrides |= {"sweep.sample": 2} if is_sweep else {}
    done = project.run("train", *project.quick(**{"experiment": name, **overrides}))
    assert done.returncode == 0, done.stdout + done.stderr
    records = project.records()
    points = {tuple(key for key in record.run()["overrides"] if "repeat=" not in key) for record in records}
    assert len(points) == (2 if is_sweep else 1), "all repeats of each"
    for record in records:
        assert record.is_completed()
        losses = [window["metrics"]["epoch/train_loss"] for window in record.windows() if window["window"] == "epoch"]
        assert losses
        assert all(map(math.isfinite, losses))
    if composed(f"experiment={name}")._get_node("seed")._is_interpolation():
        assert [record.job()["seed"] for record in records] == [0, 1], "each repeat has its own seed"


@pytest.mark.parametrize(
    ("device", "expected_reasons"),
    [
        ("auto", ["clocks=locked", "fan=max"]),
        ("nano", ["device=nano", "storage=edge", "power_limit=MAXN", "clocks=locked", "fan=max"]),
        ("nx", ["device=nx", "power_limit=15", "clocks=locked", "fan=max"]),
    ],
)
def test_edge_study_is_a_rehearsal_on_other_machines(order, device, expected_reasons):
    reasons = " ".join(plan.resolve_plan(order("experiment=edge/lenet_mnist", f"device={device}")).run["rehearsal"])
    assert [text for text in expected_reasons if text not in reasons] == []
