"""Each line of a validation passes on a machine whose numbers are right, and fails on one whose numbers are wrong."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from validation.simulated import A100_POWER, H100_COUNTER, Sensor, World, bench

from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.uncertainty import UNKNOWN, Response
from epochmeter.results.validation import FAILED, PASSED, UNTESTED
from epochmeter.shared.problem import Problem
from epochmeter.validation.bench import ChangedSetting, Idle, Pair, Peaks
from epochmeter.validation.checks import CHECKS
from epochmeter.validation.line import Finding, Untestable, line_of
from epochmeter.validation.switched_load import Readings, Work
from epochmeter.validation.validate import find
from epochmeter.validation.window_lines import fewest_covered

BY_NAME = {check.name: check for check in CHECKS}
CONTINUOUS, PART_TIME = H100_COUNTER.response, A100_POWER.response
GOOD_KERNELS = {
    "products": {"gpu_sm_active_fraction": 0.95, "gpu_tensor_active_fraction": 0.8},
    "copies": {"gpu_dram_active_fraction": 0.8, "gpu_tensor_active_fraction": 0.0},
    "idle": {"gpu_sm_active_fraction": 0.0, "gpu_tensor_active_fraction": 0.0},
}
GOOD_SETTING = ChangedSetting("250 W", "200 W", "200 W", "250 W", "250 W", True, True, True)


class Known:
    """Programs with given values."""

    def __init__(self, off=1.0, ratio=1.01, peaks=(700e12, 705e12), datasheet=989e12, kernels=GOOD_KERNELS):
        self.off, self.ratio, self.given_peaks, self.datasheet = off, ratio, peaks, datasheet
        self.given_kernels = kernels

    def waits(self):
        return {part: {"0 workers": Pair(0.02, 0.02 * self.off)} for part in ("stall", "fetch", "prep")}

    def device_times(self):
        return {part: Pair(0.01, 0.01 * self.off) for part in ("copy", "compute")}

    def overhead(self, pairs):
        return [self.ratio * (1 + 0.001 * (number % 5)) for number in range(pairs)]

    def peaks(self):
        return Peaks(self.given_peaks, self.datasheet, "H100")

    def kernels(self):
        return self.given_kernels


class HeatingWorld(World):
    """Each work takes more energy than the one before."""

    works = 0

    def work(self, seconds):
        self.works += 1
        super().work(seconds)
        begun_s, ended_s, flop = self._work
        self._work = Work(begun_s, ended_s, flop / (1 + 0.05 * self.works))


def lines(name, machine):
    return [line_of(name, found) for found in BY_NAME[name].find(machine)]


def states(name, machine):
    return Counter(line["state"] for line in lines(name, machine))


def changed(**differences):
    return {"power_limit": GOOD_SETTING._replace(**differences)}


def with_settings(change, knobs=None):
    return bench(settings=True, knobs=knobs or {"power_limit": object()}, change=lambda key, knob: change[key])


def idle(before_w, after_w):
    """A machine whose idle power is given."""
    machine = bench(count=None)
    times_s = np.linspace(0, 10, 200)
    rows = [(0.0, 10.0, {"gpu0": Readings(times_s, np.full(200, watts))}) for watts in (before_w, after_w)]
    machine.__dict__["idle"] = Idle(*rows)
    return machine


def wandering():
    """A counter whose gain changes."""
    return bench(count=Sensor(CONTINUOUS, wander=0.2), sample=None)


def reset():
    """A counter that starts again in the middle."""
    machine = bench()
    _ = machine.responses
    readings = machine.switched.readings["gpu0"]
    values = readings.values.copy()
    values[len(values) // 2 :] -= values[len(values) // 2]
    machine.switched.readings["gpu0"] = readings._replace(values=values)
    return machine


def gpu(**wrong):
    return bench(programs=Known(**wrong), on_gpu=True)


WRONG = {
    "resolution": lambda: bench(count=None, sample=A100_POWER._replace(step_w=4.0), stated_step=1.0),
    "renewal": lambda: bench(power_stated=Response(0.025, 0.0, 0.05)),
    "averaging": lambda: bench(count=Sensor(PART_TIME), counter_stated=CONTINUOUS),
    "lag": lambda: bench(sample=Sensor(PART_TIME._replace(lag_s=0.08)), power_stated=PART_TIME),
    "counter_and_power": lambda: bench(sample=A100_POWER._replace(gain=1.1)),
    "additivity": reset,
    "coverage": wandering,
    "idle_power": lambda: idle(299.0, 299.0),
    "idle_drift": lambda: idle(60.0, 66.0),
    "energy_per_work": lambda: bench(world=HeatingWorld()),
    **{name: lambda: gpu(off=1.3) for name in ("stall", "fetch", "prep", "copy", "compute")},
    "overhead": lambda: gpu(ratio=1.2),
    "peaks": lambda: gpu(peaks=(300e12, 300e12)),
    "counters": lambda: gpu(kernels={**GOOD_KERNELS, "copies": GOOD_KERNELS["products"] | GOOD_KERNELS["copies"]
                                     | {"gpu_tensor_active_fraction": 0.4}}),
    "settings_applied": lambda: with_settings(changed(is_applied=False)),
    "settings_restored": lambda: with_settings(changed(is_restored=False)),
    "settings_after_kill": lambda: with_settings(changed(is_restored_after_kill=False)),
}  # fmt: skip
"""Check -> a machine on which it must fail."""


def right():
    return bench(programs=Known(), on_gpu=True, settings=True, knobs={"power_limit": object()},
                 change=lambda key, knob: GOOD_SETTING)  # fmt: skip


def test_there_is_a_wrong_machine_for_each_check():
    assert WRONG.keys() == BY_NAME.keys()


@pytest.fixture(scope="module")
def right_machine():
    return right()


@pytest.mark.parametrize("name", BY_NAME)
def test_line_passes_on_a_machine_whose_numbers_are_right(name, right_machine):
    found = lines(name, right_machine)
    assert {line["state"] for line in found} == {PASSED}, found


@pytest.mark.parametrize("name", BY_NAME)
def test_line_fails_on_a_machine_whose_numbers_are_wrong(name):
    found = lines(name, WRONG[name]())
    failed = [line for line in found if line["state"] == FAILED]
    assert failed, found
    assert all(line["why"] for line in failed)


@pytest.mark.parametrize("name", [check.name for check in CHECKS if not check.name.startswith("settings")])
def test_machine_without_instruments_gpu_and_torch_cannot_be_tested_with_the_reason(name):
    machine = bench(count=None, sample=None)
    machine.load, machine.no_load = None, Problem("no torch", "install it")
    found = [line_of(name, each) for each in find(BY_NAME[name], machine)]
    assert {line["state"] for line in found} == {UNTESTED}
    assert all(line["why"] for line in found)


def test_settings_are_changed_only_if_asked_for():
    machine = bench(knobs={"power_limit": object()}, change=lambda key, knob: pytest.fail("it was changed"))
    for name in ("settings_applied", "settings_restored", "settings_after_kill"):
        (line,) = lines(name, machine)
        assert (line["state"], line["hint"]) == (UNTESTED, "start it with `settings=true`")


def test_setting_that_may_not_be_changed_says_why():
    machine = bench(settings=True, knobs={"power_limit": Problem("this user may not change NVML", "be root")})
    machine.change = lambda key, knob: pytest.fail("it was changed")
    (line,) = lines("settings_applied", machine)
    assert (line["state"], line["why"], line["subject"]) == (UNTESTED, "this user may not change NVML", "power_limit")


def test_sensor_that_stops_in_the_middle_cannot_be_tested_and_the_counter_can():
    machine = bench(sample=A100_POWER._replace(stops_s=40.0))
    for name in ("averaging", "lag", "resolution", "idle_power"):
        found = {line["subject"]: line for line in lines(name, machine)}
        assert found["gpu0"]["state"] == PASSED
        assert found["gpu0_sampled"]["state"] == UNTESTED
        assert "Input/output error" in found["gpu0_sampled"]["why"]
    assert states("counter_and_power", machine) == {UNTESTED: 1}
    assert states("coverage", machine).total() == 1


def test_unknown_sensor_passes_and_its_response_is_found():
    machine = bench(count=None, sample=Sensor(Response(0.05, 0.03, 0.1)), power_stated=UNKNOWN)
    assert states("averaging", machine) == {PASSED: 1}
    found = machine.used_response("gpu0")
    assert (found.averaging_s, found.lag_s) == pytest.approx((0.05, 0.03), rel=0.1)


def test_counter_that_is_faster_than_it_is_read_keeps_its_stated_response():
    """As RAPL: about 1 ms."""
    machine = bench(count=Sensor(Response(0.001, 0.0, 0.001)), sample=None)
    for name in ("renewal", "averaging", "lag"):
        (line,) = lines(name, machine)
        assert (line["state"], line["again"]) == (UNTESTED, False)
    assert machine.used_response("gpu0") is None
    for name in ("resolution", "additivity", "idle_power"):
        assert states(name, machine) == {PASSED: 1}, name
    (line,) = lines("coverage", machine)
    assert (line["state"], line["why"]) == (
        UNTESTED,
        "the stated uncertainty is 0.1 %; the energy of the load is known within 1.0 %",
    )


def test_measured_response_gives_narrower_intervals_that_still_cover():
    """A counter that is assumed to add up a part-time sensor, and measures all the time."""
    (line,) = lines("coverage", bench(counter_stated=PART_TIME))
    details = line["details"]
    assert line["value"] >= 0.95
    assert details["assumed_median_half_width"] > 1.5 * details["median_half_width"]


def test_overhead_that_noise_hides_is_undecided():
    machine = gpu()
    machine.programs.overhead = lambda pairs: [0.8, 1.3, 1.1, 0.9, 1.4, 1.0, 0.7, 1.2]
    (line,) = lines("overhead", machine)
    assert (line["state"], line["again"]) == (UNTESTED, True)
    assert line["why"].startswith("undecided")


@pytest.mark.parametrize(("minutes", "pairs"), [(1, 6), (5, 6), (10, 12), (20, 24)])
def test_overhead_is_measured_in_as_many_pairs_as_the_interval_of_a_median_needs(minutes, pairs):
    machine, asked = replace(gpu(), minutes=minutes), []
    machine.programs.overhead = lambda count: [asked.append(count)] and [1.01] * count
    (line,) = lines("overhead", machine)
    assert (asked, line["details"]["pairs"], line["state"]) == ([pairs], pairs, PASSED)


def test_peak_without_a_datasheet_is_compared_with_itself():
    found = {line["subject"]: line["state"] for line in lines("peaks", gpu(datasheet=None))}
    assert found == {"of the datasheet": UNTESTED, "repeated": PASSED}
    found = {line["subject"]: line["state"] for line in lines("peaks", gpu(datasheet=None, peaks=(1e9, 2e9)))}
    assert found["repeated"] == FAILED


@pytest.mark.parametrize(("value", "state"), [(0.9, FAILED), (1.0, PASSED), (2.0, PASSED), (2.1, FAILED)])
def test_state_follows_from_value_and_bound(value, state):
    line = line_of("x", Finding(value=value, unit="s", low=1.0, high=2.0, failure="why"))
    assert (line["state"], line["value"], line["bound"]) == (state, value, [1.0, 2.0])
    assert bool(line["why"]) == (state == FAILED)


def test_value_that_is_not_finite_fails_and_a_disturbed_one_is_kept_without_a_verdict():
    assert line_of("x", Finding(value=math.nan, unit="s"))["state"] == FAILED
    for value in (1.0, 9.0):
        line = line_of("x", Finding(value=value, unit="s", high=2.0), "others used 40 %")
        assert (line["state"], line["why"], line["again"]) == (UNTESTED, "others used 40 %", True)
        assert line["value"] == value
    assert line_of("x", Untestable(why="none"), "others used 40 %")["why"] == "none"


@pytest.mark.parametrize(("count", "least"), [(12, 8), (40, 33), (400, 366)])
def test_coverage_is_doubted_only_beyond_chance(count, least):
    """Of `least` windows or fewer, the probability is at most 0.2 % if 95 % are covered."""
    from scipy.stats import binom

    assert fewest_covered(count) == pytest.approx(least, abs=2)
    assert binom.cdf(fewest_covered(count) - 1, count, 0.95) < 0.002 <= binom.cdf(fewest_covered(count), count, 0.95)


def with_part(watts):
    """A board with a rail of constant power: 0 if it is off."""
    machine = bench(count=None, sample=A100_POWER)
    rail = Instrument(Domain("sampled", 0.05, "within the module", 0.04, PART_TIME), lambda: watts)
    machine.instruments = {**machine.instruments, "VDD_CV": rail}
    machine.total = ["gpu0", "VDD_CV"]
    return machine


def test_part_that_is_off_fails_nothing_and_ends_nothing():
    machine = with_part(0.0)
    for name in ("resolution", "averaging", "lag", "idle_power", "energy_per_work"):
        (line,) = [line for line in lines(name, machine) if line["subject"] == "VDD_CV"]
        assert line["state"] == UNTESTED, name
        assert line["why"], name
    (line,) = [line for line in lines("idle_drift", machine) if line["subject"] == "VDD_CV"]
    assert (line["state"], line["value"]) == (PASSED, 0.0)


@pytest.mark.parametrize(("total", "state"), [(["gpu0"], FAILED), (["cpu", "gpu0"], PASSED)])
def test_idle_part_may_use_nothing_and_the_total_may_not(total, state):
    machine = idle(0.0, 0.0)
    machine.total = total
    (line,) = [line for line in lines("idle_power", machine) if line["subject"] == "gpu0"]
    assert line["state"] == state


def test_change_of_idle_power_within_one_step_of_the_sensor_is_no_drift():
    """A rail of 0.32 W in steps of 0.04 W."""
    for after_w, state in ((0.36, PASSED), (0.44, FAILED)):
        (line,) = [line for line in lines("idle_drift", idle(0.32, after_w)) if line["subject"] == "gpu0"]
        assert line["state"] == state, after_w
