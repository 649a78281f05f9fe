"""Counters that are shown under several names, read at scripted times."""

import random

import pytest

from epochmeter.power.meters import mirrors
from epochmeter.power.meters.mirrors import group_mirrors, read_as_one

RENEWAL_S = 0.001


class Counters:
    """Counters at a simulated clock: joules are renewed every millisecond, and each reading takes 20 us.

    `shown` has for each name the counter that it shows: its watts, its joules at the start, and how old its value is.
    """

    def __init__(self, monkeypatch, pause_s=lambda: 0.0, **shown):
        self.now_s, self.pause_s, self.shown = 1000.0, pause_s, shown
        monkeypatch.setattr(mirrors.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(mirrors.time, "sleep", self.wait)

    def wait(self, seconds):
        self.now_s += seconds + self.pause_s()

    def reader(self, name):
        def read():
            self.now_s += 2e-5
            watts, start_j, age_s = self.shown[name]
            return start_j + watts * ((self.now_s - age_s) // RENEWAL_S * RENEWAL_S - 1000.0)

        return read

    @property
    def readers(self):
        return {name: self.reader(name) for name in self.shown}

    def groups(self):
        return group_mirrors(self.readers, RENEWAL_S)


DIES = {"cpu0_die0": (50.0, 3000.0, 0.0), "cpu0_die1": (50.0, 3000.0, 0.0)}


@pytest.mark.parametrize(
    ("shown", "groups"),
    [
        (DIES, [["cpu0_die0", "cpu0_die1"]]),
        ({**DIES, "cpu0_die2": (50.0, 3000.0, 0.0009)}, [["cpu0_die0", "cpu0_die1", "cpu0_die2"]]),
        ({**DIES, "cpu1_die0": (50.0, 3001.0, 0.0)}, [["cpu0_die0", "cpu0_die1"], ["cpu1_die0"]]),
        ({"cpu0": (40.0, 3000.0, 0.0), "cpu1": (41.0, 3000.3, 0.0)}, [["cpu0"], ["cpu1"]]),
        ({"cpu0": (40.0, 3000.0, 0.0), "cpu1": (90.0, 2999.0, 0.0)}, [["cpu0"], ["cpu1"]]),
        ({"cpu0": (0.0, 100.0, 0.0), "cpu1": (0.0, 100.0, 0.0)}, [["cpu0"], ["cpu1"]]),
        ({"cpu0": (50.0, 3000.0, 0.0), "dram0": (5.0, 300.0, 0.0)}, [["cpu0"], ["dram0"]]),
    ],
    ids=["two dies", "a die that is renewed later", "another socket of equal power", "similar power", "crossing",
         "standing still", "far from each other"],
)  # fmt: skip
@pytest.mark.parametrize("busy", [False, True], ids=["", "busy machine"])
def test_names_that_show_one_counter_are_one_group(monkeypatch, shown, groups, busy):
    drawn = random.Random(1)
    pause_s = (lambda: drawn.uniform(0, 0.05)) if busy else (lambda: 0.0)
    assert Counters(monkeypatch, pause_s, **shown).groups() == groups


def test_comparing_takes_no_time_unless_values_are_near_and_then_a_second_at_most(monkeypatch):
    for shown, most_s in (
        ({"cpu0": (50.0, 3000.0, 0.0), "cpu1": (50.0, 3011.0, 0.0)}, 0.001),
        (DIES, 0.1),
        ({"cpu0": (0.0, 100.0, 0.0), "cpu1": (0.0, 100.0, 0.0)}, 1.1),
    ):
        counters = Counters(monkeypatch, **shown)
        counters.groups()
        assert counters.now_s - 1000.0 < most_s


def test_counter_that_is_shown_twice_is_read_as_one_and_refused_when_its_names_differ():
    first = iter([100.0, 150.0, 150.0, 200.0, 200.0, 250.0, 350.0, 400.0, 400.0])
    second = iter([150.2, 201.0, 349.5, 410.0])
    read = read_as_one([first.__next__, second.__next__])
    assert [read(), read(), read()] == [150.0, 200.0, 250.0], "the last reading is interrupted for 100 J"
    with pytest.raises(ValueError, match="different counters"):
        read()
