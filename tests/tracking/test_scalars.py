"""The numbers of a record as MLflow and TensorBoard are shown them: at their steps, at their times."""

import json
import math
from array import array

import pytest

from trainmeter.tracking import scalars
from trainmeter.tracking.scalars import Scalar

SECOND_NS = 1_000_000_000


def test_metrics_that_are_absent_or_infinite_are_left_out():
    assert scalars.shown({"a": 1, "b": None, "c": float("inf"), "0": 0.0}) == {"a": 1.0, "0": 0.0}


def windows_of(*steps):
    """An epoch of so many steps each, with an evaluation after it."""
    each = ({"metrics": {"epoch/steps": count}} for count in steps)
    return [window for epoch in each for window in (epoch, {"metrics": {"val/loss": 1.0}})]


def test_losses_by_step_are_means_of_a_hundred_within_their_epoch_at_the_last_step_of_the_run():
    losses = [1.0] * 100 + [2.0] * 50 + [4.0] * 150
    curves = scalars.losses(losses, windows_of(150, 150))
    assert curves == [[(100, 1.0), (150, 2.0)], [], [(250, 4.0), (300, 4.0)], []]


def test_losses_that_follow_on_others_are_those_of_the_whole():
    of_steps, windows = [float(step) for step in range(420)], windows_of(150, 150, 120)
    every = scalars.losses(of_steps, windows)
    assert scalars.losses(of_steps[300:], windows[4:], 300) == every[4:]


def test_of_a_window_more_no_loss_is_read_again(make_record):
    record = make_record(epochs=0, state=None)
    record.append_losses(array("f", [1.0] * 100 + [2.0] * 50))
    for epoch, steps in enumerate((100, 50)):
        record.append({"window": "epoch", "epoch": epoch, "opened_ns": 1, "closed_ns": 2,
                       "metrics": {"epoch/steps": steps}})  # fmt: skip
    assert list(record.losses(100)) == [2.0] * 50
    (found,) = scalars.of_windows(record, record.windows(), known=1)
    assert [(scalar.step, scalar.value) for scalar in found if scalar.name == scalars.LOSS] == [(150, 2.0)]


def test_a_stretch_in_which_a_loss_diverged_has_no_point():
    losses = [1.0] * 100 + [math.nan] + [2.0] * 99
    assert scalars.losses(losses, windows_of(200)) == [[(100, 1.0)], []]


def test_losses_that_were_not_kept_are_no_points():
    assert scalars.losses([], windows_of(90)) == [[], []]


@pytest.fixture
def timed(make_record):
    """A record of an epoch that closed 3 s after the monotonic clock stood at 0, which was at 1e9 s of wall time."""
    record = make_record(epochs=1, clock={"wall_s": 1e9, "monotonic_ns": 0})
    line = {"window": "epoch", "epoch": 0, "opened_ns": 2 * SECOND_NS, "closed_ns": 3 * SECOND_NS}
    line["metrics"] = {"epoch/e2e_s": 1.0, "epoch/steps": 150, "epoch/energy_j": None}
    (record.folder / "epochs.jsonl").write_text(json.dumps(line) + "\n")
    return record


def test_a_windows_metrics_stand_at_its_epoch_and_its_losses_at_their_steps(timed, monkeypatch):
    monkeypatch.setattr(type(timed), "losses", lambda *_: [1.0] * 100 + [2.0] * 50)
    when_ms = 1_000_000_003_000
    assert list(scalars.of_windows(timed, timed.windows())) == [
        [
            Scalar("epoch/e2e_s", 1.0, when_ms, 0),
            Scalar("epoch/steps", 150.0, when_ms, 0),
            Scalar("step/train_loss", 1.0, when_ms, 100),
            Scalar("step/train_loss", 2.0, when_ms, 150),
        ]
    ]


def test_windows_that_are_known_are_not_told_again(make_record):
    record = make_record(epochs=2)
    every = list(scalars.of_windows(record, record.windows()))
    assert [len(list(scalars.of_windows(record, record.windows(), known))) for known in range(5)] == [4, 3, 2, 1, 0]
    assert list(scalars.of_windows(record, record.windows(), 3)) == every[3:]


def test_power_is_a_curve_in_milliseconds_since_it_began(timed):
    timed.append_power([2 * SECOND_NS, 2 * SECOND_NS + 5_000_000], {"total": [10.0, 12.0]})
    assert list(scalars.of_power(timed, timed.windows())) == [
        Scalar("power/total_w", 10.0, 1_000_000_002_000, 0),
        Scalar("power/total_w", 12.0, 1_000_000_002_005, 5),
    ]


def test_a_run_whose_power_nothing_sampled_has_no_such_curve(timed):
    assert list(scalars.of_power(timed, timed.windows())) == []


def test_samples_by_the_thousand_become_some_hundred_means(timed):
    timed.append_power(list(range(10_000, 15_000)), {"total": [float(index % 10) for index in range(5000)]})
    assert list(scalars.timeline(timed)) == [(10_005 + 10 * point, 4.5) for point in range(500)]


@pytest.mark.parametrize("count", [1, 3, 499, 500, 501, 1234])
def test_no_sample_is_left_out_and_none_is_in_two_means(timed, count):
    timed.append_power(list(range(count)), {"total": [float(index) for index in range(count)]})
    first = 0
    for _, mean in scalars.timeline(timed):
        first += 2 * (mean - first) + 1  # of numbers that follow one another the mean is in the middle
    assert first == count


def test_of_days_of_samples_each_mean_is_of_those_that_its_stretch_begins_with(timed, monkeypatch):
    """What follows is not read: here it is no number."""
    rows = [f"{1000 + place:05d},{place % 7:.4f}\n" for place in range(500)]
    unread = "no,number\n" * 100
    (timed.folder / "power.csv").write_text("monotonic_ns,total_w\n" + "".join(row + unread for row in rows))
    monkeypatch.setattr(scalars, "BYTES_A_POINT", len(rows[0]))
    assert list(scalars.timeline(timed)) == [(1000 + place, place % 7) for place in range(500)]


@pytest.mark.parametrize("text", ["", "monotonic_ns,tot", "monotonic_ns,total_w\n", "monotonic_ns,total_w\n12,7.1"])
def test_of_a_file_that_was_cut_short_what_is_whole_is_read(timed, text):
    (timed.folder / "power.csv").write_text(text)
    assert list(scalars.timeline(timed)) == []


def test_a_sample_in_which_a_rail_was_not_read_is_in_no_mean(timed):
    timed.append_power([1, 2], {"VDD_IN": [5.0, 5.0], "total": [math.nan, 12.0]})
    assert list(scalars.timeline(timed)) == [(2, 12.0)]
