"""`python src/train.py -m ...`: runs one after another, resume, and one folder per measurement."""

import re
import shutil

import pytest
import stub

from epochmeter.report.build import build_report
from epochmeter.report.runs.load import read_sweep


@pytest.fixture(scope="module")
def swept(new_project):
    """A project with a completed sweep of one run."""
    project = new_project()
    project.arguments = project.stubbed("-m", device="nano")
    project.done = project.run("train", *project.arguments, check=True)
    return project


def table(output):
    """Return the state by run number in the table at the end of a sweep."""
    rows = output[output.index("\nrun") :].splitlines()
    matches = (re.match(r"(\d+) .*?(completed|skipped|reused|failed|killed)", row) for row in rows)
    return {match[1]: match[2] for match in matches if match}


def test_sweep_ends_with_its_table_and_marks_a_rehearsal_in_the_first_and_last_line(swept):
    assert table(swept.done.stdout) == {"0": "completed"}
    lines = swept.done.stdout.splitlines()
    assert lines[0].startswith("REHEARSAL")
    assert lines[-1] == lines[0]


def test_completed_sweep_is_shown_and_not_measured_again(swept):
    before = swept.record().run()
    done = swept.run("train", *swept.arguments, check=True)
    assert table(done.stdout) == {"0": "skipped"}
    assert swept.record().run() == before
    assert len(swept.sweeps()) == 1
    assert done.stdout.splitlines()[-1].startswith("REHEARSAL")


def test_failed_run_does_not_stop_the_sweep_and_only_it_runs_again(project):
    pythons = f"{stub.failing(project.root)},{stub.program(project.root)}"
    arguments = project.stubbed("-m", **{"device.python": pythons})
    first = project.run("train", *arguments)
    assert (first.returncode, table(first.stdout)) == (1, {"0": "failed", "1": "completed"})
    assert re.search(r"^error: run 0 failed: ", first.stdout, re.MULTILINE)
    failed, completed = project.records()
    assert failed.summary()["state"] == "failed"

    second = project.run("train", *arguments)
    assert (second.returncode, table(second.stdout)) == (1, {"0": "failed", "1": "skipped"})
    assert len(project.sweeps()) == 1
    assert (failed.folder / "attempt1" / "summary.json").exists()
    assert not (completed.folder / "attempt1").exists()


def test_completed_runs_count_although_their_dataset_is_not_here(project):
    keys = {"dataset": "digits", "epochs": 1}
    project.run("train", *project.stubbed("-m", **keys), check=True)
    (project.root / "data").unlink()  # as in a fresh checkout with the records of another one
    again = project.run("train", *project.stubbed("-m", **keys), check=True)
    assert table(again.stdout) == {"0": "skipped"}
    grown = project.run("train", *project.stubbed("-m", **{**keys, "batch": 1, "seed": 0}), check=True)
    assert table(grown.stdout) == {"0": "reused"}
    assert not (project.root / "data").exists()


def test_key_that_only_swept_options_have_is_set_and_recorded_as_typed(project):
    options = {"scheduler": "step,multistep", "scheduler.gamma": 0.5}  # the default, `none`, has no gamma
    project.run("train", *project.stubbed("-m", **options), check=True)
    jobs = [record.job()["scheduler"] for record in project.records()]
    assert [(job["name"], job["gamma"]) for job in jobs] == [("step", 0.5), ("multistep", 0.5)]
    assert " scheduler.gamma=0.5 " in project.records()[0].run()["command"] + " "
    project.run("train", *project.stubbed("-m", **options), check=True)
    assert len(project.sweeps()) == 1
    refused = project.run("train", *project.stubbed("-m", scheduler="step,cosine", **{"scheduler.gamma": 0.5}))
    assert refused.returncode == 1
    assert "error: `scheduler=cosine` has no key `gamma`\n" in refused.stderr


def test_sweep_whose_first_runs_fail_with_the_same_error_is_stopped(project):
    arguments = project.stubbed("-m", **{"device.python": stub.failing(project.root)}, repeat="0,1,2,3")
    done = project.run("train", *arguments)
    assert (done.returncode, table(done.stdout)) == (1, dict.fromkeys("012", "failed"))
    assert done.stderr.startswith("error: the sweep was stopped")
    assert len(project.records()) == 3


def points(project):
    """Return batch size and repeat by run number."""
    return {record.run()["number"]: (record.job()["batch"], record.job()["repeat"]) for record in project.records()}


@pytest.mark.system
def test_sweep_in_random_order_resumes_under_the_same_numbers(project):
    arguments = project.stubbed("-m", "sweep.repeats=2", "sweep.order=random", batch="1,2,3")
    first = project.run("train", *arguments, check=True)
    assert "\x1b" not in first.stdout
    measured = points(project)
    assert [repeat for _, (_, repeat) in sorted(measured.items())] == [0, 0, 0, 1, 1, 1]
    assert len(set(measured.values())) == 6
    assert re.search(r"^\[4/6\] run 3: repeat=1 batch=\d: ", first.stdout, re.MULTILINE)
    (project.records()[4].folder / "completed.json").unlink()
    again = project.run("train", *arguments)
    assert table(again.stdout) == {**dict.fromkeys("01235", "skipped"), "4": "completed"}
    assert points(project) == measured
    assert len(project.sweeps()) == 1


@pytest.mark.system
def test_a_grown_grid_measures_only_new_configurations_unless_again_is_set(project):
    project.run("train", *project.stubbed("-m", batch="1,2"), check=True)
    grown = project.run("train", *project.stubbed("-m", batch="4,2,1"), check=True)
    old, new = project.sweeps()
    batches = sorted((record.folder.parent, record.job()["batch"]) for record in project.records())
    assert batches == [(old, 1), (old, 2), (new, 4)]
    assert f"batch=2: reused from multirun/{old.name}/1\n" in grown.stdout
    assert f"batch=1: reused from multirun/{old.name}/0\n" in grown.stdout
    assert table(grown.stdout) == {"0": "completed", "1": "reused", "2": "reused"}

    notes = " ".join(build_report(read_sweep(new)).notes)
    assert f"Reused: 2 of 3 runs, measured by other commands: {old.name}/1, {old.name}/0." in notes
    shutil.rmtree(old / "0")
    project.run("train", *project.stubbed("-m", batch="4,2,1"), check=True)
    assert {record.job()["batch"] for record in project.records() if record.folder.parent == new} == {1, 4}


def test_invalid_input_is_refused_and_leaves_no_files(project):
    done = project.run("train", "-m", "batch=8,0", f"machine.lock_dir={project.root}/locks")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: Nothing is trained: 1 of 2 configurations are refused\nerror: `batch=0` is not valid" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in project.root.iterdir()} == {"src", "conf", "data", "mlflow.db"}


@pytest.mark.system
def test_same_command_publishes_runs_measured_while_mlflow_was_unreachable(project):
    arguments = project.stubbed("-m", tracking="mlflow")
    project.run("train", *arguments, check=True, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert project.record().is_completed()
    shutil.copy(project.root / "mlflow.db", project.root / "other.db")
    project.run("publish", "--uri", f"sqlite:///{project.root}/other.db", check=True)
    assert project.shown("status") == []
    again = project.run("train", *arguments)
    assert "skipped" in again.stdout
    assert project.shown("status") == ["FINISHED"]
