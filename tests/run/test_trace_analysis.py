import pytest
from kineto import Kineto

from epochmeter.run import trace_analysis
from epochmeter.run.trace_analysis import analyze_trace
from epochmeter.shared.record import Record


@pytest.fixture
def trace(tmp_path):
    trace = Kineto()
    trace.step(0, 0, 100)
    trace.host("aten::mm", 10, 20)
    return trace.write(tmp_path / "trace.json.gz")


def test_the_analysis_is_written_into_the_run_folder_and_a_failed_one_has_a_reason_and_no_result(trace, tmp_path):
    assert analyze_trace(tmp_path) == []
    assert Record(tmp_path).trace_analysis()["metrics"]["steps"] == 1
    trace.write_bytes(b"{}")
    (note,) = analyze_trace(tmp_path)
    assert note.startswith("no trace metrics: ")
    assert "traceEvents" in note
    assert Record(tmp_path).trace_analysis() is None


def test_a_slow_analysis_is_stopped_and_without_a_trace_there_is_none(trace, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_analysis, "TIMEOUT_S", 0.01)
    (note,) = analyze_trace(tmp_path)
    assert "took more than 0.01 s" in note
    trace.unlink()
    assert analyze_trace(tmp_path) == []
    assert Record(tmp_path).trace_analysis() is None
