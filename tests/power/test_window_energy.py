import math
import time
from itertools import pairwise

import pytest
from cases import case, cases
from power.conftest import ScriptedPowers, counters

from epochmeter.power import window_energy
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.power_series import Sampling
from epochmeter.power.uncertainty import NONE, Response
from epochmeter.power.window_energy import (
    IdlePower,
    Reading,
    WindowEnergy,
    energy_of_window,
    measure_idle,
    take_reading,
)

SECOND = 1_000_000_000
WELL = Sampling(samples=50, gap_max_s=0.03, failed=0, unavailable={}, peak_w=9.0, half_width_j=0.25)


def scripted(sampling=WELL, **averaging_s):
    """Sampled power with given sampling statistics; each domain has as many samples as the total."""
    counts = dict.fromkeys(averaging_s, sampling.samples)
    return ScriptedPowers(sampling._replace(samples_per_domain=counts), **averaging_s)


def sampled(sampling=WELL, **domains):
    return EnergyMeter(powers=scripted(sampling, **domains), total=list(domains), covers="all")


def checked_counter(powers, response=NONE):
    """A GPU's counter, and its sampled power as a cross-check."""
    parts = {"gpu0": Instrument(Domain("counter", 0.1, "GPU board", response=response), float)}
    return EnergyMeter(counters=parts, powers=powers, total=["gpu0"], covers="all")


def limited(limit_w):
    """A GPU's counter without sampled power, whose highest power limit is known."""
    counter = Instrument(Domain("counter", 0.1, "GPU board", limit_w=limit_w), float)
    return EnergyMeter(counters={"gpu0": counter}, total=["gpu0"], covers="all")


def used(meter, before, after, seconds=1.0, window_s=None, **how):
    """The energy between two readings that are `seconds` apart."""
    borders = Reading(7 * SECOND, before), Reading(round((7 + seconds) * SECOND), after)
    return energy_of_window(*borders, meter, seconds if window_s is None else window_s, **how)


def energies(energy):
    return {name: value for name, value in energy.metrics.items() if "energy" in name and "uncertainty" not in name}


LATE = Instrument(Domain("counter", 0.1, "GPU board", 5.0, Response(0.1, 0.02, 0.1)), float)
LATE_COUNTER = EnergyMeter(counters={"gpu0": LATE}, total=["gpu0"], covers="all")
GPU, TOO_SHORT = counters(gpu0=float), "gpu0: window of 0.4 s, at least 1 s"
LOST = sampled(WELL._replace(unavailable={"VDD_IN": "no reading for 3.0 s"}), VDD_IN=0.02)
CHECK_LOST = WELL._replace(unavailable={"gpu0": "no reading", "gpu0_sampled": "no reading"})
LOST_CHECK = checked_counter(scripted(CHECK_LOST, gpu0=0.02, gpu0_sampled=0.02))
BRIDGED = sampled(WELL._replace(failed=3, correction_j={"VDD_IN": 0.5}), VDD_IN=0.02)
SHORT_CHECK = checked_counter(scripted(WELL._replace(samples=2), gpu0_sampled=0.0))
BEFORE, AFTER = {"gpu0": 1.0, "gpu0_sampled": 0.0, "VDD_IN": 1.0}, {"gpu0": 9.0, "gpu0_sampled": 8.0, "VDD_IN": 9.0}
USED = {"energy_j": 8.0, "energy_gpu0_j": 8.0}
WINDOWS = {
    "unread": (GPU, BEFORE, {}, 1.0, {}, "gpu0: the counter"),
    "unread, short": (GPU, BEFORE, {}, 0.4, {}, TOO_SHORT),
    "stood still": (GPU, BEFORE, BEFORE, 1.0, {}, "gpu0: the counter"),
    "reset": (GPU, AFTER, BEFORE, 1.0, {}, "gpu0: the counter"),
    "reset, short": (GPU, AFTER, BEFORE, 0.4, {}, TOO_SHORT),
    "estimate": (counters("estimated", gpu0=float), BEFORE, AFTER, 1.0, {"estimated_energy_j": 8.0}, ""),
    "estimate, unread, short": (counters("estimated", gpu0=float), BEFORE, {}, 0.4, {}, TOO_SHORT),
    "rail without load": (sampled(CV=0.02, GPU=0.02), {"CV": 1.0, "GPU": 1.0}, {"CV": 1.0, "GPU": 3.0}, 1.0,
                          {"energy_j": 2.0, "energy_CV_j": 0.0, "energy_GPU_j": 2.0}, ""),
    "lost sensor": (LOST, BEFORE, AFTER, 1.0, {}, "VDD_IN: no reading for 3.0 s."),
    "lost sensor, short": (LOST, BEFORE, AFTER, 0.03, {}, "VDD_IN: no reading for 3.0 s."),
    "lost cross-check": (LOST_CHECK, BEFORE, AFTER, 1.0, USED, "gpu0_sampled: no reading."),
    "corrected, with failed readings": (BRIDGED, BEFORE, AFTER, 1.0, {"energy_j": 8.5, "energy_VDD_IN_j": 8.5},
                                        "3 power readings failed"),
    "three samples": (sampled(WELL._replace(samples=3), gpu0=0.0), BEFORE, AFTER, 0.02, USED, ""),
    "too few samples of a cross-check": (SHORT_CHECK, BEFORE, AFTER, 1.0, USED, ""),
    "the same, without a counter": (SHORT_CHECK, BEFORE, {**AFTER, "gpu0": 1.0}, 1.0, {},
                                    "gpu0: the counter|gpu0_sampled: 2 power samples in 1 s, at least 3"),
}  # fmt: skip


@pytest.mark.parametrize(("meter", "before", "after", "seconds", "expected", "notes"), WINDOWS.values(), ids=WINDOWS)
def test_window_has_an_energy_or_the_reason_why_it_has_none(meter, before, after, seconds, expected, notes):
    energy = used(meter, before, after, seconds)
    texts = [text if text[0].isdigit() else f"no energy of {text}" for text in notes.split("|") if text]
    assert energies(energy) == expected
    assert [text[: len(start)] for text, start in zip(energy.notes, texts, strict=True)] == texts
    failed = [] if expected else [text.split(":")[0] for text in notes.split("|") if "at least" not in text]
    assert ([*energy.unavailable], bool(energy.term)) == (failed, bool(expected))
    assert energy.metrics.get("power_peak_w") == (9.0 if expected and meter.sampling(0, 1) else None)


def test_sampling_statistics_exclude_the_readings_at_the_borders():
    """The readings take samples themselves, which are at the borders of the window rather than in it."""
    meter, windows = sampled(VDD_IN=0.0), []
    meter.sampling = lambda *window: windows.append(window)
    energy_of_window(Reading(1000, {}, 300, 300), Reading(9000, {}, 200, 200), meter, 1.0)
    assert windows == [(1300, 8800, None)]


def test_windows_too_short_alone_are_exact_terms_of_a_sum():
    meter = counters(gpu0=float)
    readings = [{"gpu0": joules} for joules in (100.0, 100.0, 140.0, 140.0, 180.0)]  # one every 0.4 s
    terms = [used(meter, *pair, 0.4).term for pair in pairwise(readings)]
    assert [term["energy_j"] for term in terms] == [0, 40, 0, 40]
    assert {(term["period_s"], term["shortest_s"]) for term in terms} == {(0.1, 1.0)}
    stopped = used(LATE_COUNTER, {"gpu0": 100.0}, {"gpu0": 100.0}, 0.4)
    assert (stopped.joules, stopped.term["energy_j"], stopped.term["period_s"]) == ({}, 0.0, pytest.approx(0.12))
    term = used(sampled(VDD_IN=0.0), {"VDD_IN": 1.0}, {"VDD_IN": 9.0}, 0.4).term
    assert (term["energy_j"], term["period_s"]) == (8.0, 0.0), "its sensor's delay is part of its uncertainty"
    both = {
        name: Instrument(Domain("counter", period_s, name), float) for name, period_s in {"a": 0.1, "b": 0.2}.items()
    }
    slower = EnergyMeter(counters=both, total=["a", "b"], covers="all")
    assert used(slower, {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}, 0.4).term["period_s"] == 0.2
    part_time = checked_counter(None, Response(0.025, 0.0, 0.1))
    term = used(part_time, {"gpu0": 0.0}, {"gpu0": 100.0}, 10.0).term
    assert term["unsampled_j"] == part_time.unsampled_j({"gpu0": 100.0}, 10.0, None) > 0


def test_mean_power_is_between_the_readings_and_net_energy_may_be_negative():
    def metrics(idle_w):
        idle = IdlePower(idle_w, 0.0)
        return used(counters(gpu0=float), {"gpu0": 0.0}, {"gpu0": 40.0}, 4.03, 4.0, idle=idle).metrics

    assert metrics(3.0)["power_mean_w"] == 40 / 4.03
    assert [metrics(idle_w)["net_energy_j"] for idle_w in (3.0, 11.0)] == pytest.approx([28.0, -4.0], abs=0.4)


def test_uncertainty_of_net_energy_includes_that_of_the_idle_power():
    """40 J +/- one period of the counter at 20 W, 2 J; 8 W +/- 0.75 W at idle are 32 J +/- 3 J in 4 s."""
    net = used(counters(gpu0=float), {"gpu0": 0.0}, {"gpu0": 40.0}, 4.0, idle=IdlePower(8.0, 0.75))
    assert net.metrics["energy_uncertainty_j"] == pytest.approx(2.0)
    assert net.metrics["net_energy_j"] == pytest.approx(8.0)
    assert net.metrics["net_energy_uncertainty_j"] == pytest.approx(math.hypot(2.0, 3.0))
    assert net.term["idle_uncertainty_j"] == 3.0
    gross = used(counters(gpu0=float), {"gpu0": 0.0}, {"gpu0": 40.0}, 4.0)
    assert not {"net_energy_uncertainty_j", "idle_uncertainty_j"} & {*gross.metrics, *gross.term}


@pytest.mark.parametrize(
    ("averaging_s", "structure_j", "half_width_j"),
    [
        (0.1, 3.0, 1.0),
        (0.0, 3.0, math.hypot(1, 3)),
        (0.025, 3.0, math.hypot(1, 3)),
        (0.025, None, math.hypot(2, 1.96 * math.sqrt(75) + 1.5)),
        (None, None, math.hypot(2, 1.96 * 10 + 1.5)),
    ],
    ids=[
        "continuous: one period",
        "instantaneous",
        "part-time: variation of the samples",
        "part-time, not sampled",
        "unknown",
    ],
)
def test_uncertainty_includes_power_that_a_part_time_sensor_misses(averaging_s, structure_j, half_width_j):
    powers = structure_j and scripted(WELL._replace(peak_w=10.0, structure_j=structure_j), gpu0_sampled=averaging_s)
    meter = checked_counter(powers, Response(averaging_s, 0.0, 0.1))
    sampling = meter.sampling(0, 10 * SECOND)
    assert meter.half_width_j({"gpu0": 100.0}, 10.0, sampling) == pytest.approx(half_width_j, rel=0.005)


PART_TIME = Response(0.025, 0.0, 0.1)


@cases(
    case("in step", response=PART_TIME, checked_s=0.025, in_step_j=8.0, half_width_j=math.hypot(1, 8), is_in_step=True),
    case("hardly", response=PART_TIME, checked_s=0.025, in_step_j=5.0, half_width_j=math.hypot(1, 5), is_in_step=False),
    case(
        "evenly sampled",
        response=PART_TIME,
        checked_s=0.025,
        in_step_j=1.0,
        half_width_j=math.hypot(1, 3),
        is_in_step=False,
    ),
    case(
        "steps unknown",
        response=PART_TIME,
        checked_s=0.025,
        in_step_j=None,
        half_width_j=math.hypot(1, 3),
        is_in_step=None,
    ),
    case(
        "samples of another sensor",
        response=PART_TIME,
        checked_s=1.0,
        in_step_j=8.0,
        half_width_j=math.hypot(2, 1.96 * math.sqrt(75) + 1.5),
        is_in_step=None,
    ),
    case(
        "continuous counter",
        response=Response(0.1, 0.0, 0.1),
        checked_s=0.025,
        in_step_j=8.0,
        half_width_j=1.0,
        is_in_step=False,
    ),
)
def test_uncertainty_includes_the_part_of_each_step_that_a_part_time_counter_misses(
    response, checked_s, in_step_j, half_width_j, is_in_step
):
    sampling = WELL._replace(peak_w=10.0, structure_j=3.0, in_step_j=in_step_j)
    meter = checked_counter(scripted(sampling, gpu0_sampled=checked_s), response)
    energy = used(meter, {"gpu0": 0.0}, {"gpu0": 100.0}, 10.0)
    assert energy.metrics["energy_uncertainty_j"] == pytest.approx(half_width_j, rel=0.01)
    assert energy.is_in_step is is_in_step
    if half_width_j != 1.0 and checked_s == 0.025:
        assert energy.term["unsampled_j"] == 3.0, "errors of steps in step may be of the same sign in all windows"


def test_sampled_power_includes_the_part_of_each_step_that_its_sensor_misses_once():
    sampling = WELL._replace(half_width_j=8.0, structure_j=3.0, in_step_j=7.9)
    powers = scripted(sampling, gpu0=0.025)
    powers.domains["gpu0"] = powers.domains["gpu0"]._replace(response=PART_TIME)
    meter = EnergyMeter(powers=powers, total=["gpu0"], covers="GPU board")
    energy = used(meter, {"gpu0": 0.0}, {"gpu0": 100.0}, 10.0)
    assert (energy.metrics["energy_uncertainty_j"], energy.is_in_step) == (8.0, True)


@pytest.mark.parametrize(
    ("meter", "uncertainty_j"),
    [
        pytest.param(counters(gpu0=float), 2 * 100 * 0.1, id="counter: one period at twice the mean"),
        pytest.param(limited(250.0), 250 * 0.1, id="counter: one period at the highest limit"),
        pytest.param(
            checked_counter(scripted(WELL._replace(peak_w=110.0), gpu0_sampled=1.0)), 200 * 0.1, id="1 s mean"
        ),
        pytest.param(checked_counter(scripted(WELL._replace(peak_w=250.0), gpu0_sampled=0.02)), 250 * 0.1, id="peak"),
        pytest.param(sampled(gpu0=0.02), 0.25, id="sampled: that of the samples"),
        pytest.param(LATE_COUNTER, 200 * (0.1 + 0.02) + 5.0, id="counter with a step and a sensor with a lag"),
        pytest.param(
            checked_counter(None, Response(1.0, 0.0, 0.1)), 200 * (0.1 + 0.45), id="counter of means over 1 s"
        ),
    ],
)
def test_uncertainty_is_that_of_the_meter_and_of_the_time_outside_the_window(meter, uncertainty_j):
    metrics = used(meter, {"gpu0": 0.0}, {"gpu0": 400.0}, 4.0, 3.99).metrics
    assert metrics["energy_uncertainty_j"] == pytest.approx(uncertainty_j + 100 * 0.01)


def test_reading_of_a_counter_is_at_its_middle_and_of_sampled_power_at_its_end(monkeypatch):
    clock = {"now_ns": 1000}

    def slow_read(**_):
        clock["now_ns"] += 600
        return 7.0

    monkeypatch.setattr("time.monotonic_ns", lambda: clock["now_ns"])
    monkeypatch.setattr(window_energy, "suspended_ns", lambda: 3_000_000_000)
    assert take_reading(counters(gpu0=slow_read)) == Reading(1300, {"gpu0": 7.0}, 300, 300, 3.0)
    waits = sampled(VDD_IN=0.0)
    monkeypatch.setattr(waits, "read", lambda fresh: {"VDD_IN": slow_read()})
    assert take_reading(waits) == Reading(2200, {"VDD_IN": 7.0}, 600, 0, 3.0)


def test_idle_energy_is_the_difference_over_the_idle_time():
    clock = {"joules": 100.0}
    meter = counters(period_s=1e-9, cpu0=lambda: clock["joules"])

    def idle(seconds):
        time.sleep(seconds)
        clock["joules"] = 160.0

    energy = measure_idle(meter, 0.01, sleep=idle)
    assert energy.metrics["energy_j"] == 60
    assert energy.metrics["energy_uncertainty_j"] < 0.01, "the readings are the window's borders"
    for unmeasured, seconds in ((meter, 0.0), (counters("estimated", cpu0=float), 0.1)):
        assert measure_idle(unmeasured, seconds, sleep=pytest.fail) == WindowEnergy({}, {}, [], {})
