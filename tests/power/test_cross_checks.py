"""Disagreements of energies: their limits, and windows of simulated sensors with known faults."""

from random import Random
from types import SimpleNamespace

import pytest
from power.simulated_sensors import CASES, GPU, GPU_PERIOD_S, H100, LEAD_S, WAVES, Case, Reader

from epochmeter.power.cross_checks import CrossCheck, find_disagreements
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.power_series import PowerSeries
from epochmeter.power.sampler import MAX_SILENCE_S
from epochmeter.power.uncertainty import UNKNOWN, Response
from epochmeter.power.window_energy import Reading, energy_of_window

SAME = CrossCheck(("check",), "equal to", ("gpu",))
WITHIN = CrossCheck(("core", "uncore"), "at most", ("cpu",))


@pytest.mark.parametrize(
    ("joules", "differences_j"),
    [
        ({"check": 107.0, "gpu": 100.0}, []),  # 1 J of uncertainty on either side, and 5 % of 107 J
        ({"check": 108.0, "gpu": 100.0}, [8.0]),
        ({"check": 100.0, "gpu": 108.0}, [8.0]),
        ({"check": 0.0, "gpu": 0.0}, []),
        ({"check": 50.0}, []),
        ({"core": 60.0, "uncore": 47.0, "cpu": 100.0}, []),
        ({"core": 60.0, "uncore": 48.0, "cpu": 100.0}, [8.0]),
        ({"core": 10.0, "uncore": 0.0, "cpu": 100.0}, []),
        ({"core": 60.0, "uncore": 48.0, "cpu": 100.0, "check": 1.0, "gpu": 9.0}, [8.0, 8.0]),
    ],
)
def test_energies_disagree_beyond_their_uncertainties_and_the_calibration(joules, differences_j):
    found = find_disagreements([SAME, WITHIN], joules, lambda names: 1.0)
    assert [disagreement.difference_j for disagreement in found] == differences_j


def disagreements(name, case, window_s, gain):
    """The differences in a window between a simulated counter times a gain, and the sampled power."""
    chance = Random(f"{name} {window_s}")
    load = case.load(window_s, chance)
    stated = case.stated or case.cross_check or case.response
    domain = Domain("sampled", case.period_s, "GPU board", 0.001, stated)
    power = PowerSeries({"gpu0_sampled": domain}, total=["gpu0_sampled"], bridge_s=MAX_SILENCE_S)
    sensor = Reader(load, case.cross_check or case.response, chance)
    counter = Reader(load, case.response, chance) if case.cross_check else sensor
    read, at_s, remaining_s = {}, -LEAD_S, [0.0, window_s]
    while remaining_s:
        now_s = min(at_s, remaining_s[0])
        power.add(round(now_s * 1e9) + 10**10, {"gpu0_sampled": sensor.watts(now_s)})
        if now_s == remaining_s[0]:
            read[remaining_s.pop(0)] = power.joules(round(now_s * 1e9) + 10**10)["gpu0_sampled"]
        else:
            at_s += chance.uniform(0.5, 1.5) * GPU_PERIOD_S
    counted_j = gain * counter.counted_j(0.0, window_s)
    response = (case.stated or case.response)._replace(renewal_s=0.1)
    meter = EnergyMeter(
        counters={"gpu0": Instrument(Domain("counter", 0.1, "GPU board", 0.001, response), float)},
        powers=SimpleNamespace(domains=power.domains, sampling=power.sampling),
        total=["gpu0"],
        covers="all",
        cross_checks=[CrossCheck(("gpu0_sampled",), "equal to", ("gpu0",))],
    )
    before = Reading(10**10, {"gpu0": 0.0, "gpu0_sampled": read[0.0]})
    after = Reading(10**10 + round(window_s * 1e9), {"gpu0": counted_j, "gpu0_sampled": read[window_s]})
    used = energy_of_window(before, after, meter, window_s)
    return used, [found.difference_j for found in used.disagreements], counted_j


STALLS = {name: case for name, case in CASES.items() if case.counter and "any square wave" not in name}
UNLISTED = Case(WAVES["constant"], Response(0.05, 0.0, 0.1), UNKNOWN, counter=True, **GPU)
CONSTANT = {"H100, constant": Case(WAVES["constant"], **H100, **GPU), "unlisted GPU, constant": UNLISTED}


@pytest.mark.parametrize("name", [*STALLS, *CONSTANT])
def test_sampled_power_does_not_contradict_a_right_counter(name):
    case = {**STALLS, **CONSTANT}[name]
    for number in range(8):
        for window_s in (0.5, 2.0, 10.0):
            _, differences_j, _ = disagreements(f"{name} {number}", case, window_s, gain=1.0)
            assert differences_j == [], f"window of {window_s:g} s"


@pytest.mark.parametrize("name", CONSTANT)
@pytest.mark.parametrize(("gain", "window_s"), [(1.1, 10.0), (0.9, 10.0), (0.0, 0.5)], ids=["more", "less", "stuck"])
def test_wrong_counter_is_contradicted_and_its_difference_is_in_the_uncertainty(name, gain, window_s):
    used, (difference_j,), counted_j = disagreements(name, CONSTANT[name], window_s, gain)
    sampled_j = counted_j / gain if gain else difference_j
    assert difference_j == pytest.approx(abs(sampled_j - counted_j), rel=0.25)
    low_j, high_j = (used.term["energy_j"] + sign * used.term["energy_uncertainty_j"] for sign in (-1, 1))
    assert low_j < sampled_j < high_j
