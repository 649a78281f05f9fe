"""A process that was stopped knows it once it goes on."""

import os
import signal

import pytest

from epochmeter.worker.suspend_counter import SuspendCounter


@pytest.fixture(autouse=True)
def _as_before():
    before = signal.getsignal(signal.SIGCONT)
    yield
    signal.signal(signal.SIGCONT, before)


def test_continuations_are_counted():
    pauses = SuspendCounter()
    assert pauses.count == 0
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGCONT)
    assert pauses.count == 2
