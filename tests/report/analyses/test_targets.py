"""Time and energy to a target: the Pareto front, ties, and configurations that are not ranked."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.targets import page, sentences, targets
from epochmeter.report.runs.configuration import quality_target


def reaching(number, time_s, energy_j=None, *, batch=64, epochs=3.0, total=None, **keys):
    """A run with a target: what it took, None where it was not reached."""
    told = {"time_to_target_s": time_s, "energy_to_target_j": energy_j,
            "epochs_to_target": None if time_s is None else epochs, "energy_j": energy_j, **(total or {})}  # fmt: skip
    known = {name: value for name, value in told.items() if value is not None}
    return trained(number, 100.0, batch=batch, total=known, **{"target_accuracy": 0.65, **keys})


def one(found):
    (told,) = targets(found)
    return told


def on_front(told):
    return [point.title for point in told.points if point.on_front]


# Points


def test_configurations_have_time_and_energy_to_the_target():
    told = one([reaching(0, 100.0, 900.0), reaching(1, 60.0, 1000.0, batch=128), reaching(2, 110.0, 1100.0, batch=256)])
    assert told.title == "jpeg, accuracy of at least 0.65"
    assert [point.title for point in told.points] == ["batch 64", "batch 128", "batch 256"]
    assert on_front(told) == ["batch 64", "batch 128"]
    assert (told.fastest, told.least, told.covers) == ("batch 128", "batch 64", "GPUs used")
    assert (told.time_ratio.value, told.energy_ratio.value) == pytest.approx((100 / 60, 1000 / 900))
    assert sentences(told)[:2] == [
        "jpeg, accuracy of at least 0.65: the fastest is batch 128: 60.0 s, 1000 J; the least energy has batch 64: "
        "100 s, 900 J.",
        "The fastest needs 1.11 times the least energy; the other needs 1.67 times the least time.",
    ]


def test_best_in_both_is_named_once():
    told = one([reaching(0, 100.0, 900.0), reaching(1, 60.0, 800.0, batch=128)])
    assert on_front(told) == ["batch 128"]
    assert sentences(told)[0].endswith("batch 128 is the fastest and needs the least energy: 60.0 s, 800 J.")
    assert told.time_ratio is None


def test_equal_times_are_ranked_by_energy():
    told = one([reaching(0, 60.0, 900.0), reaching(1, 60.0, 800.0, batch=128)])
    assert (told.fastest, told.least, on_front(told)) == ("batch 128", "batch 128", ["batch 128"])


def test_run_that_missed_the_target_is_counted_and_excluded():
    told = one([reaching(0, 100.0, 900.0), reaching(1, None, total={"energy_j": 5.0}, batch=128)])
    assert (on_front(told), told.points[1].time_s, told.no_energy) == (["batch 64"], None, None)
    assert "1 of 2 runs missed it and are excluded: they have no time or energy to it." in sentences(told)


def test_target_that_no_run_reached():
    told = one([reaching(0, None), reaching(1, None, batch=128)])
    assert sentences(told) == [
        "jpeg, accuracy of at least 0.65: none of 2 runs reached it. Give more epochs, or another target."
    ]
    assert page([reaching(0, None)]).sections[0].grids[0].rows[0][2:] == ["no", "-", "-", "-", ""]


def test_means_are_over_the_runs_that_reached_it():
    told = one([reaching(0, 90.0, 900.0, seed=0, epochs=3.0), reaching(1, 110.0, 1100.0, seed=1, epochs=4.0)])
    (point,) = told.points
    assert (point.numbers, point.reached, point.always) == ([0, 1], [0, 1], True)
    assert (point.epochs, point.time_s.value, point.energy_j.value) == pytest.approx((3.5, 100.0, 1000.0))
    assert point.time_s.low < 90
    assert page([reaching(0, 90.0, seed=0), reaching(1, None, seed=1)]).sections[0].grids[0].rows[0][2] == "1 of 2"
    assert not any("intervals" in text for text in sentences(told))


def test_configuration_that_reached_it_in_some_runs_is_not_ranked():
    lucky = [reaching(n, 10.0 if n == 0 else None, 90.0 if n == 0 else None, seed=n) for n in range(5)]
    steady = [reaching(5 + n, 60.0 + n, 500.0, batch=128, seed=n) for n in range(2)]
    told = one([*lucky, *steady])
    assert (told.fastest, told.least, on_front(told)) == ("batch 128", "batch 128", ["batch 128"])
    assert sentences(told)[1] == (
        "Not ranked, as only some of their runs reached it: batch 64 (1 of 5 runs, 10.0 s, 90.0 J)."
    )
    assert [row[0] for row in page([*lucky, *steady]).sections[0].grids[0].rows] == ["batch 128", "batch 64"]


def test_without_a_configuration_that_always_reached_it_none_is_ranked():
    found = [reaching(2 * b + s, 10.0 if s else None, batch=8 + b, seed=s) for b in range(5) for s in range(2)]
    told = one(found)
    assert (told.fastest, told.least) == (None, None)
    assert sentences(told)[0].endswith("no configuration reached it in all of its runs, so none is ranked.")
    assert sentences(told)[1].endswith("batch 10 (1 of 2 runs, 10.0 s); 2 more.")


def test_ties_are_listed_with_the_best():
    near = [reaching(3 * b + n, 60.0 + b + 4 * n, 500.0 + b + 40 * n, batch=8 + b, seed=n)
            for b in range(5) for n in range(3)]  # fmt: skip
    far = [reaching(15 + n, 600.0 + 4 * n, 480.0 + 40 * n, batch=99, seed=n) for n in range(3)]
    told = one([*near, *far])
    assert (told.fastest, told.not_significantly_slower) == ("batch 8", ["batch 9", "batch 10", "batch 11", "batch 12"])
    assert (told.least, len(told.not_significantly_more_energy)) == ("batch 99", 5)
    assert sentences(told)[0].endswith(
        "Not significantly slower: batch 9; batch 10; batch 11; 1 more. "
        "Not significantly more energy: batch 8; batch 9; batch 10; 2 more."
    )
    alone = one([reaching(0, 100.0, 900.0), reaching(1, 60.0, 1000.0, batch=128), reaching(2, 60.0, 1100.0, batch=256)])
    assert (alone.not_significantly_slower, alone.not_significantly_more_energy) == (["batch 256"], [])


def test_insignificant_trade_off_is_stated():
    told = one([reaching(n, 100.0 + 50 * n, 900.0 + n, seed=n) for n in range(2)]
               + [reaching(2 + n, 90.0 + 50 * n, 1000.0 + n, batch=128, seed=n) for n in range(2)])  # fmt: skip
    assert sentences(told)[1].endswith("; no significant difference in time.")


def test_without_energy_there_is_a_fastest_and_no_front():
    told = one([reaching(0, 100.0), reaching(1, 60.0, batch=128)])
    assert (told.fastest, told.least, on_front(told), told.covers) == ("batch 128", None, [], None)
    assert sentences(told)[0] == "jpeg, accuracy of at least 0.65: the fastest is batch 128: 60.0 s."
    assert any("No energy to the target, and no front: 2 of 2 runs" in text for text in sentences(told))


def test_energy_per_epoch_but_not_to_the_target_has_a_reason():
    told = one([reaching(0, 100.0, steady={"energy_j": 50.0})])
    assert sentences(told)[1] == (
        "No energy to the target, and no front: 1 of 1 runs that reached it measured none: a window up to the target, "
        "such as an evaluation, was too short for the meter."
    )


def test_configuration_without_energy_is_not_on_the_front():
    told = one([reaching(0, 100.0, 900.0), reaching(1, 60.0, batch=128)])
    assert (on_front(told), told.fastest, told.least) == (["batch 64"], "batch 128", "batch 64")
    assert told.energy_ratio is None
    assert any("Some are not on the front: 1 of 2 runs" in text for text in sentences(told))


def test_energies_of_different_parts_have_no_front():
    found = [reaching(0, 100.0, 900.0), replace(reaching(1, 60.0, 900.0, batch=128), energy_covers="module")]
    told = one(found)
    assert on_front(told) == []
    assert "it covers different things: GPUs used, module" in told.no_energy


def test_zero_energy_has_no_ratio():
    told = one([reaching(0, 100.0, 0.0), reaching(1, 60.0, 900.0, batch=128)])
    assert (told.energy_ratio, told.not_significantly_more_energy) == (None, [])


# Targets


def test_each_target_and_dataset_is_analyzed_separately():
    found = [reaching(0, 1.0), reaching(1, 1.0, target_accuracy=0.7),
             reaching(2, 1.0, target_accuracy=None, target_loss=0.5),
             reaching(3, 1.0, dataset={"name": "mnist"}), trained(4, 100.0)]  # fmt: skip
    assert [told.title for told in targets(found)] == [
        "jpeg, accuracy of at least 0.65",
        "jpeg, accuracy of at least 0.7",
        "jpeg, loss of at most 0.5",
        "mnist, accuracy of at least 0.65",
    ]


def test_models_are_compared_by_one_target():
    told = one([reaching(0, 100.0), reaching(1, 60.0, model="resnet50")])
    assert told.fastest == "resnet50"


def test_target_of_training_metrics_is_a_different_target():
    assert quality_target({"target_loss": 1e-3, "evaluate": False}) == "loss of at most 0.001 while training"
    assert quality_target({"target_loss": None, "target_accuracy": None}) is None
    assert page([trained(0, 100.0)]) is None


def test_titles_of_configurations_without_differing_keys_have_their_runs():
    found = [reaching(n, 100.0 - n, optimizer={"name": "sgd", "lr": 0.1 * n}) for n in range(2)]
    assert [point.title for point in one(found).points] == [
        "resnet152, batch 64 (run 0)",
        "resnet152, batch 64 (run 1)",
    ]
    typed = [reaching(n, 100.0, optimizer={"name": "sgd", "lr": 0.1 * n}, typed={"optimizer.lr": f"0.{n}"})
             for n in range(2)]  # fmt: skip
    assert [point.title for point in one(typed).points] == ["optimizer.lr=0.0", "optimizer.lr=0.1"]


def test_table_is_sorted_by_time():
    told = page([reaching(0, None), reaching(1, 100.0, 900.0, batch=128), reaching(2, 60.0, 1000.0, batch=256)])
    (grid,) = told.sections[0].grids
    assert [row[0] for row in grid.rows] == ["batch 256", "batch 128", "batch 64"]
    assert [row[-1] for row in grid.rows] == ["front", "front", ""]
    assert told.numbers == [0, 1, 2]
