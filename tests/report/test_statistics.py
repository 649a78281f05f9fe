"""Statistics of repeats: values computed by hand or with scipy, and error rates by simulation."""

import math
import random
import statistics
from itertools import pairwise

import pytest
from cases import case, cases
from scipy.stats import gmean, ttest_1samp, ttest_ind, ttest_rel
from scipy.stats import t as t_distribution

from epochmeter.report.statistics import (
    Estimate,
    contrast,
    false_discovery_rates,
    fits,
    indistinguishable_from_best,
    mean,
    pairwise_ratios,
    positive_means,
    ratio_in_fits,
    tukey_critical_value,
)


def bounds(estimate):
    return estimate.low, estimate.high


def difference(more, less, rounds=None):
    by_name = rounds and {"more": rounds[0], "less": rounds[1]}
    return contrast({"more": 1.0, "less": -1.0}, {"more": more, "less": less}, by_name)


def test_difference_has_welchs_interval_and_none_of_a_single_run():
    samples = [190.0, 192.0, 188.0], [100.0, 101.0, 99.0]
    known = ttest_ind(*samples, equal_var=False)
    assert difference(*samples).value == pytest.approx(90.0)
    assert bounds(difference(*samples)) == pytest.approx([*known.confidence_interval()])
    assert difference([3.0], [2.0]) == difference([3.0, 3.0], [2.0]) == Estimate(1.0)
    assert difference([3.0, 3.0], [2.0, 2.0]) == Estimate(1.0, 1.0, 1.0)


@pytest.mark.parametrize("values", [[0.714, 0.884], [5.0, 5.5, 6.3], [0.1, 9.0], [100.0, 101.0, 99.5, 100.2]])
def test_positive_mean_has_students_interval_of_the_logarithms(values):
    assert bounds(mean(values)) == pytest.approx(ttest_1samp(values, 0).confidence_interval())
    known = ttest_1samp([math.log(value) for value in values], 0).confidence_interval()
    found = positive_means({0: values})[0]
    assert bounds(found) == pytest.approx([math.exp(log) for log in known])
    assert found.value == pytest.approx(gmean(values))
    assert positive_means({0: [0.1] * 3})[0].value == 0.1


def test_interval_of_two_repeats_borrows_from_other_configurations():
    alone = positive_means({0: [20.0, 20.4]})[0]
    samples = [20.0, 20.4], [10.0, 10.1], [5.0, 5.1], [30.0, 30.2], [7.0]
    together, *_, once = positive_means(dict(enumerate(samples))).values()
    assert together.value == alone.value
    assert together.high - together.low < (alone.high - alone.low) / 2
    assert once == Estimate(7.0), "a single run has no interval, whatever the others vary by"


def test_difference_of_at_least_three_common_rounds_is_paired():
    one, other = [10.0, 12.0, 14.5], [9.0, 11.1, 13.2]
    known = pytest.approx(ttest_rel(one, other).confidence_interval())
    assert bounds(difference(one, other, [["a", "b", "c"]] * 2)) == known
    assert bounds(difference(one, [11.1, 13.2, 9.0], [["a", "b", "c"], ["b", "c", "a"]])) == known
    for rounds in ([["a", "b", None]] * 2, [["a", "b", "c"], ["a", "b", "d"]], [["a", "b", "b"]] * 2):
        assert difference(one, other, rounds) == difference(one, other)
    assert difference(one[:2], other[:2], [[0, 1]] * 2) == difference(one[:2], other[:2])


def test_small_variances_are_moderated_by_the_pooled_one():
    """By hand: variances 2 and 8 with one degree of freedom each; the pooled one, 5, counts as 3 / 4 more.

    The larger one is not reduced, and its single degree of freedom borrows half as many.
    """
    (fitted,) = fits([[1.0, 3.0], [1.0, 5.0], [7.0]])
    assert fitted.variances == pytest.approx([5.75 / 1.75, 8.0, 5.0])
    assert fitted.dofs == pytest.approx([1.75, 1.375, 2.0])
    assert (fitted.means.tolist(), fitted.dof) == ([2.0, 3.0, 7.0], 2.0)
    assert fits([[1.0], [2.0]])[0].dof == 0


SUMMER = [f"2026-10-25T02:{minute}:00+02:00" for minute in (10, 20, 30, 40, 50)]
WINTER = [*SUMMER, *(f"2026-10-25T02:{minute}:00+01:00" for minute in (15, 25, 35, 45))]
"""Local times in order, between which clocks change to winter time."""


def test_effects_of_rounds_and_a_trend_are_removed_from_means_and_variances():
    """An additive table with residuals +-0.1: its two-way analysis of variance by hand."""
    bases, shifts = (1.0, 2.0, 4.0), (0.0, 5.0, -2.0)
    residuals = [[0.1, -0.1, 0.0], [-0.1, 0.1, 0.0], [0.0, 0.0, 0.0]]
    additive = [[base + shift for shift in shifts] for base in bases]
    samples = [[sum(pair) for pair in zip(*rows, strict=True)] for rows in zip(additive, residuals, strict=True)]
    (fitted,) = fits(samples, [[0, 1, 2]] * 3)
    assert fitted.dof == pytest.approx(4.0), "(3 - 1) x (3 - 1)"
    assert [later - earlier for earlier, later in pairwise(fitted.means)] == pytest.approx([1.0, 2.0])
    # The residual sum of squares per degree of freedom is 0.01. With 4 / 3 degrees each, two have squares of 0.02, and
    # the third has 0.75 of 0.01.
    assert fitted.variances == pytest.approx([0.015, 0.015, 0.75 * 0.01 / (4 / 3 + 0.75)])
    (fitted,) = fits([additive[0][:2], *additive[1:]], [[0, 1], [0, 1, 2], [0, 1, 2]])
    assert fitted.means[1] - fitted.means[0] == pytest.approx(1.0, abs=1e-3), "a missing run does not bias them"
    started = [["0", "5", "7"], ["1", "3", "8"], ["2", "4", "6"]]  # a trend of 1 per run, 10 more per round
    samples = [[base + float(place) + 10 * turn for turn, place in enumerate(places)]
               for base, places in zip(bases, started, strict=True)]  # fmt: skip
    local = [[WINTER[int(place)] for place in places] for places in started]
    for times in (started, local):
        (fitted,) = fits(samples, [[0, 1, 2]] * 3, times)
        assert fitted.dof == 3, "one less for the trend"
        assert [later - earlier for earlier, later in pairwise(fitted.means)] == pytest.approx([1.0, 2.0])


def test_few_rounds_are_fitted_with_their_effects_and_with_a_trend():
    samples, rounds = [[1.0, 3.1], [2.0, 4.0]], [[0, 1]] * 2
    blocked, trend = fits(samples, rounds, [["a", "c"], ["b", "d"]])
    assert blocked.means[1] - blocked.means[0] == pytest.approx(0.95)
    assert trend.means[1] - trend.means[0] == pytest.approx(0.95 - 2.05 / 2), "a trend of 2.05 per round of two runs"
    assert len(fits(samples, rounds, [["a", ""], ["b", "d"]])) == 1, "an unknown order has no trend"
    assert len(fits(samples, rounds, [["a", "a"], ["a", "a"]])) == 1, "nor have runs at the same time"
    one, other = (ratio_in_fits([fit], 1, 0) for fit in (blocked, trend))
    every = Estimate(one.value, min(one.low, other.low), max(one.high, other.high))
    assert ratio_in_fits([blocked, trend], 1, 0) == every
    assert ratio_in_fits(fits([[1.0], [2.0]]), 1, 0) == Estimate(math.e)


def test_trend_within_a_sweep_is_not_continued_in_the_next():
    """Of two equal configurations per sweep, the second of each round is slower by 0.1."""
    rounds = [[(sweep, turn) for turn in range(3)] for sweep in ("one", "two") for _ in range(2)]
    started = [["00", "03", "04"], ["01", "02", "05"], ["06", "09", "10"], ["07", "08", "11"]]
    (fitted,) = fits([[0.0, 0.1, 0.0], [0.1, 0.0, 0.1]] * 2, rounds, started)
    assert fitted.means == pytest.approx([0.05] * 4)
    (trend,) = fits([[0.0, 0.1, 0.21]] * 2, rounds[1:3], [["0", "1", "2"], ["3", "4", "5"]])
    assert trend.means[0] == pytest.approx(trend.means[1]), "with one configuration per sweep, there are no rounds"


def test_best_of_two_is_compared_as_by_a_t_test_and_the_best_of_many_is_corrected():
    for values, best, is_tie in (
        ([10.0], [10.0], True),
        ([10.1], [10.0], False),
        ([10.0, 10.0], [10.0, 10.0], True),
        ([11.0, 11.0], [10.0, 10.0], False),
        ([10.59], [10.0, 10.1, 10.2], True),  # 10.1 + 4.303 x 0.1 x sqrt(1 + 1/3) = 10.597
        ([10.61], [10.0, 10.1, 10.2], False),
    ):
        assert [*indistinguishable_from_best([values, best], 1)] == ([0, 1] if is_tie else [1])
    best, equal, seems, slower = [10.0, 10.1, 10.2], [10.0, 10.15, 10.2], [10.4, 10.3, 10.5], [20.0, 20.1, 20.2]
    assert indistinguishable_from_best([best, seems], 0) == {0: 1.0}
    ties = indistinguishable_from_best([best, seems, *[equal] * 18, slower], 0)
    assert [*ties] == [*range(20)]
    assert (ties[0], ties[1]) == (1.0, pytest.approx((10.4 * 10.3 * 10.5 / (10.0 * 10.1 * 10.2)) ** (1 / 3)))


def test_recommended_repeats_use_the_variances_of_both_configurations():
    """By hand: the variances of the logarithms are 0.0167 and 0.0035, moderated by 0.0101; 0.3 is their distance.

    2.776 + 0.941 standard errors are 0.305 with three repeats; 2.447 + 0.906 are 0.238 with four.
    """
    (repeated,), (once,) = fits([[0.0, 0.2], [0.39, 0.41]]), fits([[1.0], [2.0]])
    repeats = [fit.repeats(*ends, lambda dof: tukey_critical_value(2, dof))
               for fit, ends in ((repeated, (0, 1)), (repeated, (1, 0)), (once, (0, 1)))]  # fmt: skip
    assert repeats == [4, 4, None]


def sweep(chance, factors, repeats, noises, drift=0.0):
    """Return times that grow by a fraction over the sweep, and the number of each run in its random order."""
    times, started, number = [[] for _ in factors], [[] for _ in factors], 0
    for _ in range(repeats):
        for index in chance.sample(range(len(factors)), len(factors)):
            growth = 1 + drift * number / (len(factors) * repeats - 1)
            times[index].append(factors[index] * growth * math.exp(chance.gauss(0, noises[index])))
            started[index].append(f"{number:03}")
            number += 1
    return times, started


def fastest(times):
    return min(range(len(times)), key=lambda index: statistics.fmean(times[index]))


@cases(
    case(repeats=2, noises=[0.01] * 8, drift=0, most=8),
    case(repeats=3, noises=[0.005, 0.01, 0.02, 0.04] * 2, drift=0, most=10),
    case(repeats=2, noises=[0.01] * 2, drift=0.1, most=5),
    case(repeats=3, noises=[0.01] * 4, drift=0.1, most=7),
    case(repeats=2, noises=[0.04] + [0.01] * 3, drift=0, most=8),
    case(repeats=3, noises=[0.04] + [0.005] * 7, drift=0, most=6),
)
def test_equal_configurations_are_seldom_called_different(repeats, noises, drift, most):
    """Without the order of the runs, drift causes a false alarm in 10 and 7 % of the sweeps.

    If the variance of a single noisy configuration among eight is reduced, 8 % have one.
    """
    chance, alarms, rounds = random.Random(0), 0, [list(range(repeats))] * len(noises)
    for _ in range(300):
        times, started = sweep(chance, [1.0] * len(noises), repeats, noises, drift)
        alarms += len(indistinguishable_from_best(times, fastest(times), rounds, started)) < len(times)
    assert 100 * alarms / 300 <= most


@pytest.mark.parametrize(("count", "repeats"), [(2, 3), (28, 2)])
def test_interval_of_the_best_of_equal_configurations_covers_its_value(count, repeats):
    chance, covered = random.Random(0), 0
    for _ in range(200):
        times, _ = sweep(chance, [1.0] * count, repeats, [0.01] * count)
        best = fastest(times)
        covered += positive_means(dict(enumerate(times)), dict.fromkeys(range(count), count))[best].contains(1.0)
    assert covered >= 0.92 * 200


def test_pairwise_ratios_share_variances_and_have_p_values():
    pairs = [([10.0 + n, 10.2 + n], [11.0 + n, 11.1 + n]) for n in range(10)]
    ((ratio, alone),), ((_, together), *_) = pairwise_ratios(pairs[:1]), pairwise_ratios(pairs)
    assert (ratio.value, together < alone) == (pytest.approx(math.sqrt(11 * 11.1 / 10 / 10.2)), True)
    assert pairwise_ratios([([1.0], [2.0])]) == [(Estimate(2.0), None)]
    assert [p_value for _, p_value in pairwise_ratios([([1.0, 1.0], [1.0, 1.0]), ([1.0, 1.0], [2.0, 2.0])])] == [1, 0]
    # A single run has the variance of the repeats: (12 - 10) / (1 x sqrt(1 + 1/3)) = 1.732 on 2 degrees of freedom.
    for values in ((9.0, 10.0, 11.0), (13.0, 14.0, 15.0)):
        ((_, p_value),) = pairwise_ratios([([math.exp(value) for value in values], [math.exp(12.0)])])
        assert p_value == pytest.approx(1 - 0.6**0.5), "1 - 1.732 / sqrt(2 + 3)"


def test_equal_variances_of_many_pairs_are_pooled():
    """Logarithms of 1 +- 0.1 and 1.2 +- 0.1: 12 pairs have all 24 degrees of freedom, 8 have 1 + 16 / 4 per side."""
    pair = [math.exp(value) for value in (0.9, 1.1)], [math.exp(value) for value in (1.1, 1.3)]
    for pairs, dof in {12: 24, 8: 10}.items():
        (_, p_value), *_ = pairwise_ratios([pair] * pairs)
        assert p_value == pytest.approx(2 * t_distribution.sf(0.2 / math.sqrt(0.02), dof))


def fractions_called_different(factor, repeats, noises, count=50):
    """Return the fractions of pairs that are called different, and of comparisons in which any is."""
    chance, different = random.Random(0), []
    for _ in range(count):
        before, after = (sweep(chance, of, repeats, noises(chance))[0] for of in ([1.0] * 12, [factor] * 12))
        ratios, p_values = zip(*pairwise_ratios([*zip(before, after, strict=True)]), strict=True)
        rates = false_discovery_rates(p_values)
        different.append([rate <= 0.05 and not ratio.contains(1) for ratio, rate in zip(ratios, rates, strict=True)])
    return statistics.fmean(map(statistics.fmean, different)), statistics.fmean(map(any, different))


@pytest.mark.parametrize(("repeats", "least"), [(2, 0.49), (3, 0.78)])
def test_common_slowdown_is_detected_and_unequal_noise_raises_few_false_alarms(repeats, least):
    """5 % at 2 % noise in 12 pairs: a t-test of each pair alone detects 1 to 3 % and 20 to 37 % of them.

    With fully pooled variances, any of 12 equal pairs would be called different in 15 % of the comparisons.
    """
    assert fractions_called_different(1.05, repeats, lambda _: [0.02] * 12)[0] >= least

    def unequal(chance):
        return [0.005 * 8 ** chance.random() for _ in range(12)]

    assert fractions_called_different(1.0, repeats, unequal, 200)[1] <= 0.1


def test_critical_values_are_those_of_the_tables():
    table = {(2, 10): 3.151, (3, 10): 3.877, (10, 20): 5.008, (20, 5): 8.208, (2, 10.9): 3.151}
    values = {place: tukey_critical_value(*place) * math.sqrt(2) for place in table}
    assert values == pytest.approx(table, abs=1e-3)


def test_false_discovery_rates_refer_to_the_tests_without_effect():
    """By hand: the rates of Benjamini and Hochberg are 0.5, 0.04, 0.16 / 3 and 0.04.

    Two are below 0.05 / 1.05, so two of four tests have no effect.
    """
    rates = [1.05 / 2 * rate for rate in (0.5, 0.04, 0.16 / 3, 0.04)]
    assert false_discovery_rates([0.5, 0.01, 0.04, 0.02]) == pytest.approx(rates)
    assert false_discovery_rates([0.5, 0.3]) == pytest.approx([1.05 * 0.5, 1.05 * 0.5])
    assert (false_discovery_rates([]), false_discovery_rates([0.03])) == ([], [pytest.approx(1.05 * 0.03)])
