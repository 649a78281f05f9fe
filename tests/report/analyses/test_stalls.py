"""Where stalls come from, by difference: known answers, computed by hand or published."""

from dataclasses import replace

import pytest
from golden import assert_golden
from sweeps import row, rows, spread

from epochmeter.report.analyses.stalls import StallAnalysis, analyze, stall_power
from epochmeter.report.render import render_macro
from epochmeter.report.runs.configuration import NoEnergy
from epochmeter.report.runs.data_source import CACHE_STATES, condition
from epochmeter.results.bottleneck import COMPUTE, FETCH_STALL, PREP_STALL

T1, T3, T2 = [1.5, 1.6, 1.7], [3.7, 3.8, 3.9], [9.0, 9.1, 9.2]
TITLE = "resnet18 on jpeg, batch 64, workers 4"


def one(runs):
    (result,) = analyze(runs)
    assert isinstance(result, StallAnalysis)
    return result


def change(result, name, value):
    """Return the prediction of a change."""
    return next(each for each in result.predictions if (each.change, each.value) == (name, value))


def with_joules(runs, synthetic=500.0, cached=550.0, storage=850.0, covers="gpu0"):
    joules = {"synthetic": synthetic, "cached": cached, "storage": storage}
    return [replace(run, metrics={**run.metrics, "steady/energy_j": joules[condition(run.job)]}, energy_covers=covers)
            for run in runs]  # fmt: skip


def test_each_configuration_and_host_has_a_verdict():
    four = rows(T1, T3, T2, typed={"workers": "4"})
    eight = rows(*[spread(5.6)] * 3, job_keys={"workers": 8, "power_limit": 15},
                 typed={"workers": "8", "power_limit": "15"})  # fmt: skip
    results = analyze([*four, *eight])
    assert [result.verdict.parts for result in results] == [(FETCH_STALL,), (COMPUTE,)]
    assert results[1].title == "resnet18 on jpeg, batch 64, workers 8, power_limit 15"
    nano, orin = ([replace(run, host=host) for run in four] for host in ("nano", "orin"))
    assert [result.title for result in analyze([*nano, *orin])] == [f"{TITLE}, nano", f"{TITLE}, orin"]
    assert one(four).numbers == {"synthetic": [0, 1, 2], "cached": [3, 4, 5], "storage": [6, 7, 8]}


def test_stalls_are_differences_that_are_not_clipped():
    runs = rows(T1, T3, T2, steady={"data_stall_s": 6.4, "data_stall_model_s": 6.6})
    result = one(runs)
    assert result.definitions_s["storage"] == pytest.approx({"measured": 6.4, "model": 6.6, "differential": 7.5})
    assert result.verdict == one(runs[::-1]).verdict
    for samples in (1000.0, 999.0):
        (result,) = results = analyze([*runs, row(20, "storage", T2[0], samples=samples)])
        is_noted = "numbers of samples per epoch differ" in render_macro("stalls.md.j2", "body", results)
        assert (result.samples_differ, is_noted) == (samples < 1000, samples < 1000)
    result = one(rows([1.0, 1.1], [2.0], [5.0, 5.1]))
    assert (result.fetch.low, result.fetch.high, result.ran_once) == (None, None, ["cached"])
    assert (result.verdict.parts, result.verdict.repeats) == ((FETCH_STALL,), None)
    assert one(rows([5.0], [7.0], [6.99])).fetch.value == pytest.approx(-0.01)


def test_stalls_are_compared_round_by_round():
    """Each round is slower by seconds, which cancel in the differences."""
    shifts, times = (0.0, 4.0, 9.0), {"synthetic": 1.5, "cached": 3.7, "storage": 9.0}
    noise = {"synthetic": (0.0, 0.1, -0.1), "cached": (0.1, -0.1, 0.0), "storage": (-0.1, 0.0, 0.1)}
    runs = [
        row(3 * place + turn, name, seconds + shifts[turn] + noise[name][turn],
            job_keys={"repeat": turn, "sweep": {"repeats": 3, "order": "random"}})
        for place, (name, seconds) in enumerate(times.items()) for turn in range(3)
    ]  # fmt: skip
    paired = one(runs)
    assert (paired.fetch.value, paired.preprocessing.value) == pytest.approx((5.3, 2.2))
    assert paired.fetch.high - paired.fetch.low < 1
    apart = one([replace(run, job={**run.job, "sweep": {"repeats": None, "order": "grid"}}) for run in runs])
    assert apart.fetch.high - apart.fetch.low > 10


def test_wrong_or_unknown_cache_state_is_an_assumption():
    for name, value in {"cached": 0.6, "storage": 0.3}.items():
        residency = {"steady/page_cache_residency_before": value}
        result = one([replace(run, metrics={**run.metrics, **residency}) if condition(run.job) == name else run
                      for run in rows(T1, T3, T2)])  # fmt: skip
        assert result.verdict.parts == (FETCH_STALL,), "the fetch stall is even more than it seems"
        assert result.conditions == [(CACHE_STATES[name], [number], value) for number in result.numbers[name]]
        assert (result.in_memory.parts == ()) == (name == "cached")
    assert one(rows(T1, T3, T2)).conditions == []
    result = one(rows(T1, T3, T2, steady={"page_cache_residency_before": None}))
    assert result.verdict.parts == (FETCH_STALL,)
    assert [(state, residency) for state, _, residency in result.conditions] == [("warm", None), ("cold", None)]
    result = one(rows(T1, spread(6.8), spread(6.8), steady={"page_cache_residency_before": 1.0}))
    assert (result.verdict.parts, result.best_change, result.in_memory.parts) == ((), None, (PREP_STALL,))
    assert "not cold" in result.verdict.why, "a warm cold run without fetch stall"


def test_most_effective_change_is_the_smallest_of_equal_effect():
    assert one(rows(*map(spread, (12.0, 12.0, 12.0)), cores=8)).best_change is None, "the device limits"
    # 80 ms disk, 80 ms decoding, 20 ms compute per batch, one worker: 1.43 s with storage 10 times faster.
    disk = rows([0.32], [1.30], [2.58], steady={"steps": 16.0}, job_keys={"workers": 1}, cores=2)
    hidden = rows(*map(spread, (8.0, 10.0, 12.0)), job_keys={"workers": 0}, steady={"steps": 1000.0})
    prep = rows(*map(spread, (2.0, 12.0, 12.0)), steady={"steps": 1000.0})
    for runs, workers, epoch_s in ((disk, 2, 1.32), (prep, 8, 6.0), (hidden, 1, 8.0)):
        best = one(runs).best_change
        assert (best.change, best.value, best.worst_s) == ("workers", workers, pytest.approx(epoch_s, rel=0.02))


def test_shorter_stall_does_not_save_energy_of_preprocessing():
    """8 s of 10 s wait for preprocessing at 10 W idle: 8 workers save 5 s of idling, on a GPU's meter of its wait."""
    for domain, saved_w in {"VDD_IN": 10, "gpu0": 50}.items():
        runs = rows([2.0], [10.0], [10.0], steady={"steps": 1000.0}, total={"idle_power_w": 10.0}, cores=8,
                    energy_domains=[domain])  # fmt: skip
        eight = change(one(with_joules(runs, 100.0, 500.0, 500.0)), "workers", 8)
        assert (eight.epoch_s, eight.energy_j) == pytest.approx((5.0, 500 - saved_w * 5), rel=0.01)
    assert stall_power(500, 501, 10.0, 10.1, 30.0) == 30, "of a short stall"
    assert stall_power(500, 490, 10.0, 12.0, 30.0) == 30, "noise is no negative power"


def test_energies_that_cannot_be_compared_have_a_reason():
    runs = rows([5.0, 5.0], [6.0, 6.0], [12.0, 12.0], steady={"steps": 1000.0})
    one_lacks = [*with_joules(runs)[:-1], runs[-1]], NoEnergy(1, 6, "no meter here")
    module = [*with_joules(runs[:1], covers="module"), *with_joules(runs[1:])]
    for several, reason in (one_lacks, (module, NoEnergy(0, 6, None, ("gpu0", "module")))):
        result = one(several)
        assert (result.energy.missing, result.energy.fetch, result.energy.epochs_j) == (reason, None, {})
        assert all(prediction.energy_j is None for prediction in result.predictions)


DDP = {"workers": 2, "strategy": {"name": "ddp", "ranks": 2}}


@pytest.mark.parametrize(
    ("case", "runs"),
    [
        ("", with_joules(rows(T1, T3, T2, steady={"data_stall_s": 6.4}))),
        ("in_memory", rows(T1, T3, T3, job_keys={"layout": "memory"})),
        ("undecided", rows(spread(2.46), spread(0.28), spread(0.52))),
        ("more_repeats", rows([4.3, 4.6, 4.9], [5.3, 5.6, 5.9], [10.5, 10.8, 11.1])),
        ("saturated_storage", rows([0.5], [1.0], [9.0], steady={"steps": 1000.0}, cores=8)),
        ("workers_per_rank", rows(*map(spread, (2.0, 12.0, 12.0)), cores=8, job_keys=DDP, devices=2)),
        ("assumptions", rows(T1, T3, T2, steady={"page_cache_residency_before": 0.5})),
        ("no_more_cores", rows(*map(spread, (2.0, 12.0, 12.0)), cores=4, job_keys=DDP, devices=2)),
    ],
)
def test_text(case, runs):
    assert_golden("stalls", analyze(runs), case)


def test_sweep_without_stall_analysis_has_a_command():
    hosts = [row(n, name, 1.0, host=f"h{n // 2}") for n, name in enumerate(("cached", "storage", "synthetic"))]
    cases = {
        "no completed run of data_source=storage on the same host. ": rows(T1, T3, [0.0]),
        "": [row(0, "cached", 1.0, typed={"batch": "8"})],
        "no stall analysis: no completed run of data_source=synthetic on the same host. ": hosts,
    }
    for missing, runs in cases.items():
        hint = render_macro("stalls.md.j2", "body", results := analyze(runs))
        assert hint.endswith("Run: `python src/train.py -m experiment=stalls model=... dataset=...`\n")
        assert (missing in hint, bool(missing)) == (True, bool(results))
