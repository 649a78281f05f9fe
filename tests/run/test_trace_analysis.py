"""The analysis of a run's trace as a process."""

import signal

import pytest
from kineto import traced_record
from stub import executable

from epochmeter.run import trace_analysis
from epochmeter.run.trace_analysis import TraceAnalysis
from epochmeter.shared.record import Record
from epochmeter.trace.analysis import analyze_run
from epochmeter.trace.kineto import TraceError


@pytest.fixture
def trace(tmp_path):
    return traced_record(tmp_path)


def notes_of(folder):
    with TraceAnalysis(folder) as analysis:
        return analysis.notes()


def test_analysis_is_in_the_run_folder_and_a_failed_or_slow_one_has_a_reason(trace, tmp_path, monkeypatch):
    assert notes_of(tmp_path) == []
    assert Record(tmp_path).trace_analysis()["metrics"]["steps"] == 1
    trace.write_bytes(b"{}")
    with pytest.raises(TraceError) as refused:
        analyze_run(tmp_path)
    assert notes_of(tmp_path) == [f"no trace metrics: {refused.value}"]
    assert Record(tmp_path).trace_analysis() is None
    monkeypatch.setattr(trace_analysis, "TIMEOUT_S", 0.01)
    (note,) = notes_of(tmp_path)
    assert "took more than 0.01 s" in note
    monkeypatch.setattr(trace_analysis, "TIMEOUT_S", 60)
    for command, cause in (("exit 3", "ended with exit code 3"), ("kill -9 $$", "was killed by SIGKILL")):
        program = executable(tmp_path / "python", f"#!/bin/sh\n{command}\n")
        monkeypatch.setattr(trace_analysis.sys, "executable", str(program))
        assert notes_of(tmp_path) == [f"no trace metrics: the analysis {cause}"]
    monkeypatch.setattr(trace_analysis.sys, "executable", str(tmp_path))
    (note,) = notes_of(tmp_path)
    assert "Permission denied" in note
    trace.unlink()
    assert notes_of(tmp_path) == []
    assert Record(tmp_path).trace_analysis() is None


def test_analysis_ends_with_its_block(trace, tmp_path):
    with TraceAnalysis(tmp_path) as analysis:
        analysis.start()
    assert analysis._process.returncode == -signal.SIGKILL
    assert Record(tmp_path).trace_analysis() is None
