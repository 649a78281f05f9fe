import random
import statistics
import threading
import time
from contextlib import closing
from itertools import accumulate, pairwise

import pytest

from epochmeter.machine.periodic_thread import PeriodicThread, jittered_s

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("period_s", "took_s", "cycle_s"), [*((0.02, 0.0, 0.02 * periods) for periods in (3, 5)), (0.01, 0.02, 0.02)]
)
def test_jitter_meets_all_phases_of_a_periodic_load(period_s, took_s, cycle_s):
    """Without it a cycle of five periods would always be high in two or always in three samples.

    Reads longer than the period would follow each other without a pause: a load with that cycle shows one phase.
    """
    chance = random.Random(1)
    starts_s = list(accumulate(jittered_s(period_s, chance, took_s=took_s) for _ in range(5000)))
    assert min(after - before for before, after in pairwise(starts_s)) >= took_s
    phases_s = [(at_s + 0.005) % cycle_s for at_s in starts_s]  # not at a change of the load
    assert statistics.fmean(phase_s < cycle_s / 2 for phase_s in phases_s) == pytest.approx(0.5, abs=0.025)


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
        slow.run_now()
        assert looks[-1] >= asked
