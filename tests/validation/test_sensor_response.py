"""The response of sensors, measured with a load of known times on a scripted clock."""

from random import Random

import boards
import numpy as np
import pytest
from validation.simulated import Sensor, World, bench, counter, power

from epochmeter.power.meters.nvml import open_nvml
from epochmeter.power.meters.rails import filter_response, open_rails
from epochmeter.power.uncertainty import Response
from epochmeter.validation.sensor_response import UnknownResponseError, measure_response, resolution
from epochmeter.validation.switched_load import CYCLES_S, Readings, read_until, record, schedule

RESPONSES = {
    "part-time": Response(0.025, 0.0, 0.1011),
    "continuous, late": Response(0.1, 0.02, 0.1),
    "late": Response(0.025, 0.08, 0.1),
    "mean of 1 s": Response(1.0, 0.0, 0.1),
    "fast": Response(0.01, 0.0, 0.02),
    "INA238": Response(0.0505, 0.0, 0.0505),
}


def measured(make, sensor, seed=1):
    world = World(seed, drift=0.1)
    instrument = make(world, sensor)
    recorded = record({"x": instrument}, world, 100, period_s=0.005, clock=world.clock, seed=seed)
    return measure_response(recorded, "x", instrument.domain)


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("make", [power, counter])
def test_averaging_and_lag_are_within_ten_percent_and_power_within_one(name, make):
    true = RESPONSES[name]
    found = measured(make, Sensor(true))
    memory_s = true.memory_s
    assert found.response.averaging_s == pytest.approx(true.averaging_s, rel=0.1)
    assert found.response.lag_s == pytest.approx(true.lag_s, abs=max(0.1 * true.lag_s, 0.01 * memory_s))
    assert found.response.renewal_s == pytest.approx(true.renewal_s, rel=0.001)
    assert (found.load_w, found.pause_w) == pytest.approx((300.0, 60.0), rel=0.01)


def test_sensor_that_is_renewed_at_each_read_is_measured_as_well():
    found = measured(power, Sensor(Response(0.054, 0.02, 0.0)))
    assert found.response.averaging_s == pytest.approx(0.054, rel=0.1)
    assert found.response.lag_s == pytest.approx(0.02, rel=0.1)
    assert not found.is_held


def test_low_pass_filter_is_described_as_the_meter_of_rails_does():
    constant_s = 64 * 0.0066
    found = measured(power, Sensor(Response(), filter_s=constant_s))
    expected = filter_response(0.0066, 64)
    assert found.response.is_filter
    assert found.response.delay_s == pytest.approx(expected.delay_s, rel=0.1)
    assert found.response.memory_s == pytest.approx(expected.memory_s, rel=0.1)


def test_energy_by_the_load_is_that_of_the_world():
    world = World(2, drift=0.1)
    instrument = power(world, Sensor(Response(0.025, 0.0, 0.1)))
    recorded = record({"x": instrument}, world, 60, period_s=0.005, clock=world.clock)
    found = measure_response(recorded, "x", instrument.domain)
    borders_s = [(10.0, 11.0), (20.0, 24.0)]
    for begin_s, end_s in borders_s:
        true_j = world.joules(recorded.begun_s + end_s) - world.joules(recorded.begun_s + begin_s)
        by_load_j = found.joules(recorded.timeline, np.array([begin_s]), np.array([end_s]))
        assert by_load_j[0] == pytest.approx(true_j, rel=0.01)


def test_load_that_changes_the_power_by_little_shows_no_response():
    world = World(load_w=61.0)
    instrument = power(world, Sensor(Response(0.025, 0.0, 0.1)))
    recorded = record({"x": instrument}, world, 40, period_s=0.005, clock=world.clock)
    with pytest.raises(UnknownResponseError, match="changes the power by too little"):
        measure_response(recorded, "x", instrument.domain)


def test_counter_that_runs_backwards_has_no_response():
    readings = bench().switched.readings["gpu0"]
    values = readings.values.copy()
    values[len(values) // 2 :] -= values[len(values) // 2]
    machine = bench()
    recording = machine.switched._replace(readings={"gpu0": readings._replace(values=values)})
    with pytest.raises(UnknownResponseError, match="ran backwards"):
        measure_response(recording, "gpu0", machine.instruments["gpu0"].domain)


def test_resolution_of_a_counter_is_its_unit_and_of_power_its_step():
    chance = Random(0)
    joules = np.array([round(6 * at + chance.random(), 3) for at in range(100)])
    assert resolution(joules, is_counter=True) == 0.001
    watts = np.array([round(chance.uniform(5, 50) / 0.04) * 0.04 for _ in range(3000)])
    assert resolution(watts, is_counter=False) == pytest.approx(0.04)
    assert resolution(watts[:10], is_counter=False) == 0.0


def test_replayed_board_with_a_known_response(tmp_path):
    """The real reader of the rails reads files that follow a simulated sensor."""
    tree, world = boards.write(tmp_path, "orin_nano"), World(3, pause_w=0.5, load_w=1.5)
    sensor = power(world, Sensor(Response(0.06, 0.02, 0.0), noise_w=0.002, step_w=0.001))
    meter = open_rails(gpus=[], root=tmp_path, period_s=0.5, rails={"total": ["VDD_IN"]})
    meter.close()
    read = meter.instruments["VDD_IN"].read

    def played():
        tree.show(sensor.read())
        return read()

    instrument = meter.instruments["VDD_IN"]._replace(read=played)
    recorded = record({"VDD_IN": instrument}, world, 40, period_s=0.01, clock=world.clock)
    found = measure_response(recorded, "VDD_IN", instrument.domain)
    assert found.response.averaging_s == pytest.approx(0.06, rel=0.1)
    assert found.response.lag_s == pytest.approx(0.02, rel=0.15)
    assert found.load_w == pytest.approx(tree.board.total_w(1.5), rel=0.02)


def test_stub_of_the_driver_with_a_known_response(nvml, monkeypatch):
    """The real meter of NVIDIA GPUs reads a stub of the driver, whose power follows a simulated sensor."""
    world = World(4)
    sensor = power(world, Sensor(Response(0.025, 0.04, 0.1)))
    monkeypatch.setenv("STUB", "instant,nocounter")
    monkeypatch.setenv("STUB_W", "60")
    meter = open_nvml(gpus=["GPU-aaaa"], root="/", period_s=0.5)
    instrument = meter.instruments["gpu0"]
    meter.close()
    meter = open_nvml(gpus=["GPU-aaaa"], root="/", period_s=1000.0)
    read = meter.instruments["gpu0"].read

    def played():
        monkeypatch.setenv("STUB_W", str(sensor.read()))
        return read()

    played_power = instrument._replace(read=played)
    recorded = record({"gpu0": played_power}, world, 60, period_s=0.005, clock=world.clock)
    found = measure_response(recorded, "gpu0", played_power.domain)
    meter.close()
    assert found.response.averaging_s == pytest.approx(0.025, rel=0.1)
    assert found.response.lag_s == pytest.approx(0.04, rel=0.1)


def test_schedule_has_each_cycle_for_an_equal_time_in_random_order():
    switches = schedule(100, Random(0))
    assert sum(on_s + off_s for on_s, off_s in switches) == pytest.approx(100, rel=0.1)
    assert max(on_s for on_s, _ in switches) > max(CYCLES_S) / 3
    assert switches != sorted(switches)
    assert switches != schedule(100, Random(1))


def test_readings_that_fail_are_counted_and_a_gap_is_a_problem():
    world = World()
    instrument = power(world, Sensor(stops_s=3.0))
    begun_s = world.now_s
    readings = read_until({"x": instrument}, begun_s + 10, 0.01, world.clock)["x"]
    assert readings.failed == pytest.approx(2 * len(readings.times_s), rel=0.2)
    assert "Input/output error" in readings.problem(begun_s, begun_s + 10)
    few = Readings(readings.times_s, readings.values, 1, "Input/output error")
    assert few.problem(begun_s, begun_s + 10).startswith("no reading for 7.0 s")
    assert few.problem(begun_s, begun_s + 3) == ""
