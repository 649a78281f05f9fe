"""How a device rests before a run: by the clock, by its temperatures, or neither where they are not to be had."""

from contextlib import closing

import pytest
from default_jobs import sweep_of

from epochmeter.machine.utilization import open_gauges
from epochmeter.run import cooldown

ZONE = "sys/class/thermal/thermal_zone{}/"


class Weather:
    """A machine whose two sensors cool by a degree a second, and the clock that goes on while one waits."""

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

    def rest(self, ended_s=None, **asked):
        self.said = []
        with closing(open_gauges(gpus=[], root=self._root)) as gauges:
            return cooldown.wait_until_cool(
                sweep_of(**asked), ended_s, gauges, self.said.append, clock=lambda: self.now_s, pause=self.pause
            )


@pytest.fixture
def weather(tmp_path):
    return lambda *degrees: Weather(tmp_path, *degrees)


@pytest.mark.parametrize(
    ("asked", "is_asked"),
    [({}, False), ({"cooldown_s": 60}, True), ({"cool_below_c": 50}, True), ({"cool_wait_s": 5}, False)],
)
def test_a_sweep_asks_for_rest_or_does_not(asked, is_asked):
    assert cooldown.is_requested(sweep_of(**asked)) is is_asked


def test_a_device_rests_for_what_is_left_of_the_time_since_the_run_before(weather):
    machine = weather(60)
    rest = machine.rest(ended_s=980, cooldown_s=60)
    assert (rest.waited_s, rest.temperature_c, rest.notes) == (40, 20, ())
    assert machine.said == ["Cooling down for 40 s (sweep.cooldown_s=60)."]


@pytest.mark.parametrize("ended_s", [None, 900], ids=["no run before", "long ago"])
def test_a_device_that_has_rested_is_not_waited_for(weather, ended_s):
    machine = weather(60)
    assert machine.rest(ended_s, cooldown_s=60).metadata == {"waited_s": 0, "temperature_c": 60}
    assert machine.said == []


def test_a_run_begins_once_the_hottest_sensor_is_below_what_is_asked_for(weather):
    machine = weather(45, 63)
    rest = machine.rest(cool_below_c=50)
    assert rest.metadata == {"waited_s": 14, "temperature_c": 49}
    assert rest.notes == ()
    assert machine.said == ["Device temperature 63 C: waiting up to 600 s for less than 50 C."]


def test_a_device_that_is_cool_is_not_waited_for(weather):
    assert weather(45, 49).rest(cool_below_c=50).metadata == {"waited_s": 0, "temperature_c": 49}


def test_a_device_that_does_not_cool_in_time_is_noted_and_the_run_begins(weather):
    rest = weather(90).rest(cool_below_c=50, cool_wait_s=20)
    assert rest.metadata == {"waited_s": 20, "temperature_c": 70}
    assert rest.notes == [
        "the run began at 70 C, after 20 s of waiting for less than sweep.cool_below_c=50; raise it or "
        "`sweep.cool_wait_s=20`"
    ]


def test_both_are_waited_for_one_after_the_other(weather):
    rest = weather(70).rest(ended_s=1000, cooldown_s=10, cool_below_c=50, cool_wait_s=15)
    assert rest.metadata == {"waited_s": 21, "temperature_c": 49}


def test_where_no_temperature_can_be_read_none_is_waited_for_and_why_is_noted(weather):
    machine = weather()
    rest = machine.rest(cool_below_c=50)
    why = "no temperature sensor, as in a virtual machine"
    assert rest.metadata == {"waited_s": 0, "reason": why}
    assert rest.notes == [f"sweep.cool_below_c=50 has no effect: {why}."]
    assert machine.said == []


def test_a_sensor_that_ceases_to_tell_is_not_waited_for(weather):
    machine = weather(90)
    pause, machine.pause = machine.pause, lambda seconds: [pause(seconds), machine._files[0].unlink()]
    rest = machine.rest(cool_below_c=50)
    assert rest.waited_s == 1
    assert rest.temperature_c is None
    assert rest.notes[0].startswith("sweep.cool_below_c=50 has no effect: ")
