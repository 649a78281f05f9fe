import random
import statistics
import threading
import time
from itertools import accumulate, pairwise

import pytest

from epochmeter.machine.periodic_thread import PeriodicThread, jittered_s

HOUR_S = 3600.0


@pytest.fixture
def rounds():
    """Starts rounds, and closes them at the test's end."""
    started = []

    def start(look, *, period_s=HOUR_S, patience_s=5.0):
        started.append(PeriodicThread(look, period_s=period_s, patience_s=patience_s, name="test"))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_callback_longer_than_the_period_keeps_the_jitter():
    """Without it reads of 20 ms would follow each other every 20 ms: a load with that cycle shows one of its phases."""
    chance = random.Random(1)
    starts_s = list(accumulate(jittered_s(0.01, chance, took_s=0.02) for _ in range(5000)))
    steps_s = [after - before for before, after in pairwise(starts_s)]
    assert min(steps_s) >= 0.02
    assert statistics.stdev(steps_s) > 0.005
    assert statistics.fmean(at_s % 0.02 < 0.01 for at_s in starts_s) == pytest.approx(0.5, abs=0.03)


def test_callback_that_began_earlier_does_not_satisfy_a_request(rounds):
    begun, go_on = threading.Event(), threading.Event()
    looks = []

    def look():
        looks.append(time.monotonic())
        begun.set()
        go_on.wait(5)

    slow = rounds(look)
    assert begun.wait(5)
    asked = time.monotonic()
    threading.Timer(0.02, go_on.set).start()
    slow.now()
    assert looks[-1] >= asked


def test_hanging_callback_is_waited_for_once_and_does_not_block_close(rounds):
    go_on = threading.Event()
    hanging = rounds(go_on.wait, patience_s=0.05)
    begun = time.monotonic()
    for _ in range(20):
        hanging.now()
    assert 0.05 <= time.monotonic() - begun < 0.5
    assert not hanging.close(), "it has not ended"
    go_on.set()
    assert hanging.close()
