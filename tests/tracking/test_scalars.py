"""The numbers of a record as MLflow and TensorBoard are shown them: at their steps, at their times."""

import json
import math
from array import array

import pytest

from epochmeter.tracking import scalars
from epochmeter.tracking.scalars import Scalar

SECOND_NS = 1_000_000_000


def test_missing_and_infinite_metrics_are_omitted():
    assert scalars.publishable({"a": 1, "b": None, "c": float("inf"), "0": 0.0}) == {"a": 1.0, "0": 0.0}


def windows_of(*steps):
    """An epoch of so many steps each, with an evaluation after it."""
    each = ({"metrics": {"epoch/steps": count}} for count in steps)
    return [window for epoch in each for window in (epoch, {"metrics": {"val/loss": 1.0}})]


def test_step_losses_are_means_of_100_within_an_epoch():
    losses = [1.0] * 100 + [2.0] * 50 + [4.0] * 150
    curves = scalars.loss_curves(losses, windows_of(150, 150))
    assert curves == [[(100, 1.0), (150, 2.0)], [], [(250, 4.0), (300, 4.0)], []]


def test_later_losses_match_those_of_the_full_run():
    of_steps, windows = [float(step) for step in range(420)], windows_of(150, 150, 120)
    every = scalars.loss_curves(of_steps, windows)
    assert scalars.loss_curves(of_steps[300:], windows[4:], 300) == every[4:]


def test_only_new_losses_are_read(make_record):
    record = make_record(epochs=0, state=None)
    record.append_losses(array("f", [1.0] * 100 + [2.0] * 50))
    for epoch, steps in enumerate((100, 50)):
        record.append({"window": "epoch", "epoch": epoch, "opened_ns": 1, "closed_ns": 2,
                       "metrics": {"epoch/steps": steps}})  # fmt: skip
    assert list(record.losses(100)) == [2.0] * 50
    (found,) = scalars.window_scalars(record, record.windows(), known=1)
    assert [(scalar.step, scalar.value) for scalar in found if scalar.name == scalars.LOSS] == [(150, 2.0)]


def test_diverged_losses_have_no_point():
    losses = [1.0] * 100 + [math.nan] + [2.0] * 99
    assert scalars.loss_curves(losses, windows_of(200)) == [[(100, 1.0)], []]


def test_missing_losses_have_no_points():
    assert scalars.loss_curves([], windows_of(90)) == [[], []]


@pytest.fixture
def timed(make_record):
    """A record of an epoch that closed 3 s after the monotonic clock stood at 0, which was at 1e9 s of wall time."""
    record = make_record(epochs=1, clock={"wall_s": 1e9, "monotonic_ns": 0})
    line = {"window": "epoch", "epoch": 0, "opened_ns": 2 * SECOND_NS, "closed_ns": 3 * SECOND_NS}
    line["metrics"] = {"epoch/e2e_s": 1.0, "epoch/steps": 150, "epoch/energy_j": None}
    (record.folder / "epochs.jsonl").write_text(json.dumps(line) + "\n")
    return record


def test_metrics_are_at_their_epoch_and_losses_at_their_steps(timed, monkeypatch):
    monkeypatch.setattr(type(timed), "losses", lambda *_: [1.0] * 100 + [2.0] * 50)
    when_ms = 1_000_000_003_000
    assert list(scalars.window_scalars(timed, timed.windows())) == [
        [
            Scalar("epoch/e2e_s", 1.0, when_ms, 0),
            Scalar("epoch/steps", 150.0, when_ms, 0),
            Scalar("step/train_loss", 1.0, when_ms, 100),
            Scalar("step/train_loss", 2.0, when_ms, 150),
        ]
    ]


def test_known_windows_are_skipped(make_record):
    record = make_record(epochs=2)
    every = list(scalars.window_scalars(record, record.windows()))
    assert [len(list(scalars.window_scalars(record, record.windows(), known))) for known in range(5)] == [4, 3, 2, 1, 0]
    assert list(scalars.window_scalars(record, record.windows(), 3)) == every[3:]


def test_power_is_a_curve_in_ms_since_the_start(timed):
    timed.append_power([2 * SECOND_NS, 2 * SECOND_NS + 5_000_000], {"total": [10.0, 12.0]})
    assert list(scalars.power_scalars(timed, timed.windows())) == [
        Scalar("power/total_w", 10.0, 1_000_000_002_000, 0),
        Scalar("power/total_w", 12.0, 1_000_000_002_005, 5),
    ]


def test_run_without_power_samples_has_no_curve(timed):
    assert list(scalars.power_scalars(timed, timed.windows())) == []
