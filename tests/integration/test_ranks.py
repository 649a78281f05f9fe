"""Runs of several ranks, as commands."""

from pathlib import Path

import pytest
from project import QUICK

pytestmark = pytest.mark.system

OLD = Path(__file__).parents[2] / ".py36" / "bin" / "python"
DDP = {"strategy": "ddp", "device": "cpu", "profiler": "torch"}


@pytest.fixture(scope="module")
def two(new_project):
    """A project with a run of two ranks, which ended at step 9, in its second epoch."""
    project = new_project()
    keys = {**DDP, "epochs": 2, "workers": 1, "tracking": "mlflow", "save_model": "true", "strategy.ranks": 2}
    keys |= {"throughput.start": 2, "throughput.stop": 9, "throughput.exit": "true"}
    project.run("train", *project.quick(**keys), check=True)
    return project


def test_two_ranks_are_one_run_with_means_and_maxima_over_ranks(two):
    record = two.record()
    assert record.is_completed()
    assert record.run()["rehearsal"] == []
    assert record.run()["training"].items() >= {"ranks": 2, "backend": "gloo", "gpus": []}.items()
    assert {"weights.pt", "trace.json.gz"} <= {path.name for path in record.folder.iterdir()}
    names = {name for (name,) in two.rows("select distinct key from metrics")}
    assert {"epoch/e2e_s", "rank_max/e2e_s", "rank_max/data_stall_s"} <= names
    metrics = record.windows()[0]["metrics"]
    for part in ("e2e_s", "data_stall_s", "compute_s", "overhead_s"):
        assert metrics[f"rank_max/{part}"] >= metrics[f"epoch/{part}"] > 0
    assert metrics["epoch/steps"] == 6
    (line, *_), rows = record.windows(), record.rank_rows()
    assert [rank["rank"] for rank in line["of_ranks"]] == [0, 1]
    for number, rank in enumerate(line["of_ranks"]):
        assert rank["own_s"] + rank["communication_s"] == pytest.approx(rank["e2e_s"])
        assert 0 <= rank["rank_wait_s"] <= rank["communication_s"]
        of_rank = rows[4 * 6 * number : 4 * 6 * (number + 1)]
        assert sum(of_rank[3::4]) == pytest.approx(rank["communication_s"], rel=1e-4)
        assert sum(of_rank[1::4]) == pytest.approx(rank["data_stall_s"], rel=1e-4)
    assert len(rows) == 4 * 2 * 9, "the steps of both epochs"
    assert "straggler/excess_s" in record.summary()["absent"], "there are too few steps"


def test_ranks_all_end_at_the_same_step(two):
    record, batch = two.record(), QUICK["batch"]
    first, last = (window["metrics"]["epoch/samples"] for window in record.windows() if window["window"] == "epoch")
    assert len(record.steps()) // 4 == len(record.losses()) == 9
    assert last == 2 * 3 * batch
    assert record.summary()["metrics"]["throughput/samples"] == first - 2 * 2 * batch + last
    assert two.at_work_in(record.folder) == []
    # All samples are seen, and those of the evaluation once.
    splits = record.run()["dataset"]["splits"]
    assert record.windows()[0]["metrics"]["epoch/samples"] == splits["train"] + splits["train"] % 2
    correct = record.windows()[1]["metrics"]["val/accuracy"] * splits["val"]
    assert correct == pytest.approx(round(correct))


def test_two_ranks_on_a_boards_old_python(project):
    if not OLD.exists():
        pytest.skip(f"no Python 3.6 here: `make py36` makes {OLD}")
    project.run("train", *project.quick(**DDP, **{"device.python": OLD}), check=True)
    training = project.record().run()["training"]
    assert training["python"].startswith("3.6.")
    assert training["ranks"] == 2
