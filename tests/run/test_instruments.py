"""Cooling down before a run."""

from contextlib import closing

import pytest

from epochmeter.machine.gauge_sampler import Gauges
from epochmeter.run.instruments import wait_until_cool

ZONE = "sys/class/thermal/thermal_zone{}/"


class CoolingMachine:
    """A machine whose sensors cool by one degree per second, and the clock of the wait."""

    def __init__(self, root, *degrees):
        self.now_s, self.degrees = 1000.0, degrees
        for number, _ in enumerate(degrees):
            (root / ZONE.format(number)).mkdir(parents=True)
            (root / ZONE.format(number) / "type").write_text("thermal")
        self._files = [root / ZONE.format(number) / "temp" for number, _ in enumerate(degrees)]
        self._root = root
        self.pause(0)

    def pause(self, seconds):
        self.now_s += seconds
        for file, degrees in zip(self._files, self.degrees, strict=True):
            file.write_text(f"{1000 * (degrees - (self.now_s - 1000)):.0f}\n")

    def rest(self, below_c, most_s=600):
        self.messages = []
        with closing(Gauges(gpus=[], root=self._root)) as gauges:
            return wait_until_cool(
                below_c, most_s, gauges, self.messages.append, clock=lambda: self.now_s, pause=self.pause
            )


@pytest.fixture
def cooling(tmp_path):
    return lambda *degrees: CoolingMachine(tmp_path, *degrees)


@pytest.mark.parametrize(
    ("degrees", "below_c", "waited_s", "temperature_c"), [([60], 61, 0, 60), ([45, 63], 50, 14, 49)]
)
def test_waits_until_all_sensors_are_below_the_limit(cooling, degrees, below_c, waited_s, temperature_c):
    machine = cooling(*degrees)
    assert machine.rest(below_c) == ({"waited_s": waited_s, "temperature_c": temperature_c}, [])
    assert len(machine.messages) == (waited_s > 0)


def test_run_begins_with_a_note_if_the_device_stays_hot(cooling):
    metadata, (note,) = cooling(90).rest(50, most_s=20)
    assert metadata == {"waited_s": 20, "temperature_c": 70}
    assert note.startswith("the run began at 70 C, after 20 s of waiting for less than sweep.cool_below_c=50; raise it")


def test_without_a_sensor_there_is_no_wait_but_a_note_and_one_that_disappears_ends_it(cooling):
    machine = cooling()
    why = "no temperature sensor, as in a virtual machine"
    notes = [f"sweep.cool_below_c=50 has no effect: {why}."]
    assert machine.rest(50) == ({"waited_s": 0, "reason": why}, notes)
    assert machine.messages == []
    machine = cooling(90)
    pause, machine.pause = machine.pause, lambda seconds: [pause(seconds), machine._files[0].unlink()]
    metadata, (note,) = machine.rest(50)
    assert (metadata["waited_s"], "temperature_c" in metadata) == (1, False)
    assert note.startswith("sweep.cool_below_c=50 has no effect: ")
