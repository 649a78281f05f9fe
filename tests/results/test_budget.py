"""Budgets of scripted runs: worked examples, refusals, and how close to its budget a run ends."""

import random
from array import array

import pytest
from default_jobs import job_of
from metadata import run_info

from epochmeter.results.budget import BudgetTracker, budget_notes, check_budget, check_is_measured
from epochmeter.results.forecast import Forecaster, no_forecast_reason
from epochmeter.shared.problem import InputError

KWH = 3_600_000.0
PRICED = {"intensity": 100, "price": 0.5, "currency": "EUR", "pue": 2}


def window(kind, number, e2e_s, energy_j=None):
    term = {} if energy_j is None else {"energy_j": energy_j, "energy_uncertainty_j": 0.0}
    values = {"e2e_s": e2e_s, "steps": 10, **term}
    energy = {"opened_ns": 0, "closed_ns": round(e2e_s * 1e9), "joules": {}, "term": term}
    return {
        "window": kind,
        "epoch": number,
        "metrics": {f"{kind}/{key}": values[key] for key in values},
        "energy": energy,
    }


def followed(windows, footprint=None, **budget):
    """Return the budget that is reached after each window that is the last of its epoch."""
    job = job_of(budget=budget, footprint=footprint or {}, warmup_epochs=1)
    tracker, forecaster = BudgetTracker(job, run_info()), Forecaster((), 1, lambda count: array("f"))
    reached = {}
    for line in windows:
        forecaster.add(line)
        tracker.add(line)
        reached[line["epoch"]] = tracker.reached(forecaster)
    return [*reached.values()]


@pytest.mark.parametrize(
    ("budget", "limit", "used", "expected"),
    [("time_s", 47.0, 36.0, 48.0), ("energy_j", 5e6, 4e6, 5.2e6), ("carbon_g", 280.0, 800 / 3.6, 1040 / 3.6),
     ("cost", 1.25, 4 / 3.6, 5.2 / 3.6)],
)  # fmt: skip
def test_training_ends_before_the_epoch_that_would_exceed_the_budget(budget, limit, used, expected):
    """The first epoch is a warm-up: the others, with their evaluations, need 12 s and 1.2 MJ each."""
    rounds = [(10.0, 1.4e6), *3 * [(10.0, 1.0e6)]]
    pairs = [[window("epoch", n, s, j), window("val", n, 2.0, 2e5)] for n, (s, j) in enumerate(rounds)]
    lines = [line for pair in pairs for line in pair][:6]
    after = followed(lines, PRICED, **{budget: limit})
    assert after[:-1] == [None] * 2
    assert after[-1] == {
        "key": budget, "limit": limit, "used": pytest.approx(used), "expected": pytest.approx(expected), "epochs": 3,
    }  # fmt: skip


def test_budget_below_one_epoch_is_reached_after_the_first():
    (reached,) = followed([window("epoch", 0, 10.0)], time_s=3)
    assert (reached["epochs"], reached["used"], reached["expected"]) == (1, 10.0, 20.0)


def test_first_of_several_budgets_that_is_reached_is_stated():
    reached = followed([window("epoch", n, 10.0, 50.0) for n in range(4)], time_s=1e3, energy_j=220)
    assert [use and use["key"] for use in reached] == [None, None, None, "energy_j"]


def test_budget_whose_quantity_is_not_known_of_an_epoch_is_not_checked_and_that_is_said():
    lines = [window("epoch", 0, 10.0, 50.0), window("epoch", 1, 10.0)]
    assert followed(lines, energy_j=1)[-1] is None
    notes = budget_notes(job_of(budget={"energy_j": 1, "time_s": 99}), run_info(), lines)
    assert len(notes) == 1
    assert "energy_j" in notes[0]
    assert "1 of 2 epochs" in notes[0]


@pytest.mark.parametrize(
    ("command", "epochs", "stop", "said"),
    [(None, 2, False, "budget reached: "), (["a.py"], 2, False, ""), (["a.py"], 2, True, "budget reached: "),
     (["a.py"], 3, True, "budget reached: "), (["a.py"], 3, False, "the script continued"),
     (["a.py"], 4, True, "the script continued")],
)  # fmt: skip
def test_note_states_what_was_used_and_whether_a_script_continued(command, epochs, stop, said):
    job = job_of(budget={"time_s": 25, "stop": stop}, measure={"command": command})
    use = {"key": "time_s", "limit": 25.0, "used": 20.0, "expected": 30.0, "epochs": 2}
    notes = budget_notes(job, run_info(budget=use), [window("epoch", n, 10.0) for n in range(epochs)])
    assert [said in note and "20.0 s used in 2 epochs" in note and "10.0 s" in note for note in notes] == [True] * bool(
        said
    )


def test_runs_end_within_three_percent_of_their_budget():
    """Of 40 runs with noisy epochs of 2 % of the budget, and a warm-up of twice that, 38 at least."""
    close, over = 0, 0
    for number in range(40):
        noise = random.Random(number)
        budget, std = 1000.0, noise.choice([0.01, 0.05, 0.1])
        job = job_of(budget={"energy_j": budget}, warmup_epochs=1)
        tracker, forecaster = BudgetTracker(job, run_info()), Forecaster((), 1, lambda count: array("f"))
        reached, epoch = None, 0
        while reached is None:
            line = window("epoch", epoch, 1.0, (1 + (epoch == 0)) * 20 * noise.gauss(1, std))
            forecaster.add(line)
            tracker.add(line)
            reached, epoch = tracker.reached(forecaster), epoch + 1
        close += abs(reached["used"] / budget - 1) <= 0.03
        over += reached["used"] > budget + 20 * (1 + 3 * std)
    assert (close >= 38, over) == (True, 0)


@pytest.mark.parametrize(
    ("budget", "needed"),
    [
        ({"carbon_g": 5}, "footprint.intensity"),
        ({"cost": 5}, "footprint.price"),
        ({"stop": True, "time_s": 5}, "script"),
    ],
)
def test_budget_that_the_configuration_does_not_give_is_refused(budget, needed):
    with pytest.raises(InputError, match=needed):
        check_budget(job_of(budget=budget))


def test_script_that_is_to_be_stopped_needs_a_budget():
    with pytest.raises(InputError, match=r"budget\.time_s"):
        check_budget(job_of(budget={"stop": True}, measure={"command": ["a.py"]}))


@pytest.mark.parametrize("energy", [{"source": "none", "reason": "no sensor"}, {"source": "estimated"}])
@pytest.mark.parametrize("budget", ["energy_j", "carbon_g", "cost"])
def test_budget_of_energy_is_refused_without_measured_energy(budget, energy):
    with pytest.raises(InputError, match=f"budget.{budget}=9` needs measured energy"):
        check_is_measured(job_of(budget={budget: 9}), run_info(energy=energy))
    check_is_measured(job_of(budget={budget: 9}), run_info(energy={"source": "counter"}))
    check_is_measured(job_of(budget={"time_s": 9}), run_info(energy=energy))


def test_run_with_a_budget_has_no_forecast_of_all_epochs():
    assert no_forecast_reason(job_of(budget={"time_s": 9}), 6)
