"""Where stalls come from, by difference: known answers, computed by hand or published."""

from dataclasses import replace

import pytest
from sweeps import row, rows

from epochmeter.report.analyses.bottleneck import STALLED
from epochmeter.report.analyses.stalls import Analysis, Incomplete, analyses, stall_power
from epochmeter.report.runs.data_source import CACHE_STATES, condition
from epochmeter.report.statistics import contrast
from epochmeter.results.bottleneck import COMPUTE, FETCH_STALL, PREP_STALL

T1, T3, T2 = [1.5, 1.6, 1.7], [3.7, 3.8, 3.9], [9.0, 9.1, 9.2]


def one(found):
    (analysis,) = analyses(found)
    assert isinstance(analysis, Analysis)
    return analysis


def samples(t1, t3, t2):
    return {"synthetic": t1, "cached": t3, "storage": t2}


def spread(mean, by=0.01):
    return [mean - by, mean, mean + by]


# Which runs are put side by side


def test_missing_condition_is_listed():
    (found,) = analyses([row(0, "cached", 1.0), row(1, "storage", 2.0)])
    assert isinstance(found, Incomplete)
    assert found.missing == ["synthetic"]


def test_a_sweep_over_warm_runs_alone_is_no_stall_experiment():
    assert analyses([row(number, "cached", 1.0, job_keys={"batch": number}) for number in range(3)]) == []


def test_a_sweep_over_more_gives_a_verdict_for_each_job():
    four = rows(T1, T3, T2, typed={"workers": "4"})
    eight = rows(
        spread(5.6), spread(5.6), spread(5.6), job_keys={"workers": 8}, typed={"workers": "8", "power_limit": "15"}
    )
    found = analyses([*four, *eight])
    assert [analysis.verdict.parts for analysis in found] == [(FETCH_STALL,), (COMPUTE,)]
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


@pytest.mark.parametrize("key", ["repeat", "seed", "profiler"])
def test_repeats_belong_to_one_job(key):
    found = [row(number, data_source, 1.0 + number, job_keys={key: number % 3}, typed={key: str(number % 3)})
             for number, data_source in enumerate(["synthetic"] * 3 + ["cached"] * 3 + ["storage"] * 3)]  # fmt: skip
    assert one(found).numbers == {"synthetic": [0, 1, 2], "cached": [3, 4, 5], "storage": [6, 7, 8]}


# Estimates


def test_the_stalls_are_the_differences():
    found = one(rows(T1, T3, T2))
    assert found.preprocessing.value == pytest.approx(2.2)
    assert found.fetch.value == pytest.approx(5.3)
    assert [found.times_s[name].value for name in ("synthetic", "cached", "storage")] == pytest.approx([1.6, 3.8, 9.1])


@pytest.mark.parametrize("once", [([1.0], [2.0], [5.0]), ([1.0, 1.1], [2.0], [5.0, 5.1])])
def test_single_run_of_a_condition_has_no_interval(once):
    found = one(rows(*once))
    assert found.fetch.low is None
    assert found.fetch.high is None
    assert "ran only once" in found.notes[0]
    assert found.verdict.parts == (FETCH_STALL,)
    assert found.verdict.repeats is None


def test_a_negative_stall_is_shown_and_flagged_and_never_clipped():
    found = one(rows(spread(5.0, 0.1), spread(7.0, 0.1), spread(6.99, 0.1)))
    assert found.fetch.value == pytest.approx(-0.01)
    assert found.fetch.is_negative
    assert any("below zero" in note and "noise" in note for note in found.notes)


def test_significantly_negative_stall_is_not_noise():
    found = one(rows(spread(5.0), spread(7.0), spread(6.0)))
    assert any("something else changed" in note for note in found.notes)


# Verdicts


def test_a_verdict_does_not_depend_on_the_order_of_the_runs():
    found = rows(T1, T3, T2)
    assert one(found).verdict == one(found[::-1]).verdict


def test_with_the_dataset_in_memory_there_is_a_verdict_of_its_own():
    found = one(rows(T1, T3, T2))
    assert found.verdict.parts == (FETCH_STALL,)
    assert found.in_memory.parts == (PREP_STALL,)


# What the page cache really held


def share(name, value):
    """A row of that condition whose page-cache residency is another."""
    return [
        replace(each, metrics={**each.metrics, "steady/page_cache_residency_before": value})
        if condition(each.job) == name
        else each for each in rows(T1, T3, T2)
    ]  # fmt: skip


def test_requested_cache_state_has_no_assumptions():
    found = one(rows(T1, T3, T2))
    assert found.conditions == []
    assert found.in_memory_conditions == []


@pytest.mark.parametrize(("name", "value", "said"), [("cached", 0.6, "60 %"), ("storage", 0.3, "30 %")])
def test_wrong_cache_state_is_an_assumption(name, value, said):
    found = one(share(name, value))
    assert found.verdict.parts == (FETCH_STALL,), "the fetch stall is even more than it seems"
    assert len(found.conditions) == 3
    assert f"was to be {CACHE_STATES[name]}" in found.conditions[0]
    assert said in found.conditions[0]
    assert (found.in_memory.parts == ()) == (name == "cached")


def test_warm_cold_run_without_fetch_stall_is_undecided():
    found = one(rows(T1, spread(6.8), spread(6.8), steady={"page_cache_residency_before": 1.0}))
    assert found.verdict.parts == ()
    assert "not cold" in found.verdict.why
    assert found.in_memory.parts == (PREP_STALL,)


def test_unknown_residency_is_an_assumption():
    found = one(rows(T1, T3, T2, steady={"page_cache_residency_before": None}))
    assert found.verdict.parts == (FETCH_STALL,)
    assert [text for text in found.conditions if "not known" in text] == found.conditions
    assert len(found.conditions) == 2


def test_in_memory_storage_plays_no_part():
    found = one(rows(T1, T3, T3, job_keys={"layout": "memory"}, steady={"page_cache_residency_before": None}))
    assert found.lives_in_memory
    assert found.conditions == []
    assert found.verdict.parts == (PREP_STALL,)
    assert found.full_cache_share is None
    assert {asked.question for asked in found.predictions} == {"workers"}


# The three definitions of the stall


def test_the_three_definitions_stand_side_by_side():
    found = one(rows(T1, T3, T2, steady={"data_stall_s": 6.4, "data_stall_model_s": 6.6}))
    assert (found.storage.measured_s, found.storage.model_s) == pytest.approx((6.4, 6.6))
    assert found.storage.differential_s == pytest.approx(contrast(STALLED, samples(T1, T3, T2)).value)
    assert found.cached.differential_s == pytest.approx(2.2)


def test_unmeasured_definition_is_absent():
    assert one(rows(T1, T3, T2)).storage.model_s is None


# Energy


def with_joules(synthetic, cached, storage, **each):
    joules = {"synthetic": synthetic, "cached": cached, "storage": storage}
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
    found = one(with_joules(500.0, 550.0, 850.0, steady={"steps": 1000.0}))
    (disk,) = [each for each in found.predictions if (each.question, each.choice) == ("storage", "2 times as fast")]
    # 12 s of which 6 s are spent reading: 9 s with the disk twice as fast, as preprocessing follows reading.
    assert (disk.epoch_s, disk.energy_j) == pytest.approx((9.0, 850 - 50 * 3), rel=0.02)


def test_shorter_stall_does_not_save_energy_of_preprocessing():
    """8 s of 10 s wait for preprocessing at 10 W idle: 8 workers save 5 s of idling, on a GPU's meter of its wait."""
    joules = {"synthetic": {"steady/energy_j": 100.0}, "cached": {"steady/energy_j": 500.0},
              "storage": {"steady/energy_j": 500.0}}  # fmt: skip
    module, gpu = (
        one([
            replace(each, energy_domains=[domain], metrics={**each.metrics, **joules[each.keys["data_source"]]})
            for each in rows([2.0], [10.0], [10.0], steady={"steps": 1000.0}, total={"idle_power_w": 10.0},
                             energy_covers="covered", cores=8)
        ])
        for domain in ("VDD_IN", "gpu0")
    )  # fmt: skip
    found = [next(each for each in told.predictions if each.choice == "8") for told in (module, gpu)]
    assert [each.epoch_s for each in found] == pytest.approx([5.0, 5.0], rel=0.01)
    assert [each.energy_j for each in found] == pytest.approx([500 - 10 * 5, 500 - 50 * 5], rel=0.01)


def test_short_stall_has_idle_power_or_none():
    assert stall_power(500, 501, 10.0, 10.1, 30.0) == 30
    assert stall_power(500, 501, 10.0, 10.1, None) is None
    assert stall_power(500, 490, 10.0, 12.0, 30.0) == 30, "noise is no negative power"


def test_run_without_energy_gives_a_reason():
    measured = with_joules(500.0, 550.0, 850.0)
    found = one([*measured[:-1], rows([1], [1], [12.0])[-1]]).energy
    assert found.fetch is None
    assert "1 of 6" in found.reason
    assert "no meter here" in found.reason


def test_an_estimate_is_no_measurement():
    found = one(rows([5.0], [6.0], [12.0], steady={"estimated_energy_j": 500.0}))
    assert found.energy.storage_j is None
    assert all(each.energy_j is None for each in found.predictions)


def test_energies_that_cover_different_things_are_not_compared():
    measured = with_joules(500.0, 550.0, 850.0)
    found = one([replace(measured[0], energy_covers="module"), *measured[1:]]).energy
    assert found.fetch is None
    assert "gpu0, module" in found.reason


def test_stalls_are_taken_round_by_round():
    """Each round is slower by seconds, which cancel in the differences."""
    shifts, times = (0.0, 4.0, 9.0), {"synthetic": 1.5, "cached": 3.7, "storage": 9.0}
    noise = {"synthetic": (0.0, 0.1, -0.1), "cached": (0.1, -0.1, 0.0), "storage": (-0.1, 0.0, 0.1)}
    found = [
        row(3 * place + turn, name, seconds + shifts[turn] + noise[name][turn],
            job_keys={"repeat": turn, "sweep": {"repeats": 3, "order": "random"}})
        for place, (name, seconds) in enumerate(times.items()) for turn in range(3)
    ]  # fmt: skip
    told = one(found)
    assert (told.fetch.value, told.preprocessing.value) == pytest.approx((5.3, 2.2))
    assert told.fetch.high - told.fetch.low < 1
    apart = one([replace(each, job={**each.job, "sweep": {"repeats": None, "order": "grid"}}) for each in found])
    assert apart.fetch.high - apart.fetch.low > 10
