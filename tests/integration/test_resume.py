"""A stopped run resumes from its checkpoint, with the results of an uninterrupted run."""

import signal

import pytest

from epochmeter.shared.record import CHECKPOINT

pytestmark = pytest.mark.system

OURS = {"epochs": 6, "batch": 64, "checkpoint.every": 2, "workers": 0}


@pytest.fixture(scope="module")
def ended_by(new_project):
    """ended_by(signal, *flags, **overrides) -> a project with a run that was stopped in an epoch after a checkpoint."""

    def end(number, *flags, **overrides):
        project = new_project()
        project.arguments = project.quick(*flags, **{**OURS, **overrides})
        process = project.start("train", *project.arguments)
        project.until(lambda: any((record.checkpoint() or {}).get("epochs") == 2 for record in project.records()))
        record = project.record()
        project.until(lambda: len(record.windows()) > 4)
        process.send_signal(number)
        process.communicate(timeout=60)
        project.until(lambda: not project.at_work_in(record.folder), limit_s=10)
        assert not record.is_completed(), "it was completed before the signal came"
        return project

    return end


@pytest.fixture(scope="module")
def never_ended(new_project):
    """The record of the same run, uninterrupted and without checkpoints."""
    project = new_project()
    project.run("train", *project.quick(**{**OURS, "checkpoint.every": "null"}), check=True)
    return project.record()


def learned(record):
    """Return the loss of each step, and loss and accuracy of each window."""
    values = [(line["epoch"], name, value) for line in record.windows() for name, value in line["metrics"].items()]
    return list(record.losses()), [value for value in values if value[1].endswith(("loss", "accuracy"))]


@pytest.fixture(scope="module")
def killed(ended_by):
    """A killed run of a sweep, after the same command was run again."""
    project = ended_by(signal.SIGKILL, "-m")
    project.before = project.record().run()
    *project.kept, project.cut = project.record().windows()[:4]
    project.run("train", *project.arguments, check=True)
    return project


def test_resumed_run_has_exactly_the_results_of_an_uninterrupted_one(killed, never_ended):
    assert learned(killed.record()) == learned(never_ended)
    assert killed.record().is_completed()
    assert not (killed.record().folder / CHECKPOINT).exists()
    # Only the evaluation and the epochs after the checkpoint are measured again.
    windows = killed.record().windows()
    assert windows[:3] == killed.kept
    assert (windows[3]["window"], windows[3]["epoch"]) == ("val", killed.cut["epoch"])
    assert windows[3]["opened_ns"] > killed.cut["closed_ns"]
    assert [window["epoch"] for window in windows] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_record_keeps_its_identity_and_has_the_resumption_which_its_means_exclude(killed):
    run = killed.record().run()
    assert {key: run[key] for key in ("record_id", "started", "clock")}.items() <= killed.before.items()
    assert run["pid"] != killed.before["pid"]
    (start,) = run["resumed"]
    assert start["epoch"] == 2
    assert start["clock"]["monotonic_ns"] > killed.before["clock"]["monotonic_ns"]
    assert "resumed from the checkpoint after epoch 2." in killed.record().summary()["notes"]
    # Totals include all windows, and steady means exclude the resumed epoch.
    windows, metrics = killed.record().windows(), killed.record().summary()["metrics"]
    seconds = [window["metrics"][f"{window['window']}/e2e_s"] for window in windows]
    assert metrics["total/e2e_s"] == pytest.approx(sum(seconds))
    assert metrics["total/epochs"] == 6
    steady = [w["metrics"]["epoch/e2e_s"] for w in windows if w["window"] == "epoch" and w["epoch"] in (1, 3, 4, 5)]
    assert metrics["steady/e2e_s"] == pytest.approx(sum(steady) / 4)


def test_account_joins_the_attempts_and_what_was_trained_again_is_lost(killed):
    metrics, (attempt,) = killed.record().summary()["metrics"], killed.record().run()["attempts"]
    rows = {name: value for name, value in metrics.items() if name.startswith("run/") and name.endswith("_s")}
    wall_s, gap_s = rows.pop("run/wall_s"), rows.pop("run/gap_s")
    assert sum(rows.values()) == pytest.approx(wall_s)
    assert abs(rows["run/residual_s"]) <= 0.001 * wall_s
    moments, last = attempt["moments"], killed.record().run()["moments"]
    assert (last["command_ns"] - moments["recorded_ns"]) / 1e9 == pytest.approx(gap_s, abs=0.1)
    kept_ns = killed.kept[-1]["closed_ns"]
    assert rows["run/lost_s"] == pytest.approx((moments["recorded_ns"] - kept_ns) / 1e9)
    assert killed.cut["closed_ns"] < moments["recorded_ns"]


def test_several_ranks_resume_together(ended_by):
    """The third epoch, which the killed run had trained too, has the same losses and scores."""
    project = ended_by(signal.SIGKILL, "-m", strategy="ddp", **{"strategy.ranks": 2, "epochs": 4})
    losses, scores = learned(project.record())
    project.run("train", *project.arguments, check=True)
    (start,) = project.record().run()["resumed"]
    assert start["epoch"] == 2 <= scores[-1][0]
    again, scored = learned(project.record())
    assert (again[: len(losses)], scored[: len(scores)]) == (losses, scores)
    assert project.record().is_completed()


def test_single_run_with_workers_resumes_and_mlflow_shows_it_once(ended_by, never_ended):
    project = ended_by(signal.SIGINT, tracking="mlflow", workers=2)
    (note,) = (note for note in project.record().summary()["notes"] if "checkpoint" in note)
    assert note == "a checkpoint after epoch 2 is kept: run the same command with `sweep.resume=true` to resume"
    assert project.shown("status") == ["KILLED"]
    (before,) = project.shown("run_uuid")
    points = "select key, step from metrics where key not like 'power/%' and key not like 'system/%'"
    assert {step for key, step in project.rows(points) if key == "epoch/train_loss"} == {0, 1}
    project.run("train", *project.arguments, "sweep.resume=true", check=True)
    assert learned(project.record()) == learned(never_ended)
    assert project.shown("run_uuid") == [before]
    assert project.shown("status") == ["FINISHED"]
    shown = project.rows(points)
    assert len(shown) == len(set(shown))
    assert {step for key, step in shown if key == "epoch/train_loss"} == set(range(6))
    assert project.rows("select count(*) from tags where key = 'epochmeter.failure'") == [(0,)]
    (total,) = project.rows("select value from metrics where key = 'total/e2e_s'")
    assert total == (pytest.approx(project.record().summary()["metrics"]["total/e2e_s"]),)


def test_run_killed_after_reaching_its_target_trains_no_more(new_project):
    """The run is killed within or after its last evaluation: only that and the end remain to be done."""
    project = new_project()
    arguments = project.quick("-m", **{**OURS, "target_loss": 100, "checkpoint.every": 1, "profiler": "torch"})
    process = project.start("train", *arguments)
    project.until(lambda: any(record.checkpoint() for record in project.records()))
    process.kill()
    process.communicate()
    record = project.record()
    project.until(lambda: not project.at_work_in(record.folder))
    assert not record.is_completed(), "it was completed before it was killed"
    trained, *_ = record.windows()
    project.run("train", *arguments, check=True)
    first, evaluated = record.windows()
    assert (first, evaluated["window"]) == (trained, "val")
    assert record.is_completed()
    assert record.summary()["metrics"]["total/epochs"] == 1
