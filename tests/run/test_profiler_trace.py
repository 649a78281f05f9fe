from array import array
from types import SimpleNamespace

import pytest
from kineto import Kineto

from epochmeter.power.power_series import PowerSamples
from epochmeter.power.uncertainty import Response
from epochmeter.run import profiler_trace
from epochmeter.run.profiler_trace import analyze_trace, finish_trace, traced_power
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.protocol import Traced, TraceFailed
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
    monkeypatch.setattr(profiler_trace, "TIMEOUT_S", 0.01)
    (note,) = analyze_trace(tmp_path)
    assert "took more than 0.01 s" in note
    trace.unlink()
    assert analyze_trace(tmp_path) == []
    assert Record(tmp_path).trace_analysis() is None


def test_failure_during_the_trace_is_only_a_note():
    def messages():
        yield TraceFailed("no trace")
        raise WorkerError("oom", "the kernel killed the worker")

    assert finish_trace(iter([TraceFailed("slow")]), None, None) == ["slow"]
    assert finish_trace(messages(), None, None) == ["no trace: the kernel killed the worker"]


PARTS_DIFFER = "the parts of the total are sampled at different times."
SAMPLED = {"unavailable": {}, "peak_w": 9.0, "half_width_j": 0.5}


@pytest.mark.parametrize(
    ("sampling", "source", "ranks", "recorded"),
    [
        (SAMPLED, "counter", 1, {"energy_uncertainty_j": 0.5, "response": Response(0.1)._asdict()}),
        (None, "none", 1, {"reason": "no meter"}),
        (SAMPLED, "estimated", 1, {"reason": "energy is estimated, not measured."}),
        (SAMPLED, "sampled", 2, {"reason": "several ranks train, and their modules run at different times."}),
        ({**SAMPLED, "unavailable": {"gpu0": "lost"}}, "sampled", 1, {"reason": "gpu0: lost"}),
        ({**SAMPLED, "peak_w": None}, "counter", 1, {"reason": PARTS_DIFFER}),
    ],
)
def test_power_of_the_traced_steps_is_recorded_or_its_absence_has_a_reason(tmp_path, sampling, source, ranks, recorded):
    powers = PowerSamples(array("q", [1, 2]), {"gpu0": array("d", [8, 9])}, array("d", [8, 9]), Response(0.1))
    meter = SimpleNamespace(
        energy={"source": source, "reason": "no meter" if source == "none" else None},
        sampling=lambda *window_ns: sampling and SimpleNamespace(**sampling),
        drain=lambda before_ns: powers,
    )
    plan = SimpleNamespace(ranks=ranks, node=SimpleNamespace(nodes=1), record=Record(tmp_path))
    traced = Traced(1, 2, wall_offset_ns=3, loads=[])
    assert traced_power(traced, plan, meter) == {**traced._asdict(), **recorded}
    assert (tmp_path / "power.csv").read_text().splitlines()[1:] == ["1,8.0000,8.0000", "2,9.0000,9.0000"]
