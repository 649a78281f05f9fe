"""A record's params, tags, note, dataset, times and scalars in MLflow."""

import json
import math
import os
from array import array
from datetime import datetime

import pytest
from tracking.conftest import STARTED, change_record

from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.atomic_files import write_json
from epochmeter.tracking import run_export
from epochmeter.tracking.run_export import LOSS, Scalar, curve_scalars, ended_s, window_scalars

FRIDAY_S, MONDAY_S = 2e9, 2e9 + 3 * 86400
SECOND_NS = 1_000_000_000
CLOSED_MS = 1_000_000_003_000


def read(record):
    return RunFolder(record.folder)


def test_params_are_the_configuration_in_hydras_syntax(make_record):
    params = run_export.run_params(read(make_record(batch=32, limit=None)))
    expected = {"device": "cuda", "model": "lenet", "batch": "32", "pin_memory": "true", "optimizer.lr": "0.01"}
    assert params.items() >= {**expected, "device.rails.total": '["VDD_IN"]'}.items()
    assert not [name for name in params if name.startswith(("tracking", "power_limit"))]
    assert run_export.run_params(read(make_record(1, limit=100)))["power_limit"] == "100"


def test_tag_and_note_of_a_replayed_run_say_that_it_is_no_result(make_record):
    record = make_record(0)
    assert "epochmeter.replayed" not in run_export.run_tags(read(record))
    change_record(record, {}, measure={"command": ["train.py"], "replay": True})
    assert run_export.run_tags(read(record))["epochmeter.replayed"] == "true"
    assert "Replayed batches, not a result" in run_export.run_note(read(record))


def test_tags_and_note_have_rehearsal_command_failure_and_reason_for_no_energy(make_record):
    tags = run_export.run_tags(read(make_record(limit=None)))
    assert tags.keys().isdisjoint({f"epochmeter.{key}" for key in ("power_limit_applied", "failure", "energy_reason")})
    assert (tags["epochmeter.rehearsal"], tags["epochmeter.energy_covers"]) == ("false", "gpu0")
    why = "device=nano: this is host vm"
    record = make_record(1, energy=False, overrides=["model.name=a b"], state="failed", rehearsal=[why])
    tags, note = run_export.run_tags(read(record)), run_export.run_note(read(record))
    assert (tags["epochmeter.rehearsal"], tags["epochmeter.not_applied"]) == ("true", why)
    assert tags["epochmeter.failure"] == "oom"
    failed = "**Failed** (oom): CUDA out of memory in epoch 2\n  hint: less"
    for part in (why, "python src/train.py 'model.name=a b'", "No measured energy: no meter", failed):
        assert part in note
    of_earlier_version = {"failure": {"kind": "storage", "message": "gone\n  hint: mount it"}}
    write_json(record.folder / "summary.json", {**record.summary(), **of_earlier_version})
    assert run_export.run_tags(read(record))["epochmeter.failure"] == "storage"
    assert "**Failed** (storage): gone\n  hint: mount it" in run_export.run_note(read(record))
    change_record(record, {}, measure={"command": ["train.py", "--lr", "0.1"]})
    assert "python src/measure.py 'model.name=a b' -- train.py --lr 0.1" in run_export.run_note(read(record))
    assert run_export.run_tags(read(record))["mlflow.source.name"] == "src/measure.py"


def test_tags_have_the_verdict_on_the_energy_of_the_mean_epoch(make_record):
    record = make_record()
    reasons = [{"code": "shared_gpu", "text": "process 7"}, {"code": "no_phases", "text": "several ranks"}]
    for verdicts, tags in (
        ({"steady": {"energy_valid": False, "energy_reasons": reasons}}, ("false", "shared_gpu,no_phases")),
        ({"steady": {"energy_valid": True}, "total": {"energy_valid": False}}, ("true", None)),
        ({}, (None, None)),
    ):
        write_json(record.folder / "summary.json", {**record.summary(), "energy": verdicts})
        found = run_export.run_tags(read(record))
        assert tuple(found.get(f"epochmeter.energy_{end}") for end in ("valid", "codes")) == tags


def test_the_bottleneck_is_a_tag_or_why_it_is_not_known(make_record):
    record = make_record()
    for verdict, tags in (
        (
            {"bottleneck": "compute or prep_stall", "absent": {"steady/fetch_stall_s": "why"}},
            ("compute or prep_stall", None),
        ),
        ({"bottleneck": None, "absent": {"bottleneck": "not measured: copy_s"}}, (None, "not measured: copy_s")),
        ({}, (None, None)),
    ):
        write_json(record.folder / "summary.json", {**record.summary(), "bottleneck": None, "absent": {}, **verdict})
        found = run_export.run_tags(read(record))
        assert tuple(found.get(f"epochmeter.bottleneck{end}") for end in ("", "_reason")) == tags


def test_note_has_the_next_steps_as_a_list(make_record):
    record = make_record()
    steps = [{"text": "Load more.", "change": "workers=4"}, {"text": "Compile.", "change": "compile=true"}]
    write_json(record.folder / "summary.json", {**record.summary(), "next_steps": steps})
    note = run_export.run_note(read(record))
    assert "\n\n1. Load more. `workers=4`\n2. Compile. `compile=true`\n\n" in note
    assert "Next steps" not in run_export.run_note(read(make_record(1)))


def test_dataset_is_described_by_its_manifest(make_record):
    dataset = run_export.dataset_fields(read(make_record()))
    assert (dataset["name"], len(dataset["digest"])) == ("digits", 36)
    assert json.loads(dataset["profile"]) == {"count": 1797, "bytes": 123456, "classes": 10}
    assert run_export.dataset_fields(read(make_record(1, dataset=None))) is None


def test_end_is_the_recorded_one_else_the_last_write_as_a_dead_run_is_closed_late(make_record):
    times = {"power.csv": FRIDAY_S, "epochs.jsonl": FRIDAY_S - 1, "summary.json": MONDAY_S, "job.json": MONDAY_S}
    records = [make_record(number, state=state) for number, state in enumerate(("completed", "failed", "killed"))]
    for record in records:
        record.append_power([1], {"total": [5.0]})
        for name, written_s in times.items():
            os.utime(record.folder / name, (0, written_s))
    ended = datetime.fromtimestamp(FRIDAY_S - 5).astimezone().isoformat()
    write_json(records[1].folder / "summary.json", {**records[1].summary(), "ended": ended})
    assert [ended_s(read(record)) for record in records] == [STARTED.timestamp() + 90, FRIDAY_S - 5, FRIDAY_S]


def windows_of(*steps):
    """Epochs with these numbers of steps, each with an evaluation."""
    kinds = [metrics for count in steps for metrics in ({"epoch/steps": count}, {"val/loss": 1.0})]
    return [{"epoch": 0, "closed_ns": 0, "metrics": metrics} for metrics in kinds]


@pytest.fixture
def record(make_record):
    """A record of one epoch, which closed 3 s after the monotonic clock was 0 and the wall clock 1e9 s."""
    record = make_record(epochs=1, clock={"wall_s": 1e9, "monotonic_ns": 0})
    window = {"window": "epoch", "epoch": 0, "opened_ns": 2 * SECOND_NS, "closed_ns": 3 * SECOND_NS}
    window["metrics"] = {"epoch/e2e_s": 1.0, "epoch/steps": 150, "epoch/energy_j": None}
    (record.folder / "epochs.jsonl").write_text(json.dumps(window) + "\n")
    return record


@pytest.mark.parametrize(
    ("losses", "steps", "curves"),
    [
        ([1.0] * 100 + [2.0] * 50 + [4.0] * 150, (150, 150), [[(100, 1.0), (150, 2.0)], [], [(250, 4), (300, 4)], []]),
        ([1.0] * 100 + [math.nan] + [2.0] * 99, (200,), [[(100, 1.0)], []]),
        ([], (90,), [[], []]),
    ],
    ids=["within an epoch", "diverged", "missing"],
)
def test_step_losses_are_means_of_100(record, losses, steps, curves):
    record.append_losses(array("f", losses))
    windows = window_scalars(read(record), windows_of(*steps))
    assert [[(point.step, point.value) for point in points if point.name == LOSS] for points in windows] == curves


def test_unpublished_windows_have_metrics_by_epoch_and_losses_by_step(record):
    record.append_losses(array("f", [1.0] * 100 + [2.0] * 50 + [3.0] * 50))
    record.append({**record.windows()[0], "epoch": 1, "metrics": {"epoch/steps": 50}})
    every = [
        [
            Scalar("epoch/e2e_s", 1.0, CLOSED_MS, 0),
            Scalar("epoch/steps", 150.0, CLOSED_MS, 0),
            Scalar("step/train_loss", 1.0, CLOSED_MS, 100),
            Scalar("step/train_loss", 2.0, CLOSED_MS, 150),
        ],
        [Scalar("epoch/steps", 50.0, CLOSED_MS, 1), Scalar("step/train_loss", 3.0, CLOSED_MS, 200)],
    ]
    for published, steps in enumerate((0, 150, 200)):
        assert list(window_scalars(read(record), record.windows()[published:], steps)) == every[published:]


def test_time_is_by_the_clock_of_the_start_that_measured_the_window(record):
    resumed = [{"epoch": 0, "clock": {"wall_s": 1.1e9, "monotonic_ns": 0}}]
    for closed_s, run in (
        (2e9 + 2, {"clock": {"wall_s": 2e9, "monotonic_ns": SECOND_NS}}),
        (1.1e9 + 3, {"resumed": resumed}),
    ):
        change_record(record, run)
        (points,) = window_scalars(read(record), record.windows())
        assert {point.when_ms for point in points} == {closed_s * 1000}


def test_time_of_a_window_includes_the_suspensions_of_the_machine(record):
    window = {**record.windows()[0], "suspended_s": 90.5}
    (points,) = window_scalars(read(record), [window])
    assert {point.when_ms for point in points} == {CLOSED_MS + 90_500}


def test_power_and_gauges_are_curves_in_ms_since_their_first_row(record):
    assert list(curve_scalars(read(record), record.windows())) == []
    record.append_power([2 * SECOND_NS, 2 * SECOND_NS + 5_000_000], {"total": [10.0, 12.0]})
    columns = ("monotonic_ns", "cpu0_utilization", "gpu0_clock_hz", "throttling")
    cells = [(2 * SECOND_NS, 0.5, 1.2e9, "none"), (3 * SECOND_NS, 0.5, None, "gpu0 power-capped")]
    record.append_gauges(columns, [dict(zip(columns, row, strict=True)) for row in cells])
    assert list(curve_scalars(read(record), record.windows())) == [
        Scalar("power/total_w", 10.0, 1_000_000_002_000, 0),
        Scalar("power/total_w", 12.0, 1_000_000_002_005, 5),
        Scalar("system/gpu0_clock_hz", 1.2e9, 1_000_000_002_000, 0),
        Scalar("system/throttling", 0.0, 1_000_000_002_000, 0),
        Scalar("system/throttling", 1.0, CLOSED_MS, 1000),
    ]
