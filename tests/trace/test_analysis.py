import json
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from kineto import Kineto
from metadata import RUN

from epochmeter.results.metrics import is_known
from epochmeter.shared.record import Record
from epochmeter.trace.analysis import analyze, analyze_run, untraced_wall_s
from epochmeter.trace.device import IDLE_CAUSES
from epochmeter.trace.kineto import load

DATA = Path(__file__).parents[1] / "data/traces"
US = 1e-6


@pytest.fixture
def kineto():
    trace = Kineto(name="GPU")
    for number in (2, 3):
        trace.step(number, number * 100, 100)
        trace.host("aten::mm", number * 100 + 10, 20)
        trace.launch("volta_sgemm_1", number * 100 + 20, 40, launched=number * 100 + 12)
    return trace


@pytest.fixture
def analyzed(kineto, tmp_path):
    """analyzed(untraced time, condition) -> the analysis of the events that meet a condition."""

    def run(untraced_s=None, keeps=lambda event: True):
        kineto.events = [event for event in kineto.events if keeps(event)]
        return analyze(kineto.load(tmp_path), untraced_s)

    return run


@pytest.fixture
def record(tmp_path):
    """A run of three epochs of two steps, and an evaluation; the first is a warm-up epoch. Steps last 1 to 6 s."""
    record = Record(tmp_path)
    record.describe({}, RUN)
    record.append_steps(array("f", [value for step in range(1, 7) for value in (0.5, 9, 0.25, step - 0.75)]))
    for epoch in range(3):
        record.append({"window": "epoch", "epoch": epoch, "warmup": epoch == 0, "metrics": {"epoch/steps": 2}})
        record.append({"window": "val", "epoch": epoch, "metrics": {}})
    return record


def test_untraced_time_is_that_of_the_same_steps_in_steady_epochs(record):
    assert untraced_wall_s(record, [1, 2, 3]) == pytest.approx(((4 + 3 + 4) + (6 + 5 + 6)) / 2)  # the next pass begins
    assert untraced_wall_s(record, []) is None


def test_overhead_of_the_profiler_does_not_lower_the_busy_fraction(analyzed):
    metrics = analyzed(100 * US)["metrics"]
    expected = {"gpu_busy_fraction": 0.8, "gpu_busy_traced_fraction": 0.4, "traced_step_s": 100 * US,
                "untraced_step_s": 50 * US, "kernels_per_step": 1, "operators_per_step": 1,
                "precision_fp32_fraction": 1}  # fmt: skip
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(("untraced_us", "busy"), [(82, 80 / 82), (78, 1.0), (40, None)])
def test_a_fraction_above_one_is_absent_or_one_within_the_errors(analyzed, untraced_us, busy):
    result = analyzed(untraced_us * US)
    assert result["metrics"].get("gpu_busy_fraction") == (busy and pytest.approx(busy))
    assert ["200 %" in reason for reason in result["missing"][1:]] == ([] if busy else [True])


def test_compute_utilization_of_the_tbd_suite(tmp_path):
    """The example of the suite's README: a session of 1.609 s with 1.3 s of profiling overhead, and a raw 0.5 %."""
    trace = Kineto()
    trace.step(0, 0, 1.609e6)
    for device in (0, 1):
        trace.launch("gemm", 100, 0.005 * 1.609e6, launched=10, device=device)
    metrics = analyze(trace.load(tmp_path), 1.609 - 1.3)["metrics"]
    assert metrics["gpu_busy_traced_fraction"] == pytest.approx(0.005)
    assert metrics["gpu_busy_fraction"] == pytest.approx(0.026, abs=0.0005)


def test_unknown_metrics_are_absent_with_the_reason(analyzed, kineto):
    result = analyzed()
    absent = "gpu_busy_fraction", "untraced_step_s", "sm_efficiency", "copy_overlap_fraction", "communication_fraction"
    assert ({*absent} & result["metrics"].keys(), len(result["missing"])) == (set(), 2)
    for event in kineto.events:
        event["name"] = "some_kernel" if event["cat"] == "kernel" else event["name"]
    assert result["metrics"].keys() - analyzed()["metrics"].keys() >= {"tensor_core_fraction"}
    (reason,) = analyzed(1.0, lambda event: event["cat"] != "kernel")["missing"]
    assert "NVreg_RestrictProfilingToAdminUsers=0" in reason, "launches without kernels name the option of the driver"
    result = analyzed(1.0, lambda event: event["cat"] not in ("kernel", "cuda_runtime"))
    assert (result["device"], result["missing"]) == (None, ["no metrics of a GPU: the trace has no kernels"])
    assert result["metrics"]["host_busy_fraction"] == pytest.approx(0.2)


def test_occupancy_may_be_unknown_alone(analyzed, kineto):
    for event in kineto.events:
        event["args"].update({"blocks per SM": 0.5, "warps per SM": 4, "est. achieved occupancy %": 0})
    result = analyzed(1.0)
    assert (result["metrics"]["sm_efficiency"], "achieved_occupancy" in result["metrics"]) == (0.5, False)
    assert result["missing"] == ["no occupancy: the trace of this device does not contain them"]


def test_trace_without_steps_has_the_time_of_the_device_only(analyzed):
    result = analyzed(keeps=lambda event: not event["name"].startswith("ProfilerStep"))
    assert (result["attribution"], "kernels_per_step" in result["metrics"]) == (None, False)
    assert result["metrics"]["gpu_busy_traced_fraction"] == pytest.approx(80 / 140)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json.gz")), ids=lambda path: path.name[:8])
def test_real_traces_have_only_listed_metrics(path):
    result = analyze(load(path), 1.0)
    assert [name for name in result["metrics"] if not is_known(f"trace/{name}")] == []
    time = result["device"]
    assert time["busy_s"] + sum(time[f"idle_{cause}_s"] for cause in IDLE_CAUSES) == pytest.approx(time["wall_s"])


def test_the_process_writes_the_analysis_of_a_run(record, kineto):
    kineto.write(record.folder / "trace.json.gz")
    assert analyze_run(record.folder) == record.trace_analysis()
    (record.folder / "trace.json.gz").write_bytes(b"")
    command = [sys.executable, "-m", "epochmeter.trace.analysis", str(record.folder)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2] / "src", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["message"].endswith("is empty")
    assert json.loads((record.folder / "trace_analysis.json").read_text())["metrics"]
