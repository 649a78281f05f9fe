"""Where stalls come from, by difference: known answers, computed by hand or published, and simulated runs."""

import random
from dataclasses import replace

import pytest
from scipy.stats import ttest_ind
from sweeps import job, row, rows

from trainmeter.report.stalls import (
    COMPUTE,
    FETCH,
    PREPROCESSING,
    STALLED,
    STORAGE,
    UNDECIDED,
    Analysis,
    Incomplete,
    Rates,
    analyses,
    condition,
    contrast,
    fetch_rate,
    predictions,
    repeats_needed,
    share_without_stall,
    speed,
    stall_power,
    verdict,
    verdict_in_memory,
)

T1, T3, T2 = [5.5, 5.6, 5.7], [6.7, 6.8, 6.9], [12.0, 12.1, 12.2]


def one(found):
    (analysis,) = analyses(found)
    assert isinstance(analysis, Analysis)
    return analysis


def samples(t1, t3, t2):
    return {"tensors": t1, "warm": t3, "cold": t2}


def spread(mean, by=0.01):
    return [mean - by, mean, mean + by]


# Which of the three a run is, and what is put side by side


@pytest.mark.parametrize("supply", ["tensors", "warm", "cold"])
def test_a_condition_is_told_from_the_job(supply):
    assert condition(job(supply)) == supply


@pytest.mark.parametrize("cache", ["keep", "cold"])
def test_a_plain_run_is_none_of_the_three(cache):
    assert condition(job("warm", cache=cache)) is None
    assert analyses([row(0, "warm", 1.0, job_keys={"cache": cache})]) == []


def test_a_job_that_lacks_a_condition_says_which():
    (found,) = analyses([row(0, "warm", 1.0), row(1, "cold", 2.0)])
    assert isinstance(found, Incomplete)
    assert found.missing == ["tensors"]


def test_a_sweep_over_warm_runs_alone_is_no_stall_experiment():
    assert analyses([row(number, "warm", 1.0, job_keys={"batch": number}) for number in range(3)]) == []


def test_a_sweep_over_more_gives_a_verdict_for_each_job():
    four = rows(T1, T3, T2, typed={"workers": "4"})
    eight = rows(
        spread(5.6), spread(5.6), spread(5.6), job_keys={"workers": 8}, typed={"workers": "8", "power_limit": "15"}
    )
    found = analyses([*four, *eight])
    assert [analysis.verdict.bound for analysis in found] == [STORAGE, COMPUTE]
    assert [analysis.title for analysis in found] == [
        "resnet18 on jpeg, batch 64, 4 workers",
        "resnet18 on jpeg, batch 64, 8 workers, power_limit=15",
    ]


def test_runs_of_different_hosts_are_no_repeats_of_each_other():
    nano, orin = ([replace(each, host=host) for each in rows(T1, T3, T2)] for host in ("nano", "orin"))
    assert [analysis.title for analysis in analyses([*nano, *orin])] == [
        "resnet18 on jpeg, batch 64, 4 workers, nano",
        "resnet18 on jpeg, batch 64, 4 workers, orin",
    ]


def test_repeats_belong_to_one_job():
    found = [row(number, supply, 1.0 + number, job_keys={"repeat": number % 3})
             for number, supply in enumerate(["tensors"] * 3 + ["warm"] * 3 + ["cold"] * 3)]  # fmt: skip
    assert one(found).numbers == {"tensors": [0, 1, 2], "warm": [3, 4, 5], "cold": [6, 7, 8]}


# Estimates


def test_the_stalls_are_the_differences():
    found = one(rows(T1, T3, T2))
    assert found.preprocessing.value == pytest.approx(1.2)
    assert found.fetch.value == pytest.approx(5.3)
    assert [found.times_s[name].value for name in ("tensors", "warm", "cold")] == pytest.approx([5.6, 6.8, 12.1])


@pytest.mark.parametrize("warm", [[6.7, 6.8, 6.9], [6.0, 9.0], [3.0, 3.1, 3.5, 3.2]])
def test_the_interval_is_welchs(warm):
    found = contrast(FETCH, samples(T1, warm, T2))
    known = ttest_ind(T2, warm, equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((known.low, known.high))


def test_two_runs_of_each_worked_by_hand():
    # Variances 0.02 and 0.02: standard error sqrt(0.02), 2 degrees of freedom, t = 4.303.
    found = contrast(FETCH, samples([0, 0], [1.9, 2.1], [4.9, 5.1]))
    assert found.value == pytest.approx(3.0)
    assert found.high - found.value == pytest.approx(4.3027 * 0.02**0.5, rel=1e-4)


def test_runs_that_are_all_alike_leave_an_interval_of_no_width():
    found = contrast(FETCH, samples([1, 1], [2, 2], [5, 5]))
    assert (found.low, found.value, found.high) == (3, 3, 3)


@pytest.mark.parametrize("once", [([1.0], [2.0], [5.0]), ([1.0, 1.1], [2.0], [5.0, 5.1])])
def test_a_condition_that_ran_once_has_no_interval_and_that_is_said(once):
    found = one(rows(*once))
    assert found.fetch.low is None
    assert found.fetch.high is None
    assert "ran only once" in found.notes[0]
    assert found.verdict.bound == STORAGE
    assert found.verdict.repeats is None


def test_a_negative_stall_is_shown_and_flagged_and_never_clipped():
    found = one(rows(spread(5.0, 0.1), spread(7.0, 0.1), spread(6.99, 0.1)))
    assert found.fetch.value == pytest.approx(-0.01)
    assert found.fetch.noise
    assert any("below zero" in note and "noise" in note for note in found.notes)


def test_a_stall_that_is_surely_negative_is_no_noise():
    found = one(rows(spread(5.0), spread(7.0), spread(6.0)))
    assert any("something else changed" in note for note in found.notes)


def test_the_interval_covers_the_truth_in_95_of_100():
    drawn, covered, spread_of = random.Random(4), 0, {"tensors": 0.05, "warm": 0.2, "cold": 0.4}
    means = {"tensors": 5.0, "warm": 6.0, "cold": 9.0}
    for _ in range(1000):
        found = {name: [drawn.gauss(means[name], spread_of[name]) for _ in range(4)] for name in means}
        told = contrast(FETCH, found)
        covered += told.low <= 3.0 <= told.high
    assert 930 <= covered <= 970


# Verdicts


@pytest.mark.parametrize(
    ("times", "bound"),
    [
        ((5.0, 6.0, 12.0), STORAGE),
        ((5.0, 11.5, 12.0), PREPROCESSING),  # both matter; there is more to gain by the larger
        ((5.0, 12.0, 12.0), PREPROCESSING),
        ((12.0, 12.0, 12.0), COMPUTE),
        ((5.0, 5.0, 12.0), STORAGE),
        ((12.0, 12.05, 12.1), COMPUTE),  # each is less than 2 % of 12.1 s
    ],
)
def test_a_verdict_follows_the_stall_that_matters(times, bound):
    found = verdict(samples(*(spread(value) for value in times)))
    assert (found.bound, found.why) == (bound, None)


def test_an_interval_that_spans_what_matters_decides_nothing_and_says_what_would():
    noisy = samples(spread(11.4), spread(11.5, 0.3), spread(12.0, 0.3))  # fetch 0.5 +- 0.7, 0.24 matters
    found = verdict(noisy)
    assert (found.bound, found.repeats) == (UNDECIDED, 12)
    assert "fetch stall" in found.why
    assert verdict_in_memory(noisy).bound == UNDECIDED


def test_what_is_surely_the_larger_decides_whatever_is_not_known_of_the_other():
    noisy = samples(spread(5.0), spread(11.5, 0.3), spread(12.0, 0.3))
    assert verdict(noisy).bound == PREPROCESSING
    assert verdict(samples(spread(5.0), spread(5.1, 0.1), spread(12.0))).bound == STORAGE


def test_the_repeats_that_would_do_are_the_first_whose_interval_is_narrow_enough():
    # Variances 0.09 each: of n, half = t(2n - 2) sqrt(0.18 / n). To tell 0.5 from 0.24 (0.26): n = 22 (t = 2.018:
    # 0.183) and long before: n = 11 has 0.267, n = 12 0.254.
    assert repeats_needed(FETCH, 0.24, samples([5, 5], spread(11.5, 0.3), spread(12.0, 0.3))) == 12


def test_no_number_of_repeats_tells_what_is_just_at_the_bound():
    assert repeats_needed(FETCH, 0.5, samples([5, 5], spread(11.5, 0.3), spread(12.0, 0.3))) is None


def test_a_tie_of_storage_and_preprocessing_is_undecided():
    found = verdict(samples(spread(4.0), spread(8.0), spread(12.0)))
    assert found.bound == UNDECIDED
    assert "alike" in found.why


def test_a_tie_without_noise_or_repeats_is_undecided_too():
    assert verdict(samples([4.0], [8.0], [12.0])).bound == UNDECIDED
    assert verdict(samples([4.0, 4.0], [8.0, 8.0], [12.0, 12.0])).bound == UNDECIDED


def test_a_verdict_does_not_depend_on_the_order_of_the_runs():
    found = rows(T1, T3, T2)
    assert one(found).verdict == one(found[::-1]).verdict


def test_with_the_dataset_in_memory_there_is_a_verdict_of_its_own():
    found = one(rows(T1, T3, T2))
    assert found.verdict.bound == STORAGE
    assert found.in_memory.bound == PREPROCESSING


# What the page cache really held


def share(name, value):
    """A row of that condition whose cached share is another."""
    return [
        replace(each, metrics={**each.metrics, "steady/cached_share_before": value}) if condition(each.job) == name
        else each for each in rows(T1, T3, T2)
    ]  # fmt: skip


def test_runs_that_were_as_asked_leave_no_condition():
    found = one(rows(T1, T3, T2))
    assert found.conditions == []
    assert found.in_memory_conditions == []


@pytest.mark.parametrize(("name", "value", "said"), [("warm", 0.6, "60 %"), ("cold", 0.3, "30 %")])
def test_a_cache_that_was_not_as_asked_is_named_and_makes_the_verdict_conditional(name, value, said):
    found = one(share(name, value))
    assert found.verdict.bound == STORAGE, "the fetch stall is even more than it seems"
    assert len(found.conditions) == 3
    assert f"was to be {name}" in found.conditions[0]
    assert said in found.conditions[0]
    assert (found.in_memory.bound == UNDECIDED) == (name == "warm")


def test_without_fetch_stall_a_cold_that_was_not_cold_decides_nothing():
    found = one(rows(T1, spread(6.8), spread(6.8), steady={"cached_share_before": 1.0}))
    assert found.verdict.bound == UNDECIDED
    assert "not cold" in found.verdict.why
    assert found.in_memory.bound == PREPROCESSING


def test_a_share_that_is_not_known_is_said():
    found = one(rows(T1, T3, T2, steady={"cached_share_before": None}))
    assert found.verdict.bound == STORAGE
    assert [text for text in found.conditions if "not known" in text] == found.conditions
    assert len(found.conditions) == 2


def test_in_memory_storage_plays_no_part():
    found = one(rows(T1, T3, T3, job_keys={"layout": "memory"}, steady={"cached_share_before": None}))
    assert found.lives_in_memory
    assert found.conditions == []
    assert found.verdict.bound == PREPROCESSING
    assert found.full_cache_share is None
    assert {asked.question for asked in found.predictions} == {"workers"}


# The three definitions of the stall


def test_the_three_definitions_stand_side_by_side():
    found = one(rows(T1, T3, T2, steady={"fetch_stall_s": 6.4, "fetch_stall_model_s": 6.6}))
    assert (found.cold.measured_s, found.cold.model_s) == pytest.approx((6.4, 6.6))
    assert found.cold.differential_s == pytest.approx(contrast(STALLED, samples(T1, T3, T2)).value)
    assert found.warm.differential_s == pytest.approx(1.2)


def test_a_definition_that_a_run_did_not_tell_is_absent():
    assert one(rows(T1, T3, T2)).cold.model_s is None


# What if


def test_the_fetch_rate_of_the_paper():
    """T_f = D x / C + D (1 - x) / S: 100 samples/s from the disk, 1000 from memory, half from each: 5.5 ms a sample."""
    rates = Rates(1000, 400, 300, 100, 1000, workers=4, cores=8)
    assert fetch_rate(rates, 0.5) == pytest.approx(181.818, rel=1e-4)
    assert fetch_rate(rates, 0.0) == 100
    assert fetch_rate(rates, 1.0) == 1000


def test_with_memory_much_faster_the_fetch_rate_is_s_over_1_less_x():
    """J. Mohan et al., section 3: C >> S gives F ~ S / (1 - x); no fetch stall is left once F is above min(P, G)."""
    rates = Rates(1000, 400, 250, 100, None, workers=4, cores=8)
    assert fetch_rate(rates, 0.35) == pytest.approx(100 / 0.65)
    assert share_without_stall(rates) == pytest.approx(0.6)
    assert speed(rates, 0.6) == pytest.approx(250)
    assert speed(rates, 0.55) < 250
    assert speed(rates, 0.9) == 250


def test_no_cache_is_needed_where_the_storage_keeps_up():
    assert share_without_stall(Rates(1000, 400, 250, 300, None, workers=4, cores=8)) == 0


def asked(found, question):
    return {each.choice: each for each in found if each.question == question}


def test_a_faster_disk_helps_up_to_the_next_bound():
    found = one(rows([5.0, 5.0], [6.0, 6.0], [12.0, 12.0]))
    disk = asked(found.predictions, "storage")
    assert disk["2 times as fast"].epoch_s == pytest.approx(6.0)
    assert disk["10 times as fast"].epoch_s == pytest.approx(6.0)
    assert found.full_cache_share == pytest.approx(0.5)
    memory = asked(found.predictions, "in memory")
    assert [memory[share].epoch_s for share in ("25 %", "50 %", "75 %", "100 %")] == pytest.approx([9.0, 6.0, 6.0, 6.0])
    assert not any(each.bound for each in found.predictions if each.question != "workers")


def test_the_page_caches_own_rate_comes_from_the_loaders_timers():
    # 4 processes read 1000 samples in 8 s of their own: 500 samples/s; half of it cached: 1 / (0.001 + 0.006).
    found = one(rows([0.5, 0.5], [1.0, 1.0], [12.0, 12.0], steady={"loader_read_s": 8.0}))
    assert found.rates.cache == pytest.approx(500)
    assert asked(found.predictions, "in memory")["50 %"].epoch_s == pytest.approx(7.0)


def test_more_workers_help_preprocessing_as_far_as_the_cores_go():
    found = one(rows([2.0, 2.0], [12.0, 12.0], [12.0, 12.0], cores=6))
    workers = asked(found.predictions, "workers")
    assert list(workers) == ["1", "2", "4", "6"]
    assert [each.epoch_s for each in workers.values()] == pytest.approx([48.0, 24.0, 12.0, 8.0])
    assert workers["6"].bound == "at least", "as storage may not keep up: it bounded nothing here"
    assert workers["2"].bound is None


def test_more_workers_than_cores_were_no_more_than_the_cores():
    found = one(rows([1.0, 1.0], [12.0, 12.0], [12.0, 12.0], cores=2))
    assert [each.epoch_s for each in asked(found.predictions, "workers").values()] == pytest.approx([24.0, 12.0, 12.0])


def test_what_bounded_nothing_is_known_as_a_lower_bound_only():
    found = one(rows([12.0, 12.0], [12.0, 12.0], [12.0, 12.0]))
    workers = asked(found.predictions, "workers")
    assert workers["1"].bound == "at most"
    assert workers["8"].epoch_s == pytest.approx(12.0)
    assert workers["8"].bound is None


def test_without_loader_processes_the_times_add_up():
    found = one(rows([5.0, 5.0], [8.0, 8.0], [12.0, 12.0], job_keys={"workers": 0}))
    assert asked(found.predictions, "storage")["2 times as fast"].epoch_s == pytest.approx(10.0)
    assert asked(found.predictions, "in memory")["100 %"].epoch_s == pytest.approx(8.0)
    assert asked(found.predictions, "workers")["1"].epoch_s == pytest.approx(5.0), "of 5, 3 and 4 s, all overlapped"


def test_without_a_processor_count_twice_the_workers_are_asked_about():
    rates = Rates(1000, 400, 250, 100, None, workers=4, cores=None)
    assert list(asked(predictions(rates, lambda _: None), "workers")) == ["1", "2", "4", "8"]


# Energy


def with_joules(tensors, warm, cold, **each):
    joules = {"tensors": tensors, "warm": warm, "cold": cold}
    return [
        replace(found, metrics={**found.metrics, "steady/energy_j": joules[condition(found.job)]},
                energy_covers="gpu0", no_energy=None)
        for found in rows([5.0, 5.0], [6.0, 6.0], [12.0, 12.0], **each)
    ]  # fmt: skip


def test_the_energy_of_the_stalls_is_the_difference_too():
    found = one(with_joules(500.0, 550.0, 850.0)).energy
    assert found.preprocessing.value == pytest.approx(50)
    assert found.fetch.value == pytest.approx(300)
    assert found.stall_w == pytest.approx(50)


def test_a_predicted_epochs_energy_is_its_stalls_at_the_power_of_a_stall():
    found = one(with_joules(500.0, 550.0, 850.0))
    disk = asked(found.predictions, "storage")["2 times as fast"]
    assert disk.energy_j == pytest.approx(500 + 50 * (6 - 5))


def test_a_stall_too_short_to_tell_draws_idle_power_or_is_not_told():
    assert stall_power(500, 501, 10.0, 10.1, 30.0) == 30
    assert stall_power(500, 501, 10.0, 10.1, None) is None
    assert stall_power(500, 490, 10.0, 12.0, 30.0) == 30, "noise is no negative power"


def test_one_run_without_energy_leaves_none_and_says_why():
    measured = with_joules(500.0, 550.0, 850.0)
    found = one([*measured[:-1], rows([1], [1], [12.0])[-1]]).energy
    assert found.fetch is None
    assert "1 of 6" in found.reason
    assert "no meter here" in found.reason


def test_an_estimate_is_no_measurement():
    found = one(rows([5.0], [6.0], [12.0], steady={"estimated_energy_j": 500.0}))
    assert found.energy.cold_j is None
    assert all(each.energy_j is None for each in found.predictions)


def test_energies_that_cover_different_things_are_not_compared():
    measured = with_joules(500.0, 550.0, 850.0)
    found = one([replace(measured[0], energy_covers="module"), *measured[1:]]).energy
    assert found.fetch is None
    assert "gpu0, module" in found.reason


def test_simulated_sweeps_give_the_right_verdict_or_none():
    """Truth: 5 s on tensors, 6 s warm, 9 s cold; noise of 1 % of a run."""
    drawn, seen = random.Random(1), []
    for _ in range(200):
        found = samples(*([drawn.gauss(mean, 0.01 * mean) for _ in range(3)] for mean in (5.0, 6.0, 9.0)))
        seen.append(verdict(found).bound)
    assert set(seen) <= {STORAGE, UNDECIDED}
    assert seen.count(STORAGE) > 190


@pytest.mark.parametrize(
    "times",
    [
        {"tensors": [2.46], "warm": [0.28], "cold": [0.52]},
        {"tensors": [2.4, 2.5, 2.45], "warm": [0.28, 0.29, 0.28], "cold": [0.52, 0.53, 0.52]},
    ],
    ids=["one of each", "three of each"],
)
def test_a_stall_far_below_zero_decides_nothing(times):
    for found in (verdict(times), verdict_in_memory(times)):
        assert found.bound == UNDECIDED
        assert "disturbed" in found.why


def test_a_stall_that_is_below_zero_by_noise_alone_decides_as_if_it_were_zero():
    times = {"tensors": [1.00, 1.01, 0.99], "warm": [0.997, 1.003, 0.993], "cold": [2.0, 2.01, 1.99]}
    assert verdict(times).bound == STORAGE
