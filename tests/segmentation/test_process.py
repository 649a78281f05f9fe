"""Windows of a process, from events at known times."""

import pytest
from scripted import MILLISECOND, Script, windows_of

from epochmeter.segmentation.process import CONCURRENT
from epochmeter.shared import events


def test_last_batch_may_be_evaluated_between_its_optimizer_steps():
    script = Script()
    script.begin(1)
    for _ in range(3):
        script.fetch(1)
        script.train()
        script.evaluate(len(script.events) + 10)
        script.train()
    script.end(1)
    (window,) = windows_of(script).windows
    assert (window.name, window.parts["steps"]) == ("epoch", 3)
    assert window.parts["compute_s"] == pytest.approx(3 * 0.020)
    assert window.closed_ns == script.now_ns


def test_compute_on_batches_that_were_fetched_in_advance_is_that_of_the_epoch():
    script = Script()
    script.begin(1)
    script.fetch(1)
    for _ in range(2):
        script.fetch(1, ms=2)
        script.train()
    script.end(1)
    script.train(20)
    trained_ns = script.now_ns
    script.write(events.COLLECTED, 5)
    script.begin(2)
    (window,) = windows_of(script).windows
    assert (window.closed_ns, window.parts["steps"]) == (trained_ns, 3)
    assert window.parts["compute_s"] == pytest.approx(0.010 + 0.010 + 0.020)
    assert window.parts["data_stall_s"] == pytest.approx(0.001 + 2 * 0.002)


def test_pass_that_goes_on_in_another_thread_is_a_pass_of_each():
    first, second = Script(), Script()
    first.begin(1, length=4)
    for script in (first, second):
        for _ in range(2):
            script.fetch(1)
            script.train()
        second.now_ns = max(first.now_ns, second.now_ns)
    second.end(1)
    windows = windows_of(first, second).windows
    assert [(window.parts["steps"], window.is_partial) for window in windows] == [(2, False), (2, True)]
    assert [(window.opened_ns, window.closed_ns) for window in windows] == [
        (0, first.now_ns), (first.now_ns, second.now_ns)
    ]  # fmt: skip


def test_training_of_another_thread_at_the_same_time_is_noted_and_in_no_window():
    first, second = Script(), Script()
    second.now_ns = MILLISECOND
    for number, script in ((1, first), (2, second)):
        script.begin(number)
        for _ in range(3):
            script.fetch(number)
            script.train()
        script.end(number)
    process = windows_of(first, second)
    (window,) = process.windows
    assert (window.opened_ns, window.closed_ns) == (0, first.now_ns)
    assert process.notes == [CONCURRENT]
