"""Ratios of samples of few values: against scipy, and with disturbed, rounded and single values."""

import math
import random
from statistics import fmean

import pytest
from scipy.stats import ttest_ind

from epochmeter.report.trimmed_ratios import trimmed_ratios

NOISY = random.Random(0)


def sample(count, mean=1.0, noise=0.01, chance=NOISY):
    return [mean * chance.lognormvariate(0, noise) for _ in range(count)]


@pytest.mark.parametrize(("counts", "trim"), [((3, 3), 0), ((5, 9), 0), ((10, 10), 0.1), ((20, 12), 0.1)])
def test_ratio_and_p_value_are_those_of_yuens_test_of_the_logarithms(counts, trim):
    before, after = (sample(count, mean) for count, mean in zip(counts, (1.0, 1.02), strict=True))
    (found,) = trimmed_ratios([(before, after)])
    known = ttest_ind([*map(math.log, after)], [*map(math.log, before)], equal_var=False, trim=trim)
    assert found.p_value == pytest.approx(known.pvalue)
    assert found.ratio.value == pytest.approx(found.after / found.before)
    assert found.ratio.low < found.ratio.value < found.ratio.high


def test_one_disturbed_step_of_ten_does_not_hide_a_change():
    before, after = sample(10), sample(10, 1.05)
    (clean,), (disturbed,) = trimmed_ratios([(before, after)]), trimmed_ratios([([*before[1:], 5.0], after)])
    assert disturbed.ratio.value == pytest.approx(clean.ratio.value, rel=0.01)
    assert max(clean.p_value, disturbed.p_value) < 0.01


def test_single_values_have_a_ratio_without_an_interval():
    (found,) = trimmed_ratios([([2.0], [3.0, 3.1])])
    assert (found.before, found.p_value, found.ratio.low) == (2.0, None, None)


def test_rounded_values_are_not_more_certain_than_their_resolution():
    exact, rounded = (trimmed_ratios([([3.0] * 3, [4.0] * 3)], resolution)[0] for resolution in (0.0, 1.0))
    assert (exact.p_value, exact.ratio.low) == (0.0, pytest.approx(4 / 3))
    assert rounded.p_value == pytest.approx(0.047, abs=0.001)  # standard error of each: 1 / sqrt(6) / sqrt(3)


@pytest.mark.parametrize(("spread", "narrower"), [(0, True), (2, False)], ids=["alike", "unlike"])
def test_variances_of_others_add_certainty_only_if_they_are_alike(spread, narrower):
    """By the mean width of the intervals of many pairs of three values each, together and alone."""
    chance = random.Random(1)
    noises = [0.01 * chance.lognormvariate(0, spread) for _ in range(200)]
    pairs = [tuple(sample(3, noise=noise, chance=chance) for _ in range(2)) for noise in noises]
    together, alone = trimmed_ratios(pairs), [trimmed_ratios([pair])[0] for pair in pairs]
    widths = [
        [math.log(each.ratio.high / each.ratio.low) / noise for each, noise in zip(found, noises, strict=True)]
        for found in (together, alone)
    ]
    assert (fmean(widths[0]) < 0.8 * fmean(widths[1])) == narrower
    assert trimmed_ratios(pairs[:4]) == alone[:4]


def alike(count=40, chance=NOISY):
    return [tuple(sample(3, chance=chance) for _ in range(2)) for _ in range(count)]


def test_a_sample_of_another_kind_does_not_change_what_the_others_show():
    """Such as the time between operators, which a trace may have without any noise."""
    pairs, constant = alike(), ([1.0, 1.0 + 1e-9, 1.0], [1.0, 1.0, 1.0 + 1e-9])
    with_it = trimmed_ratios([*pairs, constant])[:-1]
    assert [found.p_value for found in with_it] == pytest.approx(
        [found.p_value for found in trimmed_ratios(pairs)], abs=0.02
    )


@pytest.mark.parametrize("factor", [1.2, 2.0, 10.0])
def test_one_disturbed_step_of_three_is_no_change_although_all_others_are_alike(factor):
    disturbed = ([1.0, 0.99, 1.01], [1.0 * factor, 1.01, 0.99])
    *_, found = trimmed_ratios([*alike(chance=random.Random(3)), disturbed])
    assert found.p_value > 0.05


def test_equal_samples_differ_rarely_at_any_level_of_noise():
    chance = random.Random(2)
    pairs = [(sample(10, noise=noise, chance=chance), sample(10, noise=noise, chance=chance))
             for noise in [0.001, 0.01, 0.1] * 1000]  # fmt: skip
    found = [each.p_value for each in trimmed_ratios(pairs)]
    assert 0.03 < sum(p_value < 0.05 for p_value in found) / len(found) < 0.06
