"""Waits of ranks by step, from scripted events."""

from array import array

import numpy as np
import pytest

from epochmeter.segmentation.communication import CollectiveWaits, joined_rows, rank_rows, rows_after
from epochmeter.segmentation.device_times import DeviceTimes, TimedEvent
from epochmeter.shared import events
from epochmeter.shared.events import Event


def timed(kind, begun_ns, ended_ns):
    return TimedEvent(Event(ended_ns, begun_ns, 0.0, 0, 0, 0, 0, 0, kind), begun_ns, ended_ns)


def waits_of(*recorded):
    waits = CollectiveWaits()
    for kind, begun_ns, ended_ns in recorded:
        waits.add(timed(kind, begun_ns, ended_ns))
    return waits


def test_waits_are_divided_at_the_borders_of_steps():
    waits = waits_of((events.COLLECTIVE, 5, 8), (events.COLLECTIVE, 15, 25), (events.COLLECTIVE, 28, 31))
    assert [*waits.take([0, 10, 20, 30])] == [3, 5, 7]
    assert [*waits.take([30, 40])] == [1]
    assert [*waits.take([40, 50, 60])] == [0, 0]


def test_time_before_the_first_border_belongs_to_no_step():
    assert [*waits_of((events.COLLECTIVE, 2, 12)).take([10, 20])] == [2]


def test_backward_pass_waits_from_the_moment_when_its_gradients_are_computed():
    ready, backward = events.GRADIENTS_READY, events.BACKWARD
    waits = waits_of((ready, 0, 14), (backward, 10, 19), (backward, 20, 29), (ready, 0, 31), (backward, 40, 49))
    assert [*waits.take([0, 20, 30, 50])] == [5, 0, 0]  # the last pass has failed after its gradients


def test_waits_within_another_one_count_once():
    waits = waits_of((events.COLLECTIVE, 12, 14), (events.COLLECTIVE, 15, 16), (events.GRADIENTS_READY, 0, 11))
    waits.add(timed(events.BACKWARD, 2, 18))
    assert [*waits.take([0, 20])] == [7]
    assert [*waits_of((events.COLLECTIVE, 1, 5), (events.COLLECTIVE, 4, 8)).take([0, 10])] == [7]


def test_rows_of_ranks_are_joined_up_to_the_steps_that_all_have():
    first, other = array("f", range(12)), array("f", range(100, 108))
    rows, steps = joined_rows([first, other])
    assert ([*rows], steps) == ([*range(8), *range(100, 108)], 2)
    assert joined_rows([first, array("f")]) == (array("f"), 0)
    assert joined_rows([first]) == (first, 3)


def test_row_of_a_step_has_its_gap_stall_busy_time_and_wait():
    rows = rank_rows(array("f", [3, 2, 0.5, 4, 1, 5, 0, 2]), np.array([1.5e9, 0.25e9]))
    assert [*rows] == [3, 2, 4.5, 1.5, 1, 1, 2, 0.25]


def test_wait_of_a_gpu_is_the_time_between_its_timestamps_not_that_of_the_host():
    ready, backward, marked = events.GRADIENTS_READY, events.BACKWARD, events.HAS_DEVICE_TIME
    begun = marked | events.HAS_BEGIN_TIME
    recorded = [
        Event(100, 0, 0.0, 0, 0, 0, 0, marked, events.IDLE_TIME),  # from now on, the host is ahead of the device
        Event(900, 0, 0.0, 0, 0, 2, 0, marked, ready),
        Event(910, 800, 0.0, 0, 1, 3, 0, begun, backward),
        Event(930, 920, 0.0, 0, 4, 5, 0, begun, events.COLLECTIVE),
        *(Event(9000, 0, float(after), 0, 0, number, 0, 0, events.DEVICE_TIME)
          for number, after in enumerate((0, 5000, 100, 700, 100, 40))),
    ]  # fmt: skip
    waits = CollectiveWaits()
    for one in DeviceTimes().timed(recorded, is_final=True):
        waits.add(one)
    assert [*waits.take([0, 10**6])] == [700 + 40]


@pytest.mark.parametrize(
    ("early_s", "left"),
    [
        (0.0, [2, 1.5, 6, 5]),
        (1.0, [1, 0.5, 6, 5]),
        (4.0, [0, 0.5, 4, 4]),  # the rank waits for the first one at the end of the step
        (9.0, [0, 0.5, 0, 0]),
    ],
)
def test_time_before_the_first_rank_is_no_time_of_the_first_step(early_s, left):
    rows = rows_after(array("f", [2, 1.5, 6, 5, 1, 1, 1, 1]), early_s, 1.0)
    assert [*rows] == [*left, 1, 1, 1, 1]
