"""`python src/train.py`: a run, and shell completion."""

import gzip
import json
import os
import re

import pytest
from project import put

from epochmeter.machine import host
from epochmeter.machine.cores import usable_cores
from epochmeter.shared.peaks_cache import cached_peaks
from epochmeter.shared.record import INTERVALS

STEPS, SAMPLES = 12, 1442  # per epoch of the digits with batch size 128
PEAKS = {"flop_per_s": 3e11, "bytes_per_s": 2e10, "launch_s": 1e-6}


@pytest.fixture(scope="module")
def completed(new_project):
    """A project with a completed run of two epochs, with trace, weights and MLflow."""
    project = new_project()
    keys = {"profiler": "torch", "tracking": "mlflow", "save_model": "true", "cache": "cold"}
    keys |= {"threads": 1, "sweep.wait_idle": 0.5, "roofline.peaks": "cached"}
    environment = {"XDG_CACHE_HOME": str(project.root / "cache"), "OMP_NUM_THREADS": "2"}
    torch, facts = pytest.importorskip("torch").__version__, host.describe()
    peaks = cached_peaks(facts.get("cpu"), keys["threads"], "fp32", torch, {}, facts)
    put(project.root / "cache/epochmeter", {os.path.basename(peaks): json.dumps(PEAKS)})
    project.done = project.run("train", *project.quick(epochs=2, **keys), **environment)
    return project


def epochs(record):
    return [window["metrics"] for window in record.windows() if window["window"] == "epoch"]


def test_completed_run_exits_with_0_and_ends_with_its_table_and_links(completed):
    assert (completed.done.returncode, completed.done.stderr) == (0, "")
    rows = [line.split()[0] for line in completed.done.stdout.splitlines() if re.match(r"epoch +s |\d+ |mean ", line)]
    assert rows == ["epoch", "1", "2", "mean"]
    (run_id,) = completed.shown("run_uuid")
    link = r"make ui, then http://127.0.0.1:5000/.*"
    for line in (f"View: +{link}{run_id}", f"Compare: +{link}viewStateShareKey="):
        assert re.search(f"^{line}", completed.done.stdout, re.MULTILINE)


def test_record_is_completed_and_has_every_file_sample_and_step(completed):
    record = completed.record()
    assert record.is_completed(record.run()["identity"])
    assert record.summary()["failure"] is None
    files = {"job.json", "host.json", "epochs.jsonl", "steps.bin", "losses.bin", "summary.json", "completed.json"}
    traced = {"memory.json", "trace.json.gz", "trace_analysis.json"}
    names = {path.name for path in record.folder.iterdir()}
    assert names == {*files, *traced, "gauges.csv", "weights.pt", "worker.log"}
    assert [(m["epoch/steps"], m["epoch/samples"]) for m in epochs(record)] == [(STEPS, SAMPLES)] * 2
    assert len(record.steps()) == 2 * STEPS * len(INTERVALS)
    with gzip.open(record.folder / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert len({event["name"] for event in events if event["name"].startswith("ProfilerStep#")}) == 5


def test_threads_of_torch_are_those_of_the_job_and_waits_for_a_core_are_measured(completed):
    """The environment of the run has OMP_NUM_THREADS=2."""
    record = completed.record()
    run = record.run()
    assert (record.job()["threads"], run["training"]["threads"]) == (1, 1)
    assert run["usable_cores"] == usable_cores()
    assert run["idle_wait"]["waited_s"] >= 0.5
    if "run_queue" not in run:  # of a kernel that counts the waits
        longest = max(epochs(record), key=lambda metrics: metrics["epoch/e2e_s"])
        if "epoch/other_cpu_fraction" in longest:
            assert 0 <= longest["epoch/run_queue_wait_fraction"] <= 1
            assert longest["epoch/runnable_threads"] > 0


def test_parts_of_an_epoch_add_up_to_a_thousandth_and_the_loss_decreases(completed):
    first, last = epochs(completed.record())
    for metrics in (first, last):
        names = ("data_stall_s", "copy_s", "compute_s", "overhead_s", "clock_residual_s")
        assert sum(metrics[f"epoch/{name}"] for name in names) == pytest.approx(metrics["epoch/e2e_s"])
        assert abs(metrics["epoch/clock_residual_s"]) <= 0.001 * metrics["epoch/e2e_s"]
    assert 0 < last["epoch/train_loss"] < first["epoch/train_loss"]


def test_utilization_is_relative_to_the_peak_that_an_earlier_run_measured(completed):
    """It was measured with as many threads: OMP_NUM_THREADS is another number."""
    assert completed.record().run()["training"]["peaks"] == PEAKS
    metrics = completed.record().summary()["metrics"]
    flop_per_s = metrics["model/flops_per_sample"] * SAMPLES / metrics["steady/e2e_s"]
    assert metrics["steady/mfu"] == pytest.approx(flop_per_s / PEAKS["flop_per_s"])
    assert "MFU: " in completed.done.stdout


def test_mlflow_shows_the_finished_run_with_params_and_metrics(completed):
    assert completed.shown("status") == ["FINISHED"]
    params = dict(completed.rows("select key, value from params"))
    choices = completed.record().run()["choices"]
    assert {group: params[group] for group in choices if group != "tracking"}.items() <= choices.items()
    assert (params["model"], params["batch"], params["epochs"]) == ("lenet", "128", "2")
    points = completed.rows("select value from metrics where key = 'epoch/e2e_s' order by step")
    measured = [metrics["epoch/e2e_s"] for metrics in epochs(completed.record())]
    assert [value for (value,) in points] == pytest.approx(measured)
    artifacts = {path.name for path in (completed.root / "mlruns").glob("*/*/artifacts/*")}
    assert {"job.json", "trace.json.gz", "weights.pt", "summary.json"} <= artifacts


def test_tab_completes_devices(project):
    completed = project.run("train", "-sc", "query=bash", COMP_LINE="python src/train.py device=n", COMP_POINT="28")
    assert completed.stdout.split() == ["device=nano", "device=nx"]
