"""The top of a report: the best configurations, and the limits of their comparison."""

import json
from dataclasses import replace

import pytest
from golden import assert_golden
from sweeps import reaching, trained, with_verdict

from epochmeter.report.analyses.answer import analyze
from epochmeter.report.analyses.best import Criteria
from epochmeter.report.analyses.gaussian import Error
from epochmeter.report.analyses.next_runs import Suggestion
from epochmeter.report.analyses.prediction import NoPrediction, Predicted, Prediction
from epochmeter.report.render import Page, page_part
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.statistics import Estimate
from epochmeter.results.bottleneck import Bottleneck


def run(number, time_s, energy_j=None, *, stall=0.1, **keys):
    parts = {"compute_s": None, "data_stall_s": None}
    if time_s:
        parts = {"compute_s": (0.9 - stall) * time_s, "data_stall_s": stall * time_s, "overhead_s": 0.1 * time_s,
                 "copy_s": 0.0, "loader_read_s": 0.0, "loader_preprocess_s": 1.0, "loader_decode_s": 0.5}  # fmt: skip
    return trained(number, 100.0, steady={"e2e_s": time_s, "energy_j": energy_j, **parts}, **keys)


STEPS = [
    {"rule": "start_workers", "text": "Load in parallel.", "kind": "code", "change": "DataLoader(..., num_workers=2)"}
]


def test_next_steps_are_those_of_the_fastest_and_shown_if_no_run_is_suggested():
    runs = [
        replace(run(number, 1.0 + number, batch=64 >> number), next_steps=STEPS if not number else [])
        for number in (0, 1)
    ]
    assert answer(*runs).values["next_steps"] == STEPS
    assert "Next steps" not in body(analyze(group_repeats(runs))), "there are runs to try next"
    of_script = {"measure": {"command": ["train.py"]}}
    scripts = [replace(each, job={**each.job, **of_script}) for each in runs]
    assert "- Load in parallel. `DataLoader(..., num_workers=2)`" in body(analyze(group_repeats(scripts)))


def test_stragglers_are_data_and_the_most_expensive_one_is_a_sentence():
    straggler = {
        "rank": 3, "ranks": 4, "host": "node2", "device": "cuda:3", "excess_s": 0.018, "uncertainty_s": 0.002,
        "saving_s": 0.017, "steps": 1200, "slowest_fraction": 0.94, "causes": ["data_stall"],
        "parts": {"data_stall": {"excess_s": 0.0176, "uncertainty_s": 0.001}},
    }  # fmt: skip
    cheaper = {**straggler, "rank": 1, "saving_s": 0.001}
    runs = [
        replace(run(number, 1.0 + number, batch=64 >> number), straggler=[None, cheaper, straggler][number])
        for number in range(3)
    ]
    assert answer(*runs).values["stragglers"] == {2: straggler, 1: cheaper}
    text = " ".join(body(answer(*runs)).split())
    assert "rank 3 (node2, cuda:3) is the slowest in 94 % of 1,200 steps, by 18.0 ± 2.0 ms" in text.replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert "rank 1" not in text
    assert "Straggler" not in body(answer(*runs[:1]))


def test_power_of_the_fastest_is_compared_with_its_limit():
    share = {"steady/power_mean_w": 300.0, "total/power_limit_fraction": 0.6}
    runs = [run(number, 1.0 + number, batch=64 >> number) for number in (0, 1)]
    fastest = replace(runs[0], metrics={**runs[0].metrics, **share})
    assert answer(fastest, runs[1]).values["power_of_limit"] == pytest.approx(0.6)
    assert "60" in answer(fastest, runs[1]).power_share.sentence
    assert "of the limit of 500" in body(answer(fastest, runs[1])).replace("\N{NO-BREAK SPACE}", " ")
    assert answer(*runs).values["power_of_limit"] is None


def pairs(*times_s):
    """Two repeats of each configuration."""
    return [run(n, time_s, batch=64 >> n // 2, repeat=n % 2) for n, time_s in enumerate(times_s)]


def body(result):
    return page_part(Page("answer", result), "body", is_plain=True)


def summary(*runs):
    return page_part(Page("answer", answer(*runs)), "summary", is_plain=True)


def answer(*runs, suggestions=(), prediction=None, **criteria):
    result = analyze(group_repeats(runs), Criteria(**criteria))
    return result and replace(result, suggestions=suggestions, prediction=prediction)


THREE = [run(0, 10.0, 300.0, stall=0.8), run(1, 10.8, 200.0, batch=32), run(2, 15.0, 250.0, batch=16)]
FOUR = [run(0, 10.0, 300.0), run(1, 10.8, 270.0, batch=32), run(2, 15.0, 225.0, batch=16), run(3, 20.0, 240.0, batch=8)]
SUGGESTION = Suggestion("python src/train.py batch=128", "batch", Bottleneck(("compute",), {"compute": 0.8}))
FEW = NoPrediction("few", count=3, needed=6)
REACHED = [reaching(n, 60.0 + n, 500.0 - n, batch=8 << n, steady={"energy_j": 9.0}) for n in range(3)]
NEVER = [reaching(3 + n, batch=128 << n) for n in range(4)]


@pytest.mark.parametrize(
    ("case", "runs", "options"),
    [
        ("", THREE, {"power_budget_w": 20.0, "deadline_s": 11.0, "suggestions": [SUGGESTION], "prediction": FEW}),
        ("unmet", THREE, {"power_budget_w": 5.0, "deadline_s": 3.0}),
        ("best_by_all", [*(run(n, 10.0, 100.0, repeat=n) for n in range(2)),
                         run(2, 12.0, 200.0, batch=32, ranks=2, strategy="dp")], {}),
        ("single", [run(0, 10.0)], {}),
        ("ties", [*(run(n, 10.0, workers=n) for n in range(6)), run(6, 10.0, workers=0, repeat=1),
                  run(7, None, workers=9)], {}),
        ("target", [*REACHED[:2], replace(REACHED[2], energy_covers="module"), *NEVER], {}),
        ("baseline", [*THREE, run(3, 30.0, batch=8)], {"baseline": {"batch": 16, "model": "resnet152"}}),
        # Max power is 30 W: costs are 90 + 210, 81 + 226.8, 67.5 + 315 and 72 + 420. 10.8 s are 1.08 x 10 s.
        *(("four", runs, {"power_budget_w": 25.0, "deadline_s": 10.8, "eta": 0.3, "max_slowdown": 1.08})
          for runs in (FOUR, FOUR[::-1])),
        ("four_unmet", FOUR, {"power_budget_w": 11.0, "deadline_s": 9.0}),
        ("front", [*FOUR, run(4, 12.5, 240.0, batch=4)], {}),
        ("timed", [run(0, 10.0), run(1, 12.0, batch=128)], {"power_budget_w": 9.0, "deadline_s": 9.0}),
        ("partly_measured", [run(0, 5.0), run(1, 10.0, 300.0, batch=128), run(2, 12.0, 200.0, batch=256)], {}),
        ("scopes", [replace(FOUR[0], energy_covers="module"), *FOUR[1:]], {}),
        ("interaction", [run(n, time_s, batch=32 << n // 2, workers=2 + n % 2)
                         for n, time_s in enumerate((10.0, 20.0, 20.0, 10.0))], {}),
        # Of two configurations 35 % apart with a noise of 15 %, two repeats are too few.
        ("reused", [replace(run(0, 9.0), reused="earlier/0"), run(1, 10.0, batch=128)], {}),
        ("unresolved", pairs(1.0, 1.2, 1.35, 1.62), {}),
    ],
)  # fmt: skip
def test_text(case, runs, options):
    result = answer(*runs, **options)
    assert_golden("answer", result, case)
    values = json.loads(json.dumps(replace(result, suggestions=(), prediction=None).values, allow_nan=False))
    assert [choice["configuration"] for choice in values["choices"]] == [choice.cost.title for choice in result.choices]


@pytest.mark.parametrize(
    ("origins", "numbers"),
    [(["earlier/0", "", ""], [0]), (["", "earlier/1", ""], []), (["earlier/0", "earlier/1", "earlier/2"], [])],
)
def test_best_run_that_was_not_measured_with_the_others_is_named(origins, numbers):
    runs = [replace(run(n, 10.0 + n, batch=8 << n), reused=origin) for n, origin in enumerate(origins)]
    assert [own.number for own in answer(*runs).reused] == numbers
    disturbed = [replace(own, disturbed={"cpu_busy": "other processes used the processor"}) for own in runs]
    assert answer(*disturbed).reused == [], "there is no best"


def test_prediction_is_compared_with_the_best_that_was_run():
    point = Predicted("batch 4", {}, Estimate(12.0), Estimate(37.5), Estimate(450.0), "")
    error = Error(0.1, 0.2, 0.3, 8, 8, 2.0, 0.0, is_useful=True)
    text = body(answer(*FOUR, prediction=Prediction([point], {"time": error}, [], 8)))
    assert "batch 4: 12.0 s per epoch, +20 % compared with the fastest" in text
    assert "batch 4: 450 J per epoch, +100 % compared with the lowest" in text
    assert "compared with the" not in body(answer(*REACHED, prediction=Prediction([point], {"time": error}, [], 8)))


def test_each_model_and_dataset_has_its_best():
    runs = [run(2 * n + m, time_s + m, 100.0 - m, model=model, batch=64 >> m)
            for n, (model, time_s) in enumerate([("resnet50", 5.0), ("resnet152", 20.0)]) for m in (0, 1)]  # fmt: skip
    result = answer(*runs)
    assert [len(best) for best in result.by_workload.values()] == [2, 2], "by time and energy"
    assert_golden("answer", result, "workloads")
    targeted = [reaching(n, 60.0, steady={"e2e_s": 9.0}, dataset={"name": f"d{n}"}) for n in range(2)]
    assert "| resnet152 on d1, to an accuracy of at least 0.9 | resnet152, batch 64 | 60.0 s |" in body(
        answer(*targeted)
    )


def test_text_of_a_grid_with_repeats_and_noisy_runs():
    """Two keys of which one matters, ties of the best, and epoch times that vary by 74 %."""
    noise = (1.0, 1.01, 0.99)
    points = [(32, 2, 10.0), (32, 4, 10.05), (32, 8, 10.1), (64, 2, 12.0), (64, 4, 12.1), (64, 8, 12.0)]
    runs = [
        run(3 * place + n, time_s * factor, 100.0 * factor, batch=batch, workers=workers, repeat=n)
        for place, (batch, workers, time_s) in enumerate(points) for n, factor in enumerate(noise)
    ]  # fmt: skip
    for number, std_s in {4: 7.5, 1: 1.5, 0: 2.0, 2: 1.3}.items():
        runs[number] = replace(runs[number], metrics={**runs[number].metrics, "std/e2e_s": std_s})
    result = answer(*runs)
    alone = answer(*(run for run in runs if run.job["workers"] == 2)).choices[0].cost.time
    assert result.choices[0].cost.time.high > alone.high
    assert_golden("answer", result, "grid")
    runs[1] = replace(runs[1], disturbed={"throttled": "gpu0: heat"})
    assert "1 more. Probable cause: heat or over-current lowered the clocks." in body(answer(*runs))


def test_baseline_is_one_configuration_and_is_compared_by_its_repeats():
    times = [(10.0, 64), (10.1, 64), (8.0, 32), (8.1, 32)]
    runs = [run(n, time_s, 100.0 + n, batch=batch, repeat=n % 2) for n, (time_s, batch) in enumerate(times)]
    best, baseline = answer(*runs, baseline={"batch": 64}).rows
    assert (best.cost.title, best.time.value) == ("batch 32", pytest.approx((64.8 / 101.0) ** 0.5))
    assert best.time.low < best.time.value < 0.9
    assert (baseline.best_by[-1], baseline.time, baseline.energy) == ("baseline", None, None)
    assert best.energy.value == pytest.approx((102 * 103 / 100 / 101) ** 0.5)
    module = [replace(one, energy_covers="module") for one in runs[:2]]
    assert answer(*module, *runs[2:], baseline={"batch": 64}).rows[0].energy is None
    for values, count in (({"batch": 9}, 0), ({"model": "resnet152"}, 3), ({"bach": 8}, 0)):
        message = rf"{count} configurations have the values .*\n  hint: .*: batch 64; batch 32; batch 16"
        with pytest.raises(ValueError, match=message):
            answer(*THREE, baseline=values)
    assert answer(*THREE, baseline="defaults").baseline.title == "batch 16"


def test_ratio_without_effects_of_rounds_says_that_it_is_no_quotient_of_means():
    """All runs of the second round take twice the time; it has none of batch 32, which takes 0.8 times the time."""
    sweep = {"order": "random", "repeats": 4}
    slow, quick = [10.0, 20.0, 10.1, 9.9], [8.0, None, 8.1, 7.9]
    runs = [
        run(2 * place + n, time_s, batch=64 >> n, repeat=place, sweep=sweep)
        for n, times_s in enumerate((slow, quick))
        for place, time_s in enumerate(times_s)
        if time_s
    ]
    result, note = answer(*runs, baseline={"batch": 64}), "Ratios exclude effects of rounds and drift"
    assert result.rows[0].time.value == pytest.approx(0.8, rel=0.01)
    assert result.rows[0].cost.time_s / result.baseline.time_s == pytest.approx(0.8 / 2**0.25, rel=0.01)
    assert note in body(result)
    balanced = [own for own in runs if own.job["repeat"] != 1]
    assert note not in body(answer(*balanced, baseline={"batch": 64}))


REPEATED = pairs(10.0, 10.1, 12.0, 12.1)
DISTURBED = replace(REPEATED[0], disturbed={"cpu_busy": "other processes used the processor"})


@pytest.mark.parametrize(
    ("runs", "doubts"),
    [
        (REPEATED, []),
        (THREE, [("single", 3, 3)]),
        (REPEATED[1:], []),  # the repeats of one configuration show the noise of the other
        ([DISTURBED, *REPEATED[1:]], [("disturbed", 1, 4)]),
        ([replace(run, rehearsal=["clocks"]) for run in REPEATED], [("rehearsal", 4, 4)]),
        ([replace(DISTURBED, rehearsal=["clocks"]), REPEATED[2]],
         [("rehearsal", 1, 2), ("single", 2, 2), ("disturbed", 1, 2)]),
        ([DISTURBED], [("disturbed", 1, 1)]),
        (REPEATED[:1], []),  # nothing is compared
    ],
)  # fmt: skip
def test_best_is_established_only_by_repeated_undisturbed_runs_of_what_was_requested(runs, doubts):
    result = answer(*runs)
    assert result.doubts == doubts
    assert result.values["doubts"] == [{"kind": kind, "affected": some, "total": total} for kind, some, total in doubts]
    is_compared = len(result.costs) > 1
    is_said = is_compared and bool(doubts)
    assert ("so far" in summary(*runs), "not established" in summary(*runs)) == (is_said, is_said)
    assert {choice["is_established"] for choice in result.values["choices"]} == {is_compared and not doubts}


@pytest.mark.parametrize(("disturbed", "chosen_from"), [((), 3), (range(5), 3), (range(6), None)])
def test_choice_of_a_best_is_explained_only_where_one_is_named(disturbed, chosen_from):
    reason = {"cpu_busy": "other processes used the processor"}
    runs = [
        run(2 * place + repeat, 10.0 + (place + 2 * repeat) / 10, batch=8 << place, repeat=repeat)
        for place in range(3)
        for repeat in range(2)
    ]
    runs = [replace(each, disturbed=reason) if number in disturbed else each for number, each in enumerate(runs)]
    assert answer(*runs).chosen_from == chosen_from


def test_missing_energy_or_time_limits_what_is_the_best():
    measured = [run(0, 10.0, 100.0), run(1, 12.0, 200.0, batch=32)]
    assert (answer(*measured).is_best_by_all, answer(*measured).no_energy) == (False, None), "without repeats"
    measured.append(run(3, 10.0, 100.0, repeat=1))
    assert answer(*measured).is_best_by_all
    partly = [*measured, run(2, 15.0, batch=16)]
    assert not answer(*partly).is_best_by_all, "the third may need less energy"
    assert "Least energy (energy of GPUs used, 2 configurations): batch 64" in summary(*partly)
    short = replace(run(2, 15.0, batch=16), energy_covers="GPUs used")  # the meter resolves the run, not its epochs
    assert answer(*measured, short).no_energy.without == 1
    assert answer(*REACHED[:2], replace(reaching(2, 9.0, batch=9), energy_covers="GPUs used")).no_energy.without == 1
    assert summary(run(0, 10.0)).startswith("Only one configuration: ")
    assert summary(reaching(0, 60.0), reaching(1, batch=9)).startswith("Only one configuration is ranked: batch 64")


def test_ties_samples_and_keys_that_affect_convergence_limit_the_answer():
    near = [run(n, 10.0 + n / 10, 100.0 + 30 * n, repeat=n) for n in range(3)]
    less = [run(3 + n, 12.0 + n / 10, 135.0 + 30 * n, batch=32, repeat=n) for n in range(3)]
    assert not answer(*near, *less).is_best_by_all
    equal = answer(run(0, 12.0, 200.0), run(1, 10.0, 300.0, batch=32), run(2, 10.0, 200.0, batch=16)).choices
    assert [best.configuration.numbers for best in equal[:2]] == [[2], [2]], "by the other quantity"
    few = run(1, 10.0, batch=32)
    many = replace(few, number=2, job={**few.job, "batch": 8}, metrics={**few.metrics, "steady/samples": 50000.0})
    assert (answer(few).samples, answer(few, many).samples) == (None, (1000.0, 50000.0))
    assert answer(few, many).convergence_keys == ["batch"]
    targeted = [run(number, 10.0, batch=8 * (1 + number), target_accuracy=0.5) for number in range(2)]
    assert answer(*targeted).convergence_keys == []
    runs = [run(n, 10.0, workers=8 >> n // 2, repeat=n % 2) for n in range(4)]
    assert [answer(*some).single_runs for some in (runs[:1], runs[::2], runs[:3], runs)] == [0, 2, 1, 0]
    assert answer(*pairs(1.0, 1.2, 1.05, 1.26)).unresolved is None
    # Two configurations in three rounds. The logarithms of their ratios are 0.278, 0.182 and 0.077: without the effects
    # of rounds, 2.447 + 0.906 standard errors are 0.168 with four repeats, and their mean is 0.179.
    drift, repeats = [1.0, 1.3, 2.0, 1.2 * 1.1, 1.2 * 1.3, 1.2 * 2.0 * 0.9], []
    for order in ("random", "grid"):
        keys = [{"batch": 64 >> n // 3, "repeat": n % 3, "sweep": {"order": order}} for n in range(6)]
        repeats.append(answer(*(run(n, drift[n], **own) for n, own in enumerate(keys))).unresolved[1])
    assert repeats == [4, 49]
    near = [{"batch": 64 >> n // 2, "repeat": n % 2, "sweep": {"order": "random"}} for n in range(4)]
    two = [replace(run(n, time_s, **near[n]), started="1302"[n])
           for n, time_s in enumerate((0.181, 0.327, 0.214, 0.375))]  # fmt: skip
    assert answer(*two).unresolved[1] == 3, "two repeats do not show it"
    assert [answer(*some) for some in ([], [run(0, None)], [run(0, float("nan"))])] == [None] * 3


def test_the_choices_of_answer_json_have_the_bottleneck_and_the_stalls_as_data():
    stalls = {"compute_s": 2.0, "copy_s": 0.0, "overhead_s": 0.0, "data_stall_s": 8.0}
    slow = with_verdict(replace(run(1, 10.0, batch=8), storage={"medium": "ram"}))
    slow = with_verdict(replace(slow, metrics={**slow.metrics, **{f"steady/{k}": v for k, v in stalls.items()}}))
    choice = answer(slow).values["choices"][0]
    assert (choice["bottleneck"], choice["prep_stall_s"], choice["fetch_stall_s"]) == ("prep_stall", 8.0, None)
    assert choice["fractions"]["prep_stall"] == 0.8
    in_memory = "no storage device is read: the samples are in memory"
    assert choice["absent"] == {"steady/fetch_stall_s": in_memory, "steady/energy_j": "no meter here"}


def repeated(*times_s):
    """Return the choice among configurations with three repeats each, which vary by 1 %, and its tie break."""
    factors = (0.99, 1.0, 1.01)
    runs = [run(3 * n + turn, time_s * factors[turn], batch=64 >> n, repeat=turn)
            for n, time_s in enumerate(times_s) for turn in range(3)]  # fmt: skip
    return answer(*runs).choices[0].tie_break


def test_a_tie_states_the_repeats_that_would_show_its_difference_and_at_least_one_that_matters():
    """With six runs, ten degrees of freedom: (2.23 + 0.88) x 1 % x sqrt(2 / 6) = 1.8 %; with five, 2.02 %."""
    assert repeated(10.0, 12.0) is None, "no tie"
    observed, smallest = repeated(10.0, 10.2), repeated(10.0, 10.05)
    assert (observed.effect, smallest.effect) == pytest.approx((0.0203, 0.02), abs=0.0005)
    assert (observed.repeats, smallest.repeats, smallest.is_equal) == (6, 6, False)
    assert repeated(10.0, 10.18, 10.19, 10.2).repeats > observed.repeats, "several differences are compared"


def test_a_tie_whose_interval_is_below_a_difference_that_matters_is_equal():
    times_s = (10.0, 10.01, 10.02, 10.001, 10.012, 10.02)
    runs = [run(n, time_s, batch=64 >> n // 3, repeat=n % 3) for n, time_s in enumerate(times_s)]
    assert answer(*runs).choices[0].tie_break[1:] == (True, 0.02, None)
    assert answer(run(0, 10.0), run(1, 10.0, batch=8)).choices[0].tie_break is None, "single runs have no spread"


def test_energies_are_compared_only_if_all_are_measured():
    front = answer(run(0, 10.0, batch=8), run(1, 12.0, 99.0, batch=16)).values
    assert (front["front"], front["no_energy"]["without"], front["no_energy"]["reason"]) == ([], 1, "no meter here")
    measured = answer(run(0, 10.0, 120.0, batch=8), run(1, 12.0, 99.0, batch=16)).values
    assert (len(measured["front"]), measured["no_energy"]) == (2, None)


def test_a_best_configuration_that_trained_no_model_is_not_established():
    fast, slow = run(0, 10.0, batch=8), run(1, 12.0, batch=16)
    for diverged, doubts in ((fast, ["single", "diverged"]), (slow, ["single"])):
        runs = [
            replace(each, diverged="epoch 1: the loss was nan") if each is diverged else each for each in (fast, slow)
        ]
        assert [doubt.kind for doubt in answer(*runs).doubts] == doubts


def test_equal_bottlenecks_are_of_one_kind_in_either_order():
    result = answer(*(run(n, 10.0, stall=stall, batch=8 + n) for n, stall in enumerate((0.445, 0.455))))
    assert [count for _, count in result.bottleneck_counts] == [2]


@pytest.mark.parametrize(("noise", "time_s", "far"), [(0.01, 17.6, True), (0.01, 12.0, False), (0.15, 17.6, False)])
def test_run_far_from_its_repeats_is_an_outlier_unless_all_runs_are(noise, time_s, far):
    """Medians of 10, 11 and 12 s. Without the outlier, the usual distance from them is the noise."""
    times = [time_s * factor for time_s in (10.0, 11.0, 12.0) for factor in (1 - noise, 1.0, 1 + noise)]
    times[4] = time_s
    runs = [run(n, time_s, batch=64 >> n // 3, repeat=n % 3) for n, time_s in enumerate(times)]
    found = [(one.number, distance) for one, distance in answer(*runs).outliers]
    assert found == ([(4, pytest.approx(time_s / 11.11 - 1))] if far else [])
    assert answer(*(one for one in runs if one.number not in (0, 3, 6))).outliers == [], "two repeats have no median"
    for last_s, numbers in ((15.0, [2]), (12.0, [])):  # 49 and 19 times the other distance
        three = answer(*(run(n, time_s, repeat=n) for n, time_s in enumerate((10.0, 10.1, last_s)))).outliers
        assert [one.number for one, _ in three] == numbers
