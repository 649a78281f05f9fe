import gzip
import json
import math

import numpy as np
import pytest
from kineto import Kineto

from epochmeter.trace.analysis import analyze
from epochmeter.trace.attribution import attribute
from epochmeter.trace.kineto import DAMAGED, WRONG_TIME, Category, TraceError, load


@pytest.fixture
def kineto():
    trace = Kineto()
    trace.step(3, 1000, 100)
    trace.step(4, 1100, 100)
    trace.host("aten::mm", 1010, 20, **{"Input Dims": [[2, 3], [3, 4]], "Sequence number": 5})
    trace.launch("gemm", 1120, 30, launched=1015, **{"blocks per SM": 0.5, "est. achieved occupancy %": 40})
    return trace


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_events_have_times_steps_and_arguments(tmp_path, kineto, name):
    trace = load(kineto.write(tmp_path / name))
    steps = [(trace.names[trace.name[event]], trace.start_ns[event], trace.end_ns[event]) for event in trace.steps]
    assert steps == [("ProfilerStep#3", 0, 100_000), ("ProfilerStep#4", 100_000, 200_000)]
    (operator,), (kernel,) = trace.where(Category.OPERATOR), trace.where(Category.KERNEL)
    assert (trace.names[trace.name[operator]], trace.shapes[trace.inputs[operator]]) == ("aten::mm", [[2, 3], [3, 4]])
    assert (trace.start_ns[operator], trace.duration_ns[operator], trace.sequence[operator]) == (10_000, 20_000, 5)
    assert (trace.start_ns[kernel], trace.is_in_step[kernel]) == (120_000, True)
    assert (trace.blocks_per_sm[kernel], trace.occupancy[kernel]) == (0.5, 0.4)
    assert [trace.threads[trace.thread[event]] for event in (operator, kernel)] == [("1", "1"), ("0", "7")]
    assert trace.names[trace.name[trace.launch[kernel]]] == "cudaLaunchKernel"
    assert np.isnan(trace.blocks_per_sm[operator])


def test_occupancy_is_unknown_for_a_kernel_that_cannot_have_it(tmp_path, kineto):
    for at, warps, percent in ((1150, 19.0, 0), (1160, 0.04, 0), (1170, 64, 400)):
        occupancy = {"warps per SM": warps, "est. achieved occupancy %": percent}
        kineto.launch("gemm", at, 5, **occupancy)
    trace = kineto.load(tmp_path)
    assert trace.occupancy[trace.where(Category.KERNEL)] == pytest.approx([0.4, math.nan, 0, math.nan], nan_ok=True)


def test_order_layout_and_chunks_of_events_do_not_matter(tmp_path, kineto, monkeypatch):
    (tmp_path / "other.json").write_text(json.dumps(kineto.events[::-1], indent=4))
    other, trace = load(tmp_path / "other.json"), kineto.load(tmp_path)
    monkeypatch.setattr("epochmeter.trace.events.CHUNK_CHARACTERS", 7)
    monkeypatch.setattr("epochmeter.trace.events.MAX_EVENT_CHARACTERS", 300)
    chunked = kineto.load(tmp_path)
    for found in (other, chunked):
        assert found.start_ns.tolist() == trace.start_ns.tolist()
        assert [found.names[name] for name in found.name] == [trace.names[name] for name in trace.name]
        assert found.is_in_step.tolist() == trace.is_in_step.tolist()


def test_memory_for_a_single_event_is_limited(tmp_path, kineto, monkeypatch):
    monkeypatch.setattr("epochmeter.trace.events.CHUNK_CHARACTERS", 100)
    monkeypatch.setattr("epochmeter.trace.events.MAX_EVENT_CHARACTERS", 300)
    kineto.host("x" * 1000, 1050, 5)
    with pytest.raises(TraceError, match="is not a complete trace"):
        kineto.load(tmp_path)


def test_impossible_times_are_left_out_and_counted(tmp_path, kineto):
    far = ((1050 - 7200e6, 5), (1050 + 7200e6, 5), (1050, 7200e6))
    for start, duration in ((1050, -5), *far, (float("nan"), 5), (1050, 10**400)):
        kineto.host("aten::add", start, duration)
    trace = kineto.load(tmp_path)
    assert (trace.left_out, trace.end_ns.max(), len(trace.end_ns)) == ({WRONG_TIME: 6}, 200_000, 5)


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("launch", {"name": "overlaps later kernels", "ts": 1500, "dur": 3000, "launched": 1490}),
        ("launch", {"name": "overlaps later kernels, and has no launch", "ts": 1500, "dur": 3000}),
        ("launch", {"name": "longer than all steps", "ts": 4950, "dur": 5e6, "launched": 4940}),
        ("launch", {"name": "before its launch", "ts": -5e6, "dur": 100, "launched": 1490, "cat": "gpu_memset"}),
        ("host", {"name": "aten::longer_than_all_steps", "ts": 1500, "dur": 1.8e9, "tid": 2}),
        ("host", {"name": "ProfilerStep#99", "ts": 900, "dur": 9000, "cat": "user_annotation"}),
        ("host", {"name": "ProfilerStep#4", "ts": 4000, "dur": 1000, "cat": "user_annotation", "tid": 2}),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_one_impossible_event_changes_no_result(tmp_path, kind, event):
    trace = Kineto()
    for number in range(1, 5):
        trace.step(number, 1000 * number, 1000)
        trace.host("aten::mm", 1000 * number + 10, 20)
        for at in (100, 500):
            trace.launch("sgemm", 1000 * number + at, 300, launched=1000 * number + at - 10)
        trace.launch("ncclDevKernel", 1000 * number + 200, 300, launched=1000 * number + 150, stream=8)
    expected = analyze(trace.load(tmp_path), 0.004)
    assert expected["metrics"]["gpu_busy_fraction"] == pytest.approx(0.7)
    getattr(trace, kind)(**event)
    result = analyze(trace.load(tmp_path), 0.004)
    assert (result["left_out"], {**result, "left_out": {}}) == ({WRONG_TIME: 1}, expected)


def test_kernels_of_a_stream_may_overlap_in_a_graph_or_by_programmatic_launches(tmp_path, kineto):
    kineto.launch("programmatic", 1145, 30, launched=1025)
    kineto.launch("long branch of a graph", 1180, 9000, launched=1030, call="cudaGraphLaunch")
    kineto.launch("short branch", 1190, 20)
    kineto.events[-1]["args"]["correlation"] = kineto.events[-2]["args"]["correlation"]
    kineto.host("cudaDeviceSynchronize", 1200, 9000, cat="cuda_runtime")
    trace = kineto.load(tmp_path)
    assert (trace.left_out, len(trace.where(Category.KERNEL))) == ({}, 4)


NAMES = {
    b"aten::\xff\xfemm": "aten::\ufffd\ufffdmm",
    b'aten::"mm"': 'aten::"mm"',
    b"aten::\tmm\n": "aten::\tmm\n",
    rb"C:\Users\mm\u12": r"C:\Users\mm\u12",
    rb"aten::\ud800": "aten::?",
}
"""A name in the bytes of a trace -> the name as it is read."""


@pytest.mark.parametrize("written", NAMES)
@pytest.mark.parametrize("characters", [1 << 22, 7])
def test_a_damaged_name_costs_that_name_only(tmp_path, kineto, monkeypatch, written, characters):
    monkeypatch.setattr("epochmeter.trace.events.CHUNK_CHARACTERS", characters)
    monkeypatch.setattr("epochmeter.trace.events.MAX_EVENT_CHARACTERS", 100 * characters)
    for damaged in ("aten::mm", "gemm"):  # in the first events, and in the last one
        (tmp_path / "trace.json").write_bytes(kineto.text().encode().replace(damaged.encode(), written))
        trace, expected = load(tmp_path / "trace.json"), kineto.load(tmp_path)
        names = [NAMES[written] if name == damaged else name for name in expected.names]
        assert (trace.names, trace.end_ns.tolist(), trace.left_out) == (names, expected.end_ns.tolist(), {})
        trace.names[0].encode()


def test_an_event_that_cannot_be_read_is_left_out_and_counted(tmp_path, kineto):
    expected = kineto.load(tmp_path)
    kineto.host("aten::bad", 1050, 5)
    kineto.host("aten::add", 1060, 5)
    (tmp_path / "trace.json").write_text("\ufeff" + kineto.text().replace('"aten::bad"', '"aten", "::bad"'))
    trace = load(tmp_path / "trace.json")
    assert (trace.left_out, trace.names) == ({DAMAGED: 1}, [*expected.names, "aten::add"])


def steps(count, on_gpu):
    """A trace of steps of 100 us. On a GPU, kernels run 250 us after their launch, and are last in the file."""
    trace = Kineto()
    for at in range(0, 100 * count, 100):
        trace.step(at // 100, at, 100)
        trace.host("aten::mm", at + 10, 20)
        if on_gpu:
            trace.launch("sgemm", at + 270, 40, launched=at + 20)
    trace.events.sort(key=lambda event: event["cat"] == "kernel")
    return trace


@pytest.mark.parametrize(("on_gpu", "count"), [(True, 5), (False, 12)])
def test_the_last_steps_of_a_large_trace_are_left_out_and_counted(tmp_path, monkeypatch, on_gpu, count):
    """The first 25 events of the host are of 8 steps, and kernels of 5 of them begin meanwhile; or they are of 12."""
    monkeypatch.setattr("epochmeter.trace.kineto.MAX_EVENTS", 50)
    large, small = steps(40, on_gpu), steps(count, on_gpu)
    result, expected = (analyze(trace.load(tmp_path), 1.0) for trace in (large, small))
    assert result["left_out"] == {f"after ProfilerStep#{count - 1}": len(large.events) - len(small.events)}
    assert {**result, "left_out": {}} == expected
    monkeypatch.setattr("epochmeter.trace.kineto.MAX_EVENTS", 3)
    with pytest.raises(TraceError, match="more than 3 events"):
        large.load(tmp_path)


def test_arguments_of_other_types_and_numbers_that_json_does_not_have_are_unknown(tmp_path, kineto):
    for number in ("nan", "-nan", "inf"):
        (tmp_path / "trace.json").write_text(kineto.text().replace(": 40", f": {number}"))
        trace = load(tmp_path / "trace.json")
        assert (len(trace.start_ns), np.isnan(trace.occupancy).all()) == (5, True)
    kineto.events.pop()  # the kernel
    kineto.host("aten::add", 1050, 5, **{"Input Dims": 7, "Sequence number": "x"})
    kineto.host("aten::add", 1060, 5)
    kineto.events[-1]["args"] = "none"
    (row,) = [row for row in attribute(kineto.load(tmp_path)).operators if row.name == "aten::add"]
    assert (row.calls, row.inputs) == (2, None)


def test_bad_files_are_errors_with_a_hint(tmp_path, kineto):
    text = kineto.text().encode()
    compressed = gzip.compress(text)
    for data, cause in (
        (None, "cannot read .*No such file"),
        (b" \n", "is empty"),
        (text[:-60], "is not a complete trace"),
        (text[:300], "is not a complete trace"),
        (compressed[: len(compressed) // 2], "is not a complete trace"),
        (compressed[:30] + b"\0\0\0\0" + compressed[34:], "(is not a complete trace|cannot read)"),
        (b'{"name": "package", "version": 1}', "has no `traceEvents`"),
        (b"epoch,loss\n0,1.5\n", "has no `traceEvents`"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "has no `traceEvents`"),
        (b'{"traceEvents": []}', "no events"),
        (b"[1, 2]", "no events"),
        (b"[[1 2]]", "is not a complete trace"),
        (b'[{"name": "' + b'"a' * 200 + b'"}]', "too many errors"),
        (b'[{"ph": "X", "cat": "cpu_op"}]', "no events"),
    ):
        if data is not None:
            (tmp_path / "trace.json").write_bytes(data)
        with pytest.raises(TraceError, match=f"{cause}(?s:.)*hint: "):
            load(tmp_path / "trace.json")
