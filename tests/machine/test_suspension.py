"""The time in which the machine was suspended, by two clocks, between which the thread may be interrupted."""

import time
from types import SimpleNamespace

import pytest

from epochmeter.machine import suspension
from epochmeter.machine.suspension import LOOKS, suspended_ns

SECOND = 1_000_000_000


@pytest.fixture
def interrupted(monkeypatch):
    """interrupted(pauses_ns) -> the clocks of a machine that was suspended for 3 s; after each look, it pauses."""

    def set_clocks(pauses_ns):
        pauses, clock = iter(pauses_ns), {"now_ns": 100 * SECOND}

        def look(offset_ns=0):
            at_ns = clock["now_ns"] + offset_ns
            clock["now_ns"] += next(pauses)
            return at_ns

        functions = {"monotonic_ns": look, "clock_gettime_ns": lambda name: look(3 * SECOND)}
        clocks = SimpleNamespace(CLOCK_BOOTTIME=time.CLOCK_BOOTTIME, **functions)
        monkeypatch.setattr(suspension, "time", clocks)

    return set_clocks


@pytest.mark.parametrize(
    "pauses_ns",
    [
        [100, 100, 0],
        [SECOND, 100, 0, 100, 100, 0],
        [100, SECOND, 0, 100, 100, 0],
        [SECOND, 0, 0, 0, SECOND, 0, 100, 100, 0],
    ],
    ids=["at once", "before the second clock", "after it", "twice"],
)
def test_interrupted_look_at_the_clocks_is_no_suspension(interrupted, pauses_ns):
    interrupted(pauses_ns)
    assert suspended_ns() == pytest.approx(3 * SECOND, abs=1000)


def test_nearest_look_counts_if_all_were_interrupted(interrupted):
    interrupted([*[SECOND, 0, 0] * (LOOKS - 1), 10_000_000, 10_000_000, 0])
    assert suspended_ns() == 3 * SECOND


def test_this_machine_has_one_answer():
    assert abs(suspended_ns() - suspended_ns()) < SECOND
