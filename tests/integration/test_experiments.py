"""Every experiment, run as a command with tiny settings on generated data in the formats of the real ones."""

import math
from pathlib import Path

import pytest
import tiny
from omegaconf import OmegaConf

from epochmeter.run import plan

ROOT = Path(__file__).parents[2] / "conf" / "experiment"
EXPERIMENTS = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("[!_]*.yaml"))
"""All but what others build on, and is run with them."""
QUICKEST = {"edge/lenet_mnist"}


@pytest.mark.parametrize(
    "name", [name if name in QUICKEST else pytest.param(name, marks=pytest.mark.system) for name in EXPERIMENTS]
)
def test_an_experiment_runs_to_its_end(project, composed, name):
    asked = tiny.typed(composed(f"experiment={name}"), project.own_data().parent)
    is_sweep = OmegaConf.select(OmegaConf.load(ROOT / f"{name}.yaml"), "hydra.mode") == "MULTIRUN"
    asked |= {"sweep.sample": 2} if is_sweep else {}
    done = project.run("train", *project.quick(**{"experiment": name, **asked}))
    assert done.returncode == 0, done.stdout + done.stderr
    records = project.records()
    points = {tuple(typed for typed in record.run()["overrides"] if "repeat=" not in typed) for record in records}
    assert len(points) == (2 if is_sweep else 1), "each with all its repeats"
    for record in records:
        assert record.is_completed()
        losses = [window["metrics"]["epoch/train_loss"] for window in record.windows() if window["window"] == "epoch"]
        assert losses
        assert all(map(math.isfinite, losses))
    if composed(f"experiment={name}")._get_node("seed")._is_interpolation():
        assert [record.job()["seed"] for record in records] == [0, 1], "a seed of its own for each"


@pytest.mark.parametrize(
    ("device", "asked"),
    [
        ("auto", ["clocks=locked", "fan=max"]),
        ("nano", ["device=nano", "storage=edge", "power_limit=MAXN", "clocks=locked", "fan=max"]),
        ("nx", ["device=nx", "power_limit=15", "clocks=locked", "fan=max"]),
    ],
)
def test_the_edge_study_is_rehearsed_where_there_is_no_such_board(order, device, asked):
    reasons = " ".join(plan.resolve_plan(order("experiment=edge/lenet_mnist", f"device={device}")).run["rehearsal"])
    assert [text for text in asked if text not in reasons] == []
