import math
from itertools import pairwise

import pytest
from power.conftest import ScriptedPowers, counters

from epochmeter.power.meter import Domain, Instrument, Meter
from epochmeter.power.power_series import Sampling
from epochmeter.power.uncertainty import NONE, Response
from epochmeter.power.window_energy import Reading, energy_of_window, measure_idle, take_reading

SECOND = 1_000_000_000
WELL = Sampling(samples=50, gap_max_s=0.03, failed=0, unavailable={}, peak_w=9.0, half_width_j=0.25)


def scripted(sampling=WELL, **averaging_s):
    """Sampled power with given sampling statistics; each domain has as many samples as the total."""
    counts = dict.fromkeys(averaging_s, sampling.samples)
    return ScriptedPowers(sampling._replace(samples_per_domain=counts), **averaging_s)


def sampled(sampling=WELL, **domains):
    return Meter(powers=scripted(sampling, **domains), total=list(domains), covers="all")


def checked_counter(powers, response=NONE):
    """A GPU's counter, and its sampled power as a cross-check."""
    parts = {"gpu0": Instrument(Domain("counter", 0.1, "GPU board", response=response), float)}
    return Meter(counters=parts, powers=powers, total=["gpu0"], covers="all")


def used(meter, before, after, seconds=1.0, window_s=None, **how):
    """The energy between two readings that are `seconds` apart."""
    borders = Reading(0, before), Reading(round(seconds * SECOND), after)
    return energy_of_window(*borders, meter, seconds if window_s is None else window_s, **how)


def energies(energy):
    return {name: value for name, value in energy.metrics.items() if "energy" in name and "uncertainty" not in name}


@pytest.mark.parametrize(
    ("after", "seconds"), [({}, 1.0), ({}, 0.4), ({"cpu0": 100.0}, 1.0), ({"cpu0": 3.0}, 1.0), ({"cpu0": 3.0}, 0.4)],
    ids=["unread", "unread in a short window", "stood still", "reset", "reset in a short window"],
)  # fmt: skip
def test_failed_counter_has_neither_energy_nor_term_rather_than_zero(after, seconds):
    energy = used(counters(cpu0=float), {"cpu0": 100.0}, after, seconds)
    assert (energy.metrics, energy.term) == ({}, {})
    assert [note.partition(":")[0] for note in energy.notes] == ["no energy of cpu0"]


def test_rail_without_load_has_zero_joules_and_a_total():
    assert energies(used(sampled(CV=0.02, GPU=0.02), {"CV": 1.0, "GPU": 1.0}, {"CV": 1.0, "GPU": 3.0})) == {
        "energy_j": 2.0,
        "energy_CV_j": 0.0,
        "energy_GPU_j": 2.0,
    }


@pytest.mark.parametrize("source", ["counter", "estimated"])
def test_window_shorter_than_ten_counter_periods_has_a_note_and_no_energy(source):
    meter = counters(source, gpu0=float)  # it ticks every 0.1 s
    short, long = (used(meter, {"gpu0": 1.0}, {"gpu0": 3.0}, seconds) for seconds in (0.08, 1.0))
    notes = [note.partition(", at least 1 s needed")[0] for note in short.notes]
    assert (short.metrics, notes) == ({}, ["no energy of gpu0: window of 0.08 s"])
    assert 2.0 in long.metrics.values()
    assert long.notes == []


@pytest.mark.parametrize(("seconds", "samples"), [(0.02, 3), (0.3, 4), (0.03, 0), (0.3, 2)])
def test_sampled_window_has_energy_however_short_it_is_if_it_has_three_samples(seconds, samples):
    energy = used(sampled(WELL._replace(samples=samples), gpu0=0.0), {"gpu0": 1.0}, {"gpu0": 1.1}, seconds)
    notes = [note.partition(",")[0] for note in energy.notes]
    assert energy.metrics.get("energy_j") == (pytest.approx(0.1) if samples >= 3 else None)
    assert notes == ([] if samples >= 3 else [f"no energy of gpu0: {samples} power samples in {seconds} s"])
    assert energy.unavailable == {}


def test_sampling_statistics_exclude_the_readings_at_the_borders():
    """The readings take samples themselves, which are at the borders of the window rather than in it."""
    meter, windows = sampled(VDD_IN=0.0), []
    meter.sampling = lambda *window: windows.append(window)
    energy_of_window(Reading(1000, {}, 300, 300), Reading(9000, {}, 200, 200), meter, 1.0)
    assert windows == [(1300, 8800)]


def test_windows_too_short_alone_are_exact_terms_of_a_sum():
    meter = counters(gpu0=float)
    readings = [{"gpu0": joules} for joules in (100.0, 100.0, 140.0, 140.0, 180.0)]  # one every 0.4 s
    terms = [used(meter, *pair, 0.4).term for pair in pairwise(readings)]
    assert [term["energy_j"] for term in terms] == [0, 40, 0, 40]
    assert {(term["period_s"], term["shortest_s"]) for term in terms} == {(0.1, 1.0)}
    term = used(sampled(VDD_IN=0.0), {"VDD_IN": 1.0}, {"VDD_IN": 9.0}, 0.4).term
    assert (term["energy_j"], term["period_s"]) == (8.0, 0.0), "its sensor's delay is part of its uncertainty"


@pytest.mark.parametrize("seconds", [1.0, 0.03])
def test_sensor_unavailable_within_the_window_has_no_energy_also_if_it_is_short(seconds):
    lost = WELL._replace(unavailable={"VDD_IN": "unread for 3.0 s: No such device"})
    energy = used(sampled(lost, VDD_IN=0.02), {"VDD_IN": 1.0}, {"VDD_IN": 9.0}, seconds)
    assert (energies(energy), energy.term) == ({}, {})
    assert energy.notes == ["no energy of VDD_IN: unread for 3.0 s: No such device."]
    assert energy.unavailable == {"VDD_IN": "unread for 3.0 s: No such device."}


def test_counter_keeps_its_energy_if_sampled_power_is_unavailable():
    lost = WELL._replace(unavailable={"gpu0": "unread", "gpu0_sampled": "unread"})
    meter = checked_counter(scripted(lost, gpu0=0.02, gpu0_sampled=0.02))
    energy = used(meter, {"gpu0": 1.0, "gpu0_sampled": 0.0}, {"gpu0": 9.0, "gpu0_sampled": 8.0})
    assert energies(energy) == {"energy_j": 8.0, "energy_gpu0_j": 8.0}
    assert (energy.notes, energy.unavailable) == (["no energy of gpu0_sampled: unread."], {})


def test_domains_outside_of_the_total_have_a_note_only_if_the_total_has_no_energy():
    meter = checked_counter(scripted(WELL._replace(samples=2), gpu0_sampled=0.0))
    before, after = {"gpu0": 1.0, "gpu0_sampled": 0.0}, {"gpu0": 9.0, "gpu0_sampled": 8.0}
    assert used(meter, before, after).notes == []
    notes = used(meter, before, {**after, "gpu0": 1.0}).notes
    assert [note.partition(":")[0] for note in notes] == ["no energy of gpu0", "no energy of gpu0_sampled"]


def test_mean_power_is_per_second_between_the_readings_and_net_energy_may_be_negative():
    def metrics(idle_w):
        return used(counters(gpu0=float), {"gpu0": 0.0}, {"gpu0": 40.0}, 4.03, 4.0, idle_w=idle_w).metrics

    assert metrics(3.0)["power_mean_w"] == 40 / 4.03
    assert [metrics(idle_w)["net_energy_j"] for idle_w in (3.0, 11.0)] == pytest.approx([28.0, -4.0], abs=0.4)


@pytest.mark.parametrize(
    ("averaging_s", "structure_j", "half_width_j"),
    [
        (0.0, 3.0, 1.0),
        (0.025, 3.0, math.hypot(1, 3)),
        (0.025, None, math.hypot(1, 1.98 * math.sqrt(75) + 1.5)),
        (None, None, math.hypot(1, 1.98 * 10 + 1.5)),
    ],
    ids=["continuous: one period", "part-time: variation of the samples", "part-time, not sampled", "unknown"],
)
def test_uncertainty_includes_power_that_a_part_time_sensor_misses(averaging_s, structure_j, half_width_j):
    powers = structure_j and scripted(WELL._replace(peak_w=10.0, structure_j=structure_j), gpu0_sampled=averaging_s)
    meter = checked_counter(powers, Response(averaging_s, 0.0, 0.1))
    sampling = meter.sampling(0, 10 * SECOND)
    assert meter.half_width_j({"gpu0": 100.0}, 10.0, sampling) == pytest.approx(half_width_j, rel=0.01)


def test_uncertainty_of_a_counter_includes_its_step_and_the_lag_of_its_sensor():
    domain = Domain("counter", 0.1, "GPU board", 5.0, Response(0.1, 0.02, 0.1))
    meter = Meter(counters={"gpu0": Instrument(domain, float)}, total=["gpu0"], covers="all")
    assert meter.half_width_j({"gpu0": 100.0}, 10.0, None) == pytest.approx(10.0 * (0.1 + 0.02) + 5.0)


@pytest.mark.parametrize(
    ("meter", "uncertainty_j"),
    [
        pytest.param(counters(gpu0=float), 100 * 0.1, id="counter: one period"),
        pytest.param(checked_counter(scripted(WELL._replace(peak_w=250.0), gpu0_sampled=0.02)), 250 * 0.1, id="peak"),
        pytest.param(sampled(gpu0=0.02), 0.25, id="sampled: that of the samples"),
    ],
)
def test_uncertainty_is_that_of_the_meter_and_of_the_time_outside_the_window(meter, uncertainty_j):
    metrics = used(meter, {"gpu0": 0.0}, {"gpu0": 400.0}, 4.0, 3.99).metrics
    assert metrics["energy_uncertainty_j"] == pytest.approx(uncertainty_j + 100 * 0.01)


def test_reading_of_a_counter_is_at_its_middle_and_sampled_power_is_integrated_to_its_end(monkeypatch):
    clock = {"now_ns": 1000}

    def slow_read(**_):
        clock["now_ns"] += 600
        return 7.0

    monkeypatch.setattr("time.monotonic_ns", lambda: clock["now_ns"])
    assert take_reading(counters(gpu0=slow_read)) == Reading(1300, {"gpu0": 7.0}, 300, 300)
    waits = sampled(VDD_IN=0.0)
    monkeypatch.setattr(waits, "read", lambda: {"VDD_IN": slow_read()})
    assert take_reading(waits) == Reading(2200, {"VDD_IN": 7.0}, 600, 0)


def test_idle_energy_is_the_difference_over_the_idle_time():
    clock = {"joules": 100.0}
    meter = counters(period_s=1e-9, cpu0=lambda: clock["joules"])
    energy = measure_idle(meter, 0.1, sleep=lambda seconds: clock.update(joules=160.0))
    assert energy.metrics["energy_j"] == 60
