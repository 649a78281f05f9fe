"""Runs of several ranks, as commands."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.system

OLD = Path(__file__).parents[2] / ".py36" / "bin" / "python"


def strategy(project, name, *arguments, **overrides):
    """Run a strategy, and return the process and its output as one line."""
    done = project.run("train", *project.quick(**{"strategy": name, "device": "cpu", **overrides}), *arguments)
    return done, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def two(new_project):
    """A project with a run of two ranks, and its output."""
    project = new_project()
    done, output = strategy(project, "ddp", "strategy.ranks=2", profiler="torch", tracking="mlflow", save_model="true")
    assert done.returncode == 0, output
    return project, output


def test_two_ranks_are_one_run_with_means_and_maxima_over_ranks(two):
    project, _ = two
    record = project.record()
    assert record.is_completed()
    assert record.run()["rehearsal"] == []
    training = record.run()["training"]
    assert (training["ranks"], training["backend"], training["gpus"]) == (2, "gloo", [])
    assert (record.folder / "weights.pt").exists()
    assert (record.folder / "trace.json.gz").exists()
    names = {name for (name,) in project.rows("select distinct key from metrics")}
    assert {"epoch/e2e_s", "rank_max/e2e_s", "rank_max/data_stall_s"} <= names
    metrics = record.windows()[0]["metrics"]
    for part in ("e2e_s", "data_stall_s", "compute_s", "overhead_s"):
        assert metrics[f"rank_max/{part}"] >= metrics[f"epoch/{part}"] > 0
    assert len(record.steps()) // 4 == len(record.losses()) == metrics["epoch/steps"]


def test_all_samples_are_seen_and_those_of_the_evaluation_once(two):
    record = two[0].record()
    splits = record.run()["dataset"]["splits"]
    assert record.windows()[0]["metrics"]["epoch/samples"] == splits["train"] + splits["train"] % 2
    right = record.windows()[1]["metrics"]["val/accuracy"] * splits["val"]
    assert right == pytest.approx(round(right))


def test_two_ranks_on_a_boards_old_python(project):
    if not OLD.exists():
        pytest.skip(f"no Python 3.6 here: `make py36` makes {OLD}")
    done, output = strategy(project, "ddp", profiler="torch", **{"device.python": OLD})
    assert done.returncode == 0, output
    training = project.record().run()["training"]
    assert training["python"].startswith("3.6.")
    assert training["ranks"] == 2
