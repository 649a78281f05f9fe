"""The search for the best power limit on simulated devices of known time and power."""

import math
from functools import partial

import numpy as np
import pytest

from epochmeter.power.limit_search import LimitSearch, Probe, estimate

LIMITS_W = [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0, 275.0, 300.0]
DEFAULT = 8


def power_w(limit_w):
    return min(limit_w, 260.0)


def step_s(limit_w):
    """Time of a step: the part limited by computation slows down with the third root of the power above 50 W."""
    return 0.02 + 0.08 * (210 / (power_w(limit_w) - 50)) ** (1 / 3)


def energy(seconds, watts, delay=1, power=1):
    return seconds**delay * watts**power


DELAY, ENERGY_DELAY_SQUARED = partial(energy, power=0), partial(energy, delay=2)


def search(cost=energy, noise=0.0, drift=0.0, seed=0, time_of=step_s, power_of=power_w, limits_w=LIMITS_W, **bounds):
    """Run a search to its end, with noise and linear drift of the probes."""
    random = np.random.default_rng(seed)
    found = LimitSearch(limits_w, len(limits_w) - 1, cost, **bounds)
    while (limit := found.next_limit()) is not None:
        slower = math.exp(random.normal(0, noise) + drift * len(found.probes))
        seconds = time_of(limits_w[limit]) * slower
        found.add(Probe(limit, seconds, seconds * power_of(limits_w[limit]) * math.exp(random.normal(0, noise))))
    return found


@pytest.mark.parametrize(
    ("cost", "bounds", "best"),
    [
        (energy, {}, min(LIMITS_W, key=lambda watts: step_s(watts) * power_w(watts))),
        (energy, {"max_slowdown": 1.12}, min(w for w in LIMITS_W if step_s(w) <= 1.12 * step_s(300))),
        (DELAY, {}, min(w for w in LIMITS_W if w >= 260)),
        (DELAY, {"power_budget_w": 180}, 175.0),
        (ENERGY_DELAY_SQUARED, {}, min(LIMITS_W, key=lambda watts: step_s(watts) ** 2 * power_w(watts))),
    ],
)
def test_best_limit_of_each_objective_is_chosen(cost, bounds, best):
    found = search(cost, **bounds)
    choice = found.choice()
    seconds = [step_s(watts) for watts in LIMITS_W]
    costs = [cost(second, power_w(watts)) for second, watts in zip(seconds, LIMITS_W, strict=True)]
    assert costs[choice.limit] <= 1.01 * costs[LIMITS_W.index(best)]
    assert choice.is_allowed
    assert seconds[choice.limit] <= bounds.get("max_slowdown", math.inf) * seconds[DEFAULT]
    saving = 1 - costs[choice.limit] / costs[DEFAULT]
    # Reduced, as the choice of the lowest of several estimates is assumed to have an error.
    assert choice.saving[0] == pytest.approx(saving, abs=2e-3)
    assert choice.saving[1] <= saving <= choice.saving[2]
    assert choice.slowdown == pytest.approx(seconds[choice.limit] / seconds[DEFAULT], rel=1e-3)
    assert len(found.tried) < len(LIMITS_W)


@pytest.mark.parametrize(("bound", "percentile_95"), [(math.inf, 0.03), (1.12, 0.1)])
def test_confidence_covers_and_regret_is_small_with_noise_and_drift(bound, percentile_95):
    is_allowed = [step_s(watts) <= bound * step_s(300) for watts in LIMITS_W]
    costs = [step_s(watts) * power_w(watts) for watts in LIMITS_W]
    best = min(cost for cost, allowed in zip(costs, is_allowed, strict=True) if allowed)
    regrets, covered, confidences, violated, references = [], [], [], [], []
    for seed in range(60):
        found = search(noise=0.02, drift=0.003, seed=seed, max_slowdown=bound if bound < math.inf else None)
        choice = found.choice()
        regrets.append(costs[choice.limit] / best - 1)
        covered.append(costs[choice.limit] <= 1.01 * min(costs[limit] for limit in found.tried if is_allowed[limit]))
        confidences.append(choice.confidence)
        violated.append(not is_allowed[choice.limit])
        references.append(sum(probe.limit == DEFAULT for probe in found.probes))
    assert np.median(regrets) <= 0.01
    assert np.percentile(regrets, 95) <= percentile_95
    assert np.mean(covered) >= np.mean(confidences) - 2 * math.sqrt(0.05 * 0.95 / 60)
    assert np.mean(violated) <= 0.05
    assert np.mean(references) > (4 if bound < math.inf else 1), "a slowdown is relative to a time that may drift"


def stairs(law, width):
    """Return a law of a device that rounds a limit down to every second one, or so."""
    return lambda limit_w: law(LIMITS_W[0] + (limit_w - LIMITS_W[0]) // width * width)


@pytest.mark.parametrize("width", [50.0, 75.0, 100.0])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_search_passes_over_limits_with_equal_cost(width, noise):
    """Two equal neighbors ended the search, at up to 25 % more energy than that of the best limit."""
    laws = {"time_of": stairs(step_s, width), "power_of": stairs(power_w, width)}
    costs = [laws["time_of"](watts) * laws["power_of"](watts) for watts in LIMITS_W]
    regrets = [costs[search(noise=noise, seed=seed, **laws).choice().limit] / min(costs) - 1 for seed in range(10)]
    assert max(regrets) <= 0.01


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_interval_of_the_saving_holds_although_the_lowest_estimate_is_chosen(noise):
    costs = [step_s(watts) * power_w(watts) for watts in LIMITS_W]
    held, excess = [], []
    for seed in range(150):
        choice = search(noise=noise, drift=0.001, seed=seed).choice()
        saving = 1 - costs[choice.limit] / costs[DEFAULT]
        held.append(choice.saving[1] <= saving <= choice.saving[2])
        excess.append(choice.saving[0] - saving)
    assert np.mean(held) >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / 150)
    assert abs(np.mean(excess)) <= 0.005


def test_limits_without_effect_are_tried_and_the_lowest_chosen_if_none_keeps_a_bound():
    found = search(time_of=lambda watts: 0.1, power_of=lambda watts: 70.0)
    assert len(found.tried) > 4
    assert abs(found.choice().saving[0]) < 0.01
    choice = search(power_budget_w=90).choice()
    assert (choice.limit, choice.is_allowed) == (0, False)


def test_linear_drift_does_not_bias_an_estimate():
    probes = [Probe(number % 2, 1.0, 1.0) for number in range(12)]
    logarithms = [0.05 * (number % 2) + 0.01 * number for number in range(12)]
    difference, error = estimate(probes, logarithms).difference(1, 0)
    assert difference == pytest.approx(0.05, abs=0.002)
    assert error < 0.01


@pytest.mark.parametrize(("power_exponent", "is_lower"), [(1.0, False), (3.0, True)])
def test_lower_clock_is_left_out_only_if_its_power_cannot_be_low_enough(power_exponent, is_lower):
    """A step at 80 % of the clock takes 0.8 of the power if that follows the clock, and 0.8 cubed with the voltage."""

    def cost(seconds, watts):
        return watts + 60.0  # a part that does not depend on the clock

    found = LimitSearch([800.0, 1000.0, 1400.0], 2, cost, power_exponent=power_exponent, start=1)
    for limit, watts in ((2, 300.0), (1, 150.0)):
        found.add(Probe(limit, 1.0, watts))
    lowest = found._least_cost(0)
    assert lowest == pytest.approx(60 + 150 * 0.8**power_exponent, rel=0.2)
    assert (lowest < 60 + 150 * 0.7) == is_lower
