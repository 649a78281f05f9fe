"""The file for Perfetto: everything of a run on one clock, with the profiler's events and without."""

import gzip
import itertools
import json
import statistics
from array import array

import pytest
import torch
from metadata import RUN

from epochmeter.shared.protocol import Traced
from epochmeter.shared.record import Record
from epochmeter.trace.kineto import TraceError
from epochmeter.trace.perfetto import write_perfetto_file
from epochmeter.worker.timeline import monotonic_ns, wall_offset_ns
from epochmeter.worker.trace import TorchTrace

SECOND = 1_000_000_000
CLOCK = {"wall_s": 1e9, "monotonic_ns": 100 * SECOND}
MAX_ERROR_US = 1000


def window(name, epoch, opened_s, closed_s, metrics=()):
    times = {"opened_ns": opened_s * SECOND, "closed_ns": closed_s * SECOND}
    return {"window": name, "epoch": epoch, **times, "metrics": dict(metrics)}


@pytest.fixture
def record(tmp_path):
    """A record of one epoch with two steps, from 10 s to 14 s after the start, and an evaluation."""
    record = Record(tmp_path)
    record.describe({}, {**RUN, "clock": CLOCK})
    record.append_steps(array("f", [1.5, 0.5, 0.25, 0.25, 0.0, 3.0, 0.5, 1.0]))
    metrics = {"epoch/steps": 2, "epoch/e2e_s": 4.0, "epoch/clock_residual_s": 0.0}
    record.append(window("epoch", 0, 110, 114, metrics))
    record.append(window("val", 0, 115, 116))
    return record


def test_timeline_is_written_at_a_time_that_gzip_cannot_have(record, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 5e9)  # in 2128
    assert events_of(record)


def events_of(record):
    with gzip.open(write_perfetto_file(record, record.folder), "rt") as file:
        return json.load(file)["traceEvents"]


def slices_of(record):
    """Name, begin and duration in s of each slice, in order."""
    slices = [event for event in events_of(record) if event["ph"] == "X"]
    return [(event["name"], event["ts"] / 1e6, event["dur"] / 1e6) for event in slices]


def test_run_without_a_trace_has_windows_steps_and_phases_that_end_with_their_epoch(record, tmp_path):
    assert slices_of(record) == [
        ("epoch 1", 10.0, 4.0), ("step 0", 10.0, 2.0), ("overhead", 10.0, 1.0), ("data stall", 11.0, 0.5),
        ("copy", 11.5, 0.25), ("compute", 11.75, 0.25), ("step 1", 12.0, 1.5), ("copy", 12.0, 0.5),
        ("compute", 12.5, 1.0), ("epoch 1, evaluation", 15.0, 1.0),
    ]  # fmt: skip
    (line, _) = record.windows()
    line["metrics"].update({"epoch/e2e_s": 3.5 * 0.99, "epoch/clock_residual_s": -3.5 * 0.01})  # the clock is fast
    (tmp_path / "epochs.jsonl").write_text(json.dumps(line) + "\n")
    *_, (name, begin_s, lasts_s) = slices_of(record)
    assert (name, begin_s + lasts_s) == ("compute", pytest.approx(10 + 3.5 * 0.99))


def test_each_epoch_has_its_own_steps_of_which_the_last_ones_are_shown(record, monkeypatch):
    record.append_steps(array("f", [0.5, 0.0, 0.0, 1.0, 0.25, 0.25, 0.0, 2.0]))
    record.append(window("epoch", 1, 120, 124, {"epoch/steps": 2, "epoch/e2e_s": 3.75}))
    monkeypatch.setattr("epochmeter.trace.perfetto.MAX_STEPS", 3)
    assert [step for step in slices_of(record) if step[0].startswith("step ")] == [
        ("step 1", 12.0, 1.5), ("step 2", 20.0, 1.5), ("step 3", 21.5, 2.25),
    ]  # fmt: skip
    tracks = [event["args"]["name"] for event in events_of(record) if event["name"] == "thread_name"]
    assert tracks == ["windows", "steps"]


def test_samples_are_counters_by_column_and_metrics_that_are_not_finite_are_left_out(record):
    record.append(window("val", 1, 117, 118, {"val/loss": float("nan"), "val/accuracy": 0.1}))
    record.append_power([111 * SECOND], {"VDD_IN": [5.0], "total": [7.0]})
    columns = ("monotonic_ns", "cpu_utilization", "ram_used_bytes")
    record.append_gauges(columns, [{"monotonic_ns": 112 * SECOND, "cpu_utilization": 0.5}])
    events = events_of(record)
    assert [event["args"] for event in events if event["name"] == "epoch 2, evaluation"] == [{"val/accuracy": 0.1}]
    counters = [event for event in events if event["ph"] == "C"]
    assert [(event["name"], event["ts"], event["args"]["value"]) for event in counters] == [
        ("VDD_IN_w", 11e6, 5.0), ("total_w", 11e6, 7.0), ("cpu_utilization", 12e6, 0.5),
    ]  # fmt: skip
    assert len({event["pid"] for event in counters}) == 2


@pytest.mark.parametrize(
    ("resumed_s", "clock", "expected_s"),
    [
        (8, {"wall_s": 1e9 + 3600, "monotonic_ns": 5 * SECOND}, 3600 + 3 - 10),
        (120, {"wall_s": 1e9 + 21, "monotonic_ns": 120 * SECOND}, 10),
    ],
    ids=["reboot", "wall clock corrected by 1 s"],
)
def test_epochs_before_a_reboot_are_placed_by_the_wall_clock(record, resumed_s, clock, expected_s):
    record.append(window("epoch", 1, resumed_s, resumed_s + 1))
    record.describe({}, {**RUN, "clock": CLOCK, "resumed": [{"epoch": 1, "clock": clock}]})
    begin_s = {name: begin_s for name, begin_s, _ in slices_of(record)}
    assert begin_s["epoch 2"] - begin_s["epoch 1"] == expected_s


@pytest.fixture
def traced(record):
    """A record with a real trace; and the times of the annotations in it, by the run's clock."""
    begun_ns = []

    def train(batches):
        for batch in batches:
            with torch.profiler.record_function("known"):
                begun_ns.append(monotonic_ns())
                batch @ batch

    profiler = TorchTrace(warmup_steps=2, steps=9)
    profiler.record_trace(str(record.folder / "trace.json.gz"), itertools.repeat(torch.ones(3)), train)
    message = Traced(*profiler.traced_ns, wall_offset_ns(), [[3 * 10**6, 5 * 10**6, 10**6, profiler.traced_ns[0], 1]])
    record.describe({}, {**RUN, "clock": CLOCK, "traced": message._asdict()})
    return record, begun_ns[-9:]


def test_events_are_on_the_clock_of_the_run_and_batches_on_their_worker_s_track(traced):
    record, begun_ns = traced
    with gzip.open(record.folder / "trace.json.gz", "rt") as file:
        own = json.load(file)["traceEvents"]
    events = events_of(record)
    assert events[-len(own) :] == own
    (profiled,) = [event for event in events if event["name"] == "profiler's trace"]
    origin_us = profiled["ts"] - record.run()["traced"]["opened_ns"] / 1000
    marks = [event for event in own if event["name"] == "known" and event["cat"] == "user_annotation"]
    errors_us = [event["ts"] - origin_us - at_ns / 1000 for event, at_ns in zip(marks, begun_ns, strict=True)]
    assert abs(statistics.median(errors_us)) < MAX_ERROR_US
    steps = [event for event in own if event["name"].startswith("ProfilerStep")]
    borders_us = min(event["ts"] for event in steps), max(event["ts"] + event["dur"] for event in steps)
    assert [profiled["ts"], profiled["ts"] + profiled["dur"]] == pytest.approx(borders_us, abs=20 * MAX_ERROR_US)
    (track,) = [event for event in events if event.get("args", {}).get("name") == "DataLoader worker 1"]
    (load,) = [event for event in events if event.get("tid") == track["tid"] and event["ph"] == "X"][-1:]
    assert (load["name"], load["dur"]) == ("load batch", 8000.0)
    assert load["args"] == pytest.approx({"read_s": 0.003, "decode_s": 0.001, "transform_s": 0.004})


def test_damaged_trace_or_record_is_an_error_and_leaves_no_file(traced, tmp_path):
    record, _ = traced
    run = record.run()
    record.describe({}, {**RUN, "traced": run["traced"]})
    with pytest.raises(ValueError, match=r"`run.clock` is missing\n  hint: "):
        write_perfetto_file(record, tmp_path)
    record.describe({}, run)
    content = (tmp_path / "trace.json.gz").read_bytes()
    for damaged in (content[:-100], b"no trace", gzip.compress(b'{"events": []}')):
        (tmp_path / "trace.json.gz").write_bytes(damaged)
        with pytest.raises(TraceError, match="trace"):
            write_perfetto_file(record, tmp_path)
        assert not list(tmp_path.glob("*perfetto*"))


def test_trace_of_an_old_torch_has_wall_times(record, tmp_path):
    with gzip.open(tmp_path / "trace.json.gz", "wt") as file:
        json.dump({"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1_000_000_011_000_000, "dur": 5}]}, file)
    record.describe({}, {**RUN, "clock": CLOCK})
    begin = {event["name"]: event["ts"] for event in events_of(record) if event["ph"] == "X"}
    assert begin["aten::mm"] - begin["epoch 1"] == 1e6
