"""A record's scalars with step and time."""

import json
import math
from array import array

import pytest
from tracking.conftest import change_record

from epochmeter.tracking import scalars
from epochmeter.tracking.scalars import Scalar

SECOND_NS = 1_000_000_000
CLOSED_MS = 1_000_000_003_000


def windows_of(*steps):
    """Epochs with these numbers of steps, each with an evaluation."""
    return [{"metrics": metrics} for count in steps for metrics in ({"epoch/steps": count}, {"val/loss": 1.0})]


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
def test_step_losses_are_means_of_100(losses, steps, curves):
    assert scalars.loss_curves(losses, windows_of(*steps)) == curves


def test_metrics_are_at_their_epoch_and_losses_at_their_steps_of_windows_that_are_not_published(record):
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
    for published in range(3):
        assert list(scalars.window_scalars(record, record.windows(), published)) == every[published:]


def test_time_is_by_the_clock_of_the_start_that_measured_the_window(record):
    resumed = [{"epoch": 0, "clock": {"wall_s": 1.1e9, "monotonic_ns": 0}}]
    for closed_s, run in (
        (2e9 + 2, {"clock": {"wall_s": 2e9, "monotonic_ns": SECOND_NS}}),
        (1.1e9 + 3, {"resumed": resumed}),
    ):
        change_record(record, run)
        (points,) = scalars.window_scalars(record, record.windows())
        assert {point.when_ms for point in points} == {closed_s * 1000}


def test_power_and_gauges_are_curves_in_ms_since_their_first_row_without_single_cores(record):
    assert list(scalars.curve_scalars(record, record.windows())) == []
    record.append_power([2 * SECOND_NS, 2 * SECOND_NS + 5_000_000], {"total": [10.0, 12.0]})
    columns = ("monotonic_ns", "cpu0_utilization", "gpu0_clock_hz", "throttling")
    cells = [(2 * SECOND_NS, 0.5, 1.2e9, "none"), (3 * SECOND_NS, 0.5, None, "gpu0 power-capped")]
    record.append_gauges(columns, [dict(zip(columns, row, strict=True)) for row in cells])
    assert list(scalars.curve_scalars(record, record.windows())) == [
        Scalar("power/total_w", 10.0, 1_000_000_002_000, 0),
        Scalar("power/total_w", 12.0, 1_000_000_002_005, 5),
        Scalar("system/gpu0_clock_hz", 1.2e9, 1_000_000_002_000, 0),
        Scalar("system/throttling", 0.0, 1_000_000_002_000, 0),
        Scalar("system/throttling", 1.0, CLOSED_MS, 1000),
    ]
