"""The notebook of the documentation, executed on published traces and on runs."""

import json
import shutil
from pathlib import Path

import pytest
from sweeps import reaching, write

NOTEBOOKS = Path(__file__).parents[3] / "docs/notebooks"


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """execute() -> the names that the notebook defines, in a copy of its folder."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    folder = shutil.copytree(NOTEBOOKS, tmp_path / "docs/notebooks")
    monkeypatch.chdir(folder)

    def run():
        names = {}
        for cell in json.loads((folder / "energy_time.ipynb").read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)  # noqa: S102 the cells of the notebook
        matplotlib.pyplot.close("all")
        return names

    return run


def test_published_traces_give_the_time_and_the_energy_to_accuracy_of_the_study(execute):
    names = execute()
    points = names["published"]
    assert sorted(points["batch"].unique()) == [128, 192, 256, 360], "batch 64 never reached the target"
    assert len(points) == 4 * 7
    (row,) = points[(points["batch"] == 128) & (points["power_limit_w"] == 100)].to_dict("records")
    time_h = (32 + 34 + 33 + 31 + 31) / 5 * 6824.416666666667 / 3600
    assert row["tta_h"] == pytest.approx(time_h)
    assert row["eta_kwh"] == pytest.approx(time_h * 99.49691145647238 / 1000)
    front = names["pareto_front"](points)
    assert front["tta_h"].is_monotonic_increasing
    assert front["eta_kwh"].is_monotonic_decreasing
    assert names["cheapest"](points, 0)["tta_h"] == points["tta_h"].min() == front["tta_h"].iloc[0]
    assert names["cheapest"](points, 1)["eta_kwh"] == points["eta_kwh"].min() == front["eta_kwh"].iloc[-1]
    assert names["measured"].empty, "there are no runs"


def test_runs_that_reached_their_target_are_drawn_and_repeats_averaged(execute, tmp_path):
    sweep = tmp_path / "multirun" / "2026-11-30_12-00-00-aa"
    for number, (batch, hours, kwh) in enumerate([(64, 1.0, 0.2), (64, 3.0, 0.4), (128, None, None), (256, 1.5, 0.1)]):
        seconds, joules = (hours and 3600 * hours), (kwh and 3.6e6 * kwh)
        run = reaching(number, seconds, joules, batch=batch, repeat=number)
        run.metrics["total/power_limit_w"] = 150.0
        write(sweep, run)
    measured = execute()["measured"]
    assert measured.to_dict("list") == {
        "batch": [64, 256], "power_limit_w": [150.0, 150.0],
        "tta_h": [pytest.approx(2.0), pytest.approx(1.5)], "eta_kwh": [pytest.approx(0.3), pytest.approx(0.1)],
    }  # fmt: skip
