import math
from itertools import pairwise

import pytest

from epochmeter.power.meter import Absent, Counter, Domain, Instruments
from epochmeter.power.power_series import NO_POWERS, Sampling
from epochmeter.power.window_energy import Reading, consumption, reading, rest, spent

SECOND = 1_000_000_000
WELL = Sampling(samples=50, gap_max_s=0.03, failed=0, lost={}, peak_w=9.0, half_width_j=0.25)


class Scripted:
    """Sampled powers, of which one says how they were sampled, each as many times as their total."""

    def __init__(self, sampling=WELL, **domains):
        averaged = domains.items()
        self.domains = {name: Domain("sampled", 0.01, name, averaging_s=seconds) for name, seconds in averaged}
        told = sampling._replace(inside=dict.fromkeys(domains, sampling.samples))
        self.sampling = lambda opened_ns, closed_ns: told
        self.drain = lambda before_ns: NO_POWERS
        self.joules = lambda *, fresh: {}
        self.close = lambda: None


def counters(source="counter", period_s=0.1, **read):
    parts = {name: Counter(Domain(source, period_s, name), at) for name, at in read.items()}
    return Instruments(counters=parts, total=list(parts), covers="all")


def sampled(sampling=WELL, **domains):
    return Instruments(powers=Scripted(sampling, **domains), total=list(domains), covers="all")


def used(meter, before, after, seconds=1.0, window_s=None, **how):
    """What a meter makes of two readings that lie so far apart."""
    borders = Reading(0, before), Reading(round(seconds * SECOND), after)
    return consumption(*borders, meter, seconds if window_s is None else window_s, **how)


def energies(found):
    return {name: value for name, value in found.metrics.items() if "energy" in name and "uncertainty" not in name}


def test_a_window_is_a_subtraction():
    domains = counters(cpu0=float, dram0=float).domains
    assert spent({"cpu0": 100.0, "dram0": 7.0}, {"cpu0": 130.0, "dram0": 7.5}, domains) == {"cpu0": 30.0, "dram0": 0.5}


@pytest.mark.parametrize("after", [{}, {"cpu0": 100.0}, {"cpu0": 3.0}], ids=["unread", "stood still", "reset"])
def test_a_counter_that_tells_nothing_gives_no_energy_and_never_0(after):
    found = used(counters(cpu0=float), {"cpu0": 100.0}, after)
    assert found.metrics == {}
    assert found.notes == ["no energy of cpu0: the counter gave nothing, stood still or ran backwards."]


def test_a_rail_without_load_used_0_joules_and_the_total_stands():
    assert energies(used(sampled(CV=0.02, GPU=0.02), {"CV": 1.0, "GPU": 1.0}, {"CV": 1.0, "GPU": 3.0})) == {
        "energy_j": 2.0,
        "energy_CV_j": 0.0,
        "energy_GPU_j": 2.0,
    }


def test_where_one_domain_is_missing_the_others_remain_and_the_total_does_not():
    meter = counters(gpu0=float, gpu1=float)
    assert used(meter, {"gpu0": 1.0, "gpu1": 1.0}, {"gpu0": 3.0}).metrics == {"energy_gpu0_j": 2.0}


@pytest.mark.parametrize("source", ["counter", "estimated"])
def test_a_window_that_lasts_less_than_ten_periods_of_its_instrument_has_no_energy_and_says_so(source):
    meter = counters(source, gpu0=float)  # it ticks every 0.1 s
    short, long = (used(meter, {"gpu0": 1.0}, {"gpu0": 3.0}, seconds) for seconds in (0.08, 1.0))
    assert short.metrics == {}
    assert short.notes == [
        "no energy of gpu0: 0.08 s is too short for a counter that is renewed every 0.1 s; "
        "the minimum is 10 times that."
    ]
    assert 2.0 in long.metrics.values()
    assert long.notes == []


def test_a_window_too_short_for_one_counter_has_the_energy_of_the_others_and_no_total():
    domains = {"cpu0": Domain("counter", 0.001, "CPU package"), "gpu0": Domain("counter", 0.1, "GPU board")}
    parts = {name: Counter(domain, float) for name, domain in domains.items()}
    meter = Instruments(counters=parts, total=list(parts), covers="all")
    assert used(meter, {"cpu0": 1, "gpu0": 1}, {"cpu0": 3, "gpu0": 9}, 0.5).metrics == {"energy_cpu0_j": 2}


@pytest.mark.parametrize(("seconds", "samples"), [(0.02, 3), (0.3, 4)])
def test_what_is_sampled_in_a_window_has_energy_however_short_that_is(seconds, samples):
    found = used(sampled(WELL._replace(samples=samples), VDD_IN=0.0), {"VDD_IN": 1.0}, {"VDD_IN": 1.1}, seconds)
    assert found.metrics["energy_j"] == pytest.approx(0.1)


@pytest.mark.parametrize(("seconds", "samples"), [(0.03, 0), (0.3, 2)])
def test_what_is_hardly_sampled_but_at_its_borders_has_no_energy_and_is_not_lost(seconds, samples):
    found = used(sampled(WELL._replace(samples=samples), gpu0=0.0), {"gpu0": 1.0}, {"gpu0": 1.1}, seconds)
    assert found.metrics == {}
    assert found.notes == [
        f"no energy of gpu0: of the samples of its power {samples} lie within these {seconds} s, and it takes 3."
    ]
    assert found.lost == {}


def test_a_stretch_is_told_of_from_the_end_of_the_first_reading_to_the_beginning_of_the_last():
    """The samples that the readings themselves take lie at its borders, not within."""
    meter, asked = sampled(VDD_IN=0.0), []
    meter.sampling = lambda *between: asked.append(between)
    consumption(Reading(1000, {}, took_ns=600), Reading(9000, {}, took_ns=400), meter, 1.0)
    assert asked == [(1300, 8800)]


def test_domains_that_lack_energy_for_one_reason_share_a_line():
    found = used(
        sampled(VDD_IN=0.1, VDD_SOC=0.1), {"VDD_IN": 1.0, "VDD_SOC": 1.0}, {"VDD_IN": 2.0, "VDD_SOC": 2.0}, 0.1
    )
    assert [note.partition(":")[0] for note in found.notes] == ["no energy of VDD_IN, VDD_SOC"]


def test_a_cross_check_that_takes_longer_windows_is_not_missed():
    parts = {"gpu0": Counter(Domain("counter", 0.1, "GPU board"), float)}
    meter = Instruments(counters=parts, powers=Scripted(gpu0_sampled=1.5), total=["gpu0"], covers="all")
    found = used(meter, {"gpu0": 1.0, "gpu0_sampled": 0.0}, {"gpu0": 9.0, "gpu0_sampled": 8.0}, 2.0)
    assert energies(found) == {"energy_j": 8.0, "energy_gpu0_j": 8.0}
    assert found.notes == []


def test_stretches_that_are_too_short_one_by_one_have_energy_together():
    meter = counters(gpu0=float)
    readings = [{"gpu0": joules} for joules in (100.0, 100.0, 140.0, 140.0, 180.0)]  # one every 0.4 s
    assert [used(meter, *pair, 0.4).metrics for pair in pairwise(readings)] == [{}] * 4
    assert used(meter, readings[0], readings[-1], 1.6).metrics["energy_j"] == 80


def test_stretches_that_are_too_short_one_by_one_are_exact_terms_of_a_sum():
    meter = counters(gpu0=float)
    readings = [{"gpu0": joules} for joules in (100.0, 100.0, 140.0, 140.0, 180.0)]  # one every 0.4 s
    terms = [used(meter, *pair, 0.4).term for pair in pairwise(readings)]
    assert [term["energy_j"] for term in terms] == [0, 40, 0, 40]
    assert {(term["period_s"], term["shortest_s"]) for term in terms} == {(0.1, 1.0)}


@pytest.mark.parametrize(
    ("after", "seconds"), [({}, 0.4), ({"gpu0": 99.0}, 0.4), ({"gpu0": 100.0}, 1.0)], ids=["unread", "reset", "stuck"]
)
def test_a_stretch_whose_counter_failed_is_no_term(after, seconds):
    assert used(counters(gpu0=float), {"gpu0": 100.0}, after, seconds).term == {}


def test_a_sensor_that_was_lost_is_no_term():
    lost = WELL._replace(lost={"VDD_IN": "unread for 3.0 s: gone"})
    assert used(sampled(lost, VDD_IN=0.0), {"VDD_IN": 1.0}, {"VDD_IN": 1.0}, 0.02).term == {}


def test_an_estimate_is_never_mixed_with_measurements():
    found = used(counters(source="estimated", cpu=float), {"cpu": 1.0}, {"cpu": 3.0})
    assert found.metrics == {"estimated_energy_j": 2.0}


def test_a_sensor_that_was_lost_has_no_energy_though_it_was_read_at_both_ends():
    lost = WELL._replace(lost={"VDD_IN": "unread for 3.0 s: No such device"})
    found = used(sampled(lost, VDD_IN=0.02), {"VDD_IN": 1.0}, {"VDD_IN": 9.0})
    assert energies(found) == {}
    assert found.notes == ["no energy of VDD_IN: unread for 3.0 s: No such device."]
    assert found.lost == {"VDD_IN": "unread for 3.0 s: No such device."}


def test_a_counter_stands_though_the_power_beside_it_was_lost():
    lost = WELL._replace(lost={"gpu0": "unread", "gpu0_sampled": "unread"})
    parts = {"gpu0": Counter(Domain("counter", 0.1, "GPU board"), float)}
    powers = Scripted(lost, gpu0=0.02, gpu0_sampled=0.02)
    meter = Instruments(counters=parts, powers=powers, total=["gpu0"], covers="all")
    found = used(meter, {"gpu0": 1.0, "gpu0_sampled": 0.0}, {"gpu0": 9.0, "gpu0_sampled": 8.0})
    assert energies(found) == {"energy_j": 8.0, "energy_gpu0_j": 8.0}
    assert found.notes == ["no energy of gpu0_sampled: unread."]
    assert found.lost == {}, "the run's energy is whole"


def test_a_counter_that_tells_nothing_any_more_is_lost_too():
    found = used(counters(cpu0=float), {"cpu0": 1.0}, {})
    assert found.lost == {"cpu0": "the counter gave nothing, stood still or ran backwards."}


def test_readings_that_failed_are_told_though_they_are_bridged():
    found = used(sampled(WELL._replace(failed=3), VDD_IN=0.02), {"VDD_IN": 1.0}, {"VDD_IN": 8.0})
    assert found.notes == ["3 readings of power failed, and are bridged where they are few."]


def test_mean_power_divides_by_the_time_between_the_readings():
    assert used(counters(gpu0=float), {"gpu0": 0.0}, {"gpu0": 40.0}, 4.03, 4.0).metrics["power_mean_w"] == 40 / 4.03


def test_samples_gaps_and_peaks_are_told_with_the_energy():
    metrics = used(sampled(VDD_IN=0.02), {"VDD_IN": 1.0}, {"VDD_IN": 8.0}).metrics
    assert (metrics["power_samples"], metrics["power_gap_max_s"], metrics["power_peak_w"]) == (50, 0.03, 9.0)


def test_net_energy_is_gross_less_idle_power_over_the_same_time_and_may_be_negative():
    def net(idle):
        return used(counters(gpu0=float), {"gpu0": 0.0}, {"gpu0": 40.0}, 4.0, idle_w=idle).metrics["net_energy_j"]

    assert (net(3.0), net(11.0)) == (28.0, -4.0)


@pytest.mark.parametrize(
    ("averaging_s", "structure_j", "half_width_j"),
    [
        pytest.param(0.0, 3.0, 1.0, id="it integrates all the time: one period"),
        pytest.param(0.025, 3.0, 1.0 + 3.0, id="part of the time: what its sampled power varies by"),
        pytest.param(
            0.025, None, 1.0 + 10 * (1.98 * math.sqrt(75) + 1.5) * 0.1, id="and nothing samples: 0 to twice 10 W"
        ),
        pytest.param(None, None, 1.0 + 10 * (1.98 * 10 + 1.5) * 0.1, id="unknown: it may measure next to nothing"),
    ],
)
def test_a_counter_misses_power_that_its_sensor_does_not_measure(averaging_s, structure_j, half_width_j):
    parts = {"gpu0": Counter(Domain("counter", 0.1, "GPU board", averaging_s=averaging_s), float)}
    beside = structure_j and Scripted(WELL._replace(peak_w=10.0, structure_j=structure_j), gpu0_sampled=averaging_s)
    meter = Instruments(counters=parts, powers=beside or None, total=["gpu0"], covers="all")
    told = meter.sampling(0, 10 * SECOND)
    assert meter.half_width_j({"gpu0": 100.0}, 10.0, told) == pytest.approx(half_width_j, rel=0.01)


def test_what_a_counter_may_be_off_by_is_a_period_of_it_and_the_stretch_beside_the_window():
    metrics = used(counters(gpu0=float), {"gpu0": 0.0}, {"gpu0": 400.0}, 4.0, 3.99).metrics
    assert metrics["energy_uncertainty_j"] == pytest.approx(100 * 0.1 + 100 * 0.01)


def test_a_counter_is_read_late_at_peak_power_too():
    parts = {"gpu0": Counter(Domain("counter", 0.1, "GPU board"), float)}
    powers = Scripted(WELL._replace(peak_w=250.0), gpu0_sampled=0.02)
    meter = Instruments(counters=parts, powers=powers, total=["gpu0"], covers="all")
    metrics = used(meter, {"gpu0": 0.0}, {"gpu0": 400.0}, 4.0).metrics
    assert metrics["energy_uncertainty_j"] == pytest.approx(250 * 0.1)


def test_what_a_sampled_power_may_be_off_by_is_what_its_samples_say_and_the_stretch_beside_the_window():
    metrics = used(sampled(VDD_IN=0.02), {"VDD_IN": 0.0}, {"VDD_IN": 40.0}, 4.0, 3.99).metrics
    assert metrics["energy_uncertainty_j"] == pytest.approx(0.25 + 10 * 0.01)


def test_idle_power_is_what_was_used_while_nothing_was_done():
    clock = {"joules": 100.0}
    meter = counters(period_s=1e-9, cpu0=lambda: clock["joules"])
    found = rest(meter, 0.1, sleep=lambda seconds: clock.update(joules=160.0))
    assert found.metrics["energy_j"] == 60


def test_idle_power_that_cannot_be_had_says_why():
    found = rest(counters(cpu0=lambda: 7.0), 1.0, sleep=lambda seconds: None)
    assert found.metrics == {}
    assert found.notes[0].startswith("no energy of cpu0: ")


@pytest.mark.parametrize("meter", [Absent("none"), counters(source="estimated", cpu=float)], ids=["none", "estimate"])
def test_where_nothing_measures_no_idle_power_is_waited_for(meter):
    def never(seconds):
        raise AssertionError("it slept")

    assert rest(meter, 10, sleep=never).metrics == {}


def test_a_reading_is_stamped_with_the_middle_of_its_reading(monkeypatch):
    clock = {"now_ns": 1000}

    def slow_read():
        clock["now_ns"] += 600
        return 7.0

    monkeypatch.setattr("time.monotonic_ns", lambda: clock["now_ns"])
    assert reading(counters(gpu0=slow_read)) == Reading(1300, {"gpu0": 7.0}, took_ns=600)
