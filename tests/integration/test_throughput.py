"""Runs that are measured between two steps, end there, are trained again for Nsight, or diverge."""

import shutil

import pytest

from epochmeter.run.launch import launched
from epochmeter.shared.record import INTERVALS, Record

pytestmark = pytest.mark.system

STEPS, BATCH = 12, 128
"""Of an epoch of QUICK."""


def throughput(start, stop, **more):
    return {"throughput.start": start, "throughput.stop": stop, **{f"throughput.{key}": on for key, on in more.items()}}


@pytest.fixture(scope="module")
def left_early(new_project):
    """A project with a run that ended at step 20, in its second epoch."""
    project = new_project()
    overrides = {**throughput(10, 20, exit="true"), "epochs": 3, "workers": 2, "log_loss": "true"}
    project.done = project.run("train", *project.quick(**overrides), check=True)
    return project


def test_run_ends_at_throughput_stop_and_is_completed_with_its_throughput(left_early):
    record = left_early.record()
    assert record.is_completed()
    assert len(record.losses()) == 20 == len(record.steps()) / len(INTERVALS)
    seen = [(line["window"], line["epoch"], line.get("partial", False)) for line in record.windows()]
    assert seen == [("epoch", 0, False), ("val", 0, False), ("epoch", 1, True)]
    assert "epoch 2: only 8 of 12 steps; excluded from the means" in left_early.done.stdout
    assert record.run()["flags"]["partial"] == "epoch 2: only 8 of 12 steps"
    # Throughput is samples divided by time of the selected steps.
    rows = record.steps()[10 * len(INTERVALS) : 20 * len(INTERVALS)]
    seconds = sum(sum(rows[INTERVALS.index(name) :: len(INTERVALS)]) for name in ("gap_s", "copy_s", "compute_s"))
    epoch_0 = record.windows()[0]["metrics"]["epoch/samples"]
    samples = BATCH + (epoch_0 - (STEPS - 1) * BATCH) + 8 * BATCH  # the last batch of epoch 0 is smaller
    metrics = record.summary()["metrics"]
    assert metrics["throughput/samples"] == samples
    assert metrics["throughput/samples_per_s"] == pytest.approx(samples / seconds)
    assert f"Throughput of 10 steps: {samples / seconds:.1f} samples/s." in left_early.done.stdout


def test_the_first_steps_are_trained_again_under_nsight(left_early, tmp_path):
    shutil.copy(left_early.record().folder / "host.json", tmp_path)
    record = Record(tmp_path)
    nsight = {"_target_": "epochmeter.worker.trace.NsightTrace", "program": "env", "start": 1, "stop": 14}
    record.describe({**left_early.record().job(), "profiler": {**nsight, "timeout_s": 60}}, left_early.record().run())
    with launched(tmp_path, None, nsight=["env"], limit_s=60) as worker:
        assert list(worker.messages()) != []
    assert (tmp_path / "nsight.log").read_text() == ""
    assert {path.name for path in tmp_path.iterdir()} == {"job.json", "host.json", "nsight.log"}


def test_non_finite_loss_is_flagged_and_the_run_continues_without_reaching_a_target(project):
    overrides = {"optimizer.lr": 1e38, "epochs": 2, "target_loss": 1e9, "tracking": "mlflow"}
    done = project.run("train", *project.quick(**overrides), check=True)
    record = project.record()
    flag = record.run()["flags"]["diverged"]
    assert flag in ("epoch 1: the loss was nan", "epoch 1: the loss was inf")
    assert f"{flag}; the training diverged, and the mean loss is omitted." in " ".join(done.stdout.split())
    assert record.summary()["metrics"]["total/epochs"] == 2
    assert not [name for name in record.summary()["metrics"] if "target" in name or name.endswith("loss")]
    assert project.rows("select value from tags where key = 'epochmeter.diverged'") == [(flag,)]
