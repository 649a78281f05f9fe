import gzip
import json
from pathlib import Path

import pytest
from kineto import Kineto

from epochmeter.shared.pipes import DURATION, PIPES
from epochmeter.trace.nsight import NsightError, analyze_pipes

DATA = Path(__file__).parents[1] / "data/nsight"
TENSOR = PIPES["tensor"]


@pytest.mark.parametrize("layout", ["columns", "rows"])
def test_pipes_are_weighted_by_the_time_of_kernels_in_both_layouts(layout):
    result = analyze_pipes(DATA / f"{layout}.csv")
    assert result["missing"] == []
    assert result["metrics"] == pytest.approx(
        {
            "pipe_fma_fraction": (1180 * 0.025 + 20 * 0.125) / 1200,
            "pipe_alu_fraction": (1180 * 0.05 + 20 * 0.1) / 1200,
            "pipe_fp16_fraction": 0.0,
            "pipe_tensor_fraction": (80 * 0.6 + 1100 * 0.7) / 1200,
            "pipe_xu_fraction": 20 * 0.5 / 1200,
        }
    )
    gemm, other = result["kernels"]
    assert (gemm["calls"], other["calls"]) == (2, 1)
    assert (gemm["total_s"], result["total_s"]) == pytest.approx((1180e-6, 1200e-6))
    assert gemm["tensor"] == pytest.approx((80 * 0.6 + 1100 * 0.7) / 1180)


def test_durations_of_a_file_may_have_different_units(tmp_path):
    text = (DATA / "rows.csv").read_text().replace('"nsecond","1,100,000"', '"msecond","1.1"')
    (tmp_path / "ncu.csv").write_text(text)
    assert analyze_pipes(tmp_path / "ncu.csv")["total_s"] == pytest.approx(1200e-6)


@pytest.mark.parametrize("value", ["n/a", "", "65,77", "nan"])
def test_a_pipe_that_is_unknown_for_a_kernel_is_absent(tmp_path, value):
    path = tmp_path / "ncu.csv"
    path.write_text((DATA / "columns.csv").read_text().replace('"60.00"', f'"{value}"'))
    result = analyze_pipes(path)
    assert "pipe_tensor_fraction" not in result["metrics"]
    assert result["metrics"]["pipe_xu_fraction"] == pytest.approx(20 * 0.5 / 1200)
    (reason,) = result["missing"]
    assert TENSOR in reason


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "is no CSV of Nsight Compute"),
        ("==PROF== Connected\n==ERROR== unrecognised option '--page'\n", "^unrecognised option '--page'$"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", "NVreg_RestrictProfilingToAdminUsers=0"),
        ('"ID","Kernel Name"\n"0","' + "x" * 140000 + '"\n', "is damaged"),
        ('"ID","Name"\n"0","gemm"\n', "unknown layout"),
        ('"ID","Kernel Name"\n"","\n', "has no kernels"),
        ('"ID","Kernel Name"\n"0","gemm"\n', "kernel without `gpu__time_duration.sum`"),
    ],
)
def test_a_file_without_kernels_is_an_error_with_its_cause(tmp_path, text, cause):
    path = tmp_path / "ncu.csv"
    path.write_text(text)
    with pytest.raises(NsightError, match=cause):
        analyze_pipes(path)


def test_pipes_of_a_real_trace_with_counters_are_weighted_by_the_counted_duration(tmp_path):
    """The form is that of an A100's trace; its counters get names of pipes, and a duration."""
    trace = json.loads(gzip.decompress((DATA / "counters.json.gz").read_bytes()))
    with pytest.raises(NsightError, match="has a kernel without `gpu__time_duration"):
        analyze_pipes(DATA / "counters.json.gz")
    counted = [event for event in trace["traceEvents"] if event.get("cat") == "cuda_profiler_range"]
    for number, event in enumerate(counted):
        percents = {metric: 10.0 * place for place, metric in enumerate(PIPES.values())}
        event["args"] = {**percents, TENSOR: float(number), DURATION: 1000.0 * (number + 1), "correlation": number}
    (tmp_path / "counters.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    result = analyze_pipes(tmp_path / "counters.json.gz")
    assert (result["source"], result["missing"]) == ("CUPTI", [])
    assert sum(kernel["calls"] for kernel in result["kernels"]) == 77
    assert result["total_s"] == pytest.approx(77 * 78 / 2 * 1e-6)
    weights = [number + 1 for number in range(77)]
    tensor = sum(number * weight for number, weight in enumerate(weights)) / sum(weights) / 100
    assert result["metrics"] == pytest.approx(
        {"pipe_fma_fraction": 0, "pipe_alu_fraction": 0.1, "pipe_fp16_fraction": 0.2, "pipe_tensor_fraction": tensor,
         "pipe_xu_fraction": 0.4}
    )  # fmt: skip


@pytest.fixture
def counted():
    """A trace with a counted kernel, and its metrics."""
    metrics = {DURATION: 2000, **dict.fromkeys(PIPES.values(), 50)}
    trace = Kineto()
    trace.counted("gemm", **metrics)
    return trace, metrics


def test_a_counter_without_a_number_is_unknown(tmp_path, counted):
    trace, metrics = counted
    trace.counted("gemm", **{**metrics, TENSOR: "NUMBER"})
    for number in ("nan", "-nan", "inf"):
        (tmp_path / "counters.json").write_text(trace.text().replace('"NUMBER"', number))
        result = analyze_pipes(tmp_path / "counters.json")
        assert result["metrics"]["pipe_fma_fraction"] == 0.5
        assert "pipe_tensor_fraction" not in result["metrics"]
        assert TENSOR in result["missing"][0]


def test_kernels_beyond_the_limit_of_the_profiler_are_reported(tmp_path, counted, monkeypatch):
    trace, metrics = counted
    monkeypatch.setattr("epochmeter.trace.nsight.MAX_RANGES", 2)
    trace.counted("gemm", device=1, **metrics)
    assert analyze_pipes(trace.write(tmp_path / "counters.json"))["missing"] == []
    trace.counted("gemm", device=1, **metrics)
    (reason,) = analyze_pipes(trace.write(tmp_path / "counters.json"))["missing"]
    assert "first 2 kernels only" in reason


@pytest.mark.parametrize("text", ["", "{", '{"traceEvents": [{"ph": "X"', '{"name": "package"}'])
def test_a_damaged_trace_with_counters_is_an_error(tmp_path, text):
    (tmp_path / "counters.json").write_text(text)
    with pytest.raises(NsightError, match="trace"):
        analyze_pipes(tmp_path / "counters.json")


def test_a_trace_without_counters_names_the_option_of_the_driver(tmp_path):
    trace = Kineto()
    trace.host("aten::mm", 10, 20)
    with pytest.raises(NsightError, match="NVreg_RestrictProfilingToAdminUsers=0"):
        analyze_pipes(trace.write(tmp_path / "counters.json"))
