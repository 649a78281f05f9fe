"""`python src/train.py` as a person types it: one run, a rehearsal, and what is asked without training."""

import gzip
import json
import re
import time

import pytest

from epochmeter.machine import device_lock
from epochmeter.shared.record import INTERVALS

STEPS, SAMPLES = 12, 1442
"""Of an epoch of the digits in batches of 128."""
LENIENT_S = 5


@pytest.fixture(scope="module")
def whole(new_project):
    """A project in which a run of two epochs, with a trace, its weights and MLflow, came to its end."""
    project = new_project()
    asked = project.quick(epochs=2, profiler="torch", tracking="mlflow", save_model="true", cache="cold")
    project.done = project.run("train", *asked)
    return project


def epochs(record):
    return [window["metrics"] for window in record.windows() if window["window"] == "epoch"]


def test_a_run_that_is_completed_exits_with_0_and_nothing_on_stderr(whole):
    assert (whole.done.returncode, whole.done.stderr) == (0, "")
    assert whole.record().is_completed(whole.record().run()["identity"])
    assert whole.record().summary()["failure"] is None


def test_a_run_ends_with_its_table_and_the_links_that_open_it(whole):
    rows = [line.split()[0] for line in whole.done.stdout.splitlines() if re.match(r"epoch +s |\d+ |mean ", line)]
    assert rows == ["epoch", "1", "2", "mean"]
    (run_id,) = whole.shown("run_uuid")
    assert re.search(rf"^View: +make ui, then http://127.0.0.1:5000/.*{run_id}", whole.done.stdout, re.MULTILINE)
    assert re.search(
        r"^Compare: +make ui, then http://127.0.0.1:5000/.*viewStateShareKey=", whole.done.stdout, re.MULTILINE
    )


def test_a_record_is_all_its_files_and_nothing_half_written(whole):
    record = whole.record()
    named = {path.name for path in record.folder.iterdir()}
    told = {"job.json", "host.json", "epochs.jsonl", "steps.bin", "losses.bin", "summary.json", "completed.json"}
    assert named == {*told, "trace.json.gz", "weights.pt", "worker.log"}


def test_the_clock_accounts_for_every_epoch_to_a_thousandth(whole):
    assert len(epochs(whole.record())) == 2
    for metrics in epochs(whole.record()):
        names = ("data_stall_s", "copy_s", "compute_s", "overhead_s", "clock_residual_s")
        assert sum(metrics[f"epoch/{name}"] for name in names) == pytest.approx(metrics["epoch/e2e_s"])
        assert abs(metrics["epoch/clock_residual_s"]) <= 0.001 * metrics["epoch/e2e_s"]


def test_every_sample_is_seen_once_an_epoch_and_every_step_is_kept(whole):
    record = whole.record()
    assert [(m["epoch/steps"], m["epoch/samples"]) for m in epochs(record)] == [(STEPS, SAMPLES)] * 2
    assert len(record.steps()) == 2 * STEPS * len(INTERVALS)


def test_a_model_learns(whole):
    first, last = (metrics["epoch/train_loss"] for metrics in epochs(whole.record()))
    assert 0 < last < first


def test_energy_is_there_with_its_source_or_absent_with_the_reason(whole):
    energy = whole.record().run()["energy"]
    named = "total/energy_j" in whole.record().summary()["metrics"]
    assert named == (energy["source"] in ("counter", "sampled"))
    if not named:
        assert "warning: energy was not measured: " in whole.done.stdout


def test_the_trace_opens_and_shows_the_steps_it_recorded(whole):
    with gzip.open(whole.record().folder / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert len({event["name"] for event in events if event["name"].startswith("ProfilerStep#")}) == 5


def test_mlflow_shows_the_run_as_finished_with_what_was_typed_and_measured(whole):
    assert whole.shown("status") == ["FINISHED"]
    params = dict(whole.rows("select key, value from params"))
    choices = whole.record().run()["choices"]
    assert {group: params[group] for group in choices if group != "tracking"}.items() <= choices.items()
    assert (params["model"], params["batch"], params["epochs"]) == ("lenet", "128", "2")
    points = whole.rows("select value from metrics where key = 'epoch/e2e_s' order by step")
    assert [value for (value,) in points] == pytest.approx(
        [metrics["epoch/e2e_s"] for metrics in epochs(whole.record())]
    )
    artifacts = {path.name for path in (whole.root / "mlruns").glob("*/*/artifacts/*")}
    assert {"job.json", "trace.json.gz", "weights.pt", "summary.json"} <= artifacts


def test_publishing_a_run_that_is_shown_already_adds_nothing(whole):
    before = whole.rows("select count(*) from metrics")
    assert whole.run("publish").returncode == 0
    assert whole.rows("select count(*) from metrics") == before
    assert whole.shown("status") == ["FINISHED"]


def test_a_device_that_this_machine_is_not_is_rehearsed_and_says_so_first_and_last(project):
    done = project.run("train", *project.quick(device="nano", power_limit=10))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith(
        "REHEARSAL, not a result of the requested configuration: device=nano requested, this machine is device="
    )
    assert lines[-1] == lines[0]
    run = project.record().run()
    assert (run["choices"]["device"], len(run["rehearsal"]), run["power_limit_applied"]) == ("nano", 2, None)


def test_rehearse_false_makes_each_run_of_such_a_sweep_an_error_and_leaves_no_run(project):
    done = project.run("train", "-m", "batch=8,16,32", "device=nano,nx", "rehearse=false")
    assert done.returncode == 1
    failures = r"^error: runs (.*) failed: device=(\w+) requested, this machine is device="
    assert re.findall(failures, done.stdout, re.MULTILINE) == [("0, 2, 4", "nano"), ("1, 3, 5", "nx")]
    assert project.records() == []


def test_a_second_run_waits_for_the_device_and_says_for_whom(project):
    with device_lock.lock_devices(["cpu"], str(project.root / "locks"), "pid 4711 since noon: python train.py", print):
        waiting = project.start("train", *project.quick(device="cpu", **{"storage.root": "/nowhere"}))
        lines = iter(waiting.stdout.readline, "")
        said = next(line for line in lines if line.startswith("Waiting"))
        assert re.match(r"Waiting for cpu, in use by pid 4711 since noon: python train\.py\.", said)
        time.sleep(0.5)
        assert waiting.poll() is None
        assert project.records() == []
    assert waiting.wait(timeout=60) == 1
    assert len(project.records()) == 1


@pytest.mark.parametrize("asked", [["--help"], ["--cfg", "job"]], ids=" ".join)
def test_what_needs_no_training_is_answered_at_once_without_torch_or_mlflow(project, asked):
    begun = time.monotonic()
    done = project.run("train", *asked, PYTHONPROFILEIMPORTTIME="1")
    assert time.monotonic() - begun < LENIENT_S
    assert done.returncode == 0
    assert re.search("^ *batch[=:] ?16", done.stdout, re.MULTILINE)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "hydra" in imported
    assert not {"torch", "mlflow", "sklearn", "pandas"} & imported
    assert not (project.root / "multirun").exists()


def test_cfg_shows_what_would_run(project):
    text = project.run("train", "--cfg", "job", "device=nano", "model=torchvision", "batch=8").stdout
    assert "\nbatch: 8\n" in text
    assert "  title: Jetson Nano\n" in text


def test_tab_completes_devices_and_keys(project):
    completed = project.run("train", "-sc", "query=bash", COMP_LINE="python src/train.py device=n", COMP_POINT="28")
    assert completed.stdout.split() == ["device=nano", "device=nx"]
    keys = project.run("train", "-sc", "query=bash", COMP_LINE="python src/train.py epo", COMP_POINT="23")
    assert keys.stdout.split() == ["epochs="]
