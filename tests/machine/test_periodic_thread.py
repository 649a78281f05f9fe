import random
import statistics
import threading
import time
from contextlib import closing
from itertools import accumulate, pairwise

import pytest

from epochmeter.machine.periodic_thread import PeriodicThread, jittered_s

HOUR_S = 3600.0


def test_callback_longer_than_the_period_keeps_the_jitter():
    """Without it reads of 20 ms would follow each other every 20 ms: a load with that cycle shows one of its phases."""
    chance = random.Random(1)
    starts_s = list(accumulate(jittered_s(0.01, chance, took_s=0.02) for _ in range(5000)))
    steps_s = [after - before for before, after in pairwise(starts_s)]
    assert min(steps_s) >= 0.02
    assert statistics.stdev(steps_s) > 0.005
    assert statistics.fmean(at_s % 0.02 < 0.01 for at_s in starts_s) == pytest.approx(0.5, abs=0.03)


def test_callback_that_began_earlier_does_not_satisfy_a_request():
    begun, go_on = threading.Event(), threading.Event()
    looks = []

    def look():
        looks.append(time.monotonic())
        begun.set()
        go_on.wait(5)

    with closing(PeriodicThread(look, period_s=HOUR_S, patience_s=5.0, name="test")) as slow:
        assert begun.wait(5)
        asked = time.monotonic()
        threading.Timer(0.02, go_on.set).start()
        slow.now()
        assert looks[-1] >= asked
