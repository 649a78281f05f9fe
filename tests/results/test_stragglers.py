"""The rank for which the others wait, by simulated steps of ranks."""

import json
from array import array

import numpy as np
import pytest
from metadata import run_info

from epochmeter.results.rank_times import rows_of_ranks, with_waits
from epochmeter.results.straggler_of_run import straggler_of
from epochmeter.results.stragglers import (
    NO_STRAGGLER,
    TOO_FEW_STEPS,
    effects_of,
    find_straggler,
    lower_clock,
    straggler_sentence,
)
from epochmeter.shared.protocol import RankWindow
from epochmeter.shared.record import Record

STEPS = 120


def rows(ranks=4, steps=STEPS, seed=0, noise=0.05, exchange_s=0.002, **slower_s):
    """Return the steps of ranks that end together; `slower_s` is by part, of rank 2."""
    chance = np.random.default_rng(seed)
    parts = {
        "stall": 0.004 * (1 + noise * chance.standard_normal((ranks, steps))),
        "overhead": np.full((ranks, steps), 0.001),
        "compute": 0.02 * (1 + noise * chance.standard_normal((ranks, steps))),
    }
    for part, seconds in slower_s.items():
        parts[part][2] += seconds
    own = sum(parts.values())
    waits = own.max(axis=0) - own + exchange_s
    return np.stack([parts["stall"] + parts["overhead"], parts["stall"], parts["compute"] + waits, waits], axis=2)


@pytest.mark.parametrize(
    ("slower_s", "causes"),
    [
        ({"stall": 0.01}, ("data_stall",)),
        ({"compute": 0.01}, ("compute",)),
        ({"overhead": 0.01}, ("overhead",)),
        ({"stall": 0.006, "compute": 0.01}, ("compute", "data_stall")),
    ],
)
def test_slow_rank_is_named_with_its_causes_and_by_how_much(slower_s, causes):
    found = find_straggler(rows(**slower_s))
    assert (found.rank, found.causes, found.steps) == (2, causes, STEPS)
    assert found.excess.mean_s == pytest.approx(sum(slower_s.values()), rel=0.1)
    assert found.excess.half_s < 0.1 * found.excess.mean_s
    assert found.slowest_fraction > 0.95
    assert found.saving_s == pytest.approx(sum(slower_s.values()), rel=0.15)


def test_equal_ranks_have_no_straggler_nor_ranks_that_are_slow_by_turns():
    found = [find_straggler(rows(ranks, seed=seed, noise=0.3)) for ranks in (2, 4, 16) for seed in range(100)]
    assert sum(straggler is not None for straggler in found) <= 0.05 * len(found)
    turns = rows()
    for step in range(STEPS):
        turns[step % 4, step, 2] += 0.02
    assert find_straggler(turns) is None


def test_slow_rank_is_found_although_some_steps_of_all_ranks_last_many_times_as_long():
    chance = np.random.default_rng(0)
    disturbed = np.where(chance.random((4, STEPS)) < 0.05, chance.exponential(0.1, (4, STEPS)), 0.0)
    steps = rows(compute=0.005)
    steps[..., 2] += disturbed
    found = find_straggler(steps)
    assert (found.rank, found.causes) == (2, ("compute",))
    assert found.excess.mean_s == pytest.approx(0.005, abs=found.excess.half_s)
    equal = rows()
    equal[..., 2] += disturbed
    assert find_straggler(equal) is None


@pytest.mark.parametrize(
    ("slower_s", "disturbed"),
    [
        ({"stall": 0.006}, "compute"),
        ({"compute": 0.006}, "stall"),
        ({"stall": 0.004, "compute": 0.006}, "compute"),
    ],
)
def test_parts_and_saving_are_known_although_outliers_hide_the_difference(slower_s, disturbed):
    chance = np.random.default_rng(1)
    outliers = np.where(chance.random((4, STEPS)) < 0.05, chance.exponential(0.2, (4, STEPS)), 0.0)
    steps = rows(**slower_s)
    for interval in (0, 1) if disturbed == "stall" else (2,):
        steps[..., interval] += outliers
    found = find_straggler(steps)
    assert (found.rank, found.has_limits, found.causes) == (2, True, tuple(sorted(slower_s_of(slower_s))))
    for part, seconds in {"data_stall": 0.0, "compute": 0.0, "overhead": 0.0, **slower_s_of(slower_s)}.items():
        assert found.parts[part].mean_s == pytest.approx(seconds, abs=0.0005)
    assert found.saving_s == pytest.approx(found.slowest_fraction * sum(slower_s.values()), rel=0.1)
    assert 0.8 < found.slowest_fraction < 0.95, "in 14 % of the steps, another rank has an outlier"
    assert not find_straggler(rows(**slower_s)).has_limits


def slower_s_of(slower_s):
    """Return what a rank is slower by, by the names of parts."""
    return {"data_stall" if part == "stall" else part: seconds for part, seconds in slower_s.items()}


def test_correlated_steps_of_equal_ranks_have_stragglers_as_rarely():
    found = 0
    for seed in range(100):
        chance, steps = np.random.default_rng(seed), rows(2, 400, seed)
        drift = np.zeros((2, 400))
        for step in range(1, 400):
            drift[:, step] = 0.9 * drift[:, step - 1] + 0.002 * chance.standard_normal(2)
        steps[..., 2] += drift
        found += find_straggler(steps) is not None
    assert found <= 8  # without regard to the correlation, 36


def test_small_excess_is_no_straggler_however_certain():
    assert find_straggler(rows(noise=0.0, compute=0.001)) is None
    assert find_straggler(rows(noise=0.0, compute=0.002)).rank == 2


def test_interval_of_a_mean_holds_for_independent_and_correlated_steps():
    chance, held = np.random.default_rng(0), {0.0: 0, 0.8: 0}
    for correlation in held:
        for _ in range(200):
            values = np.zeros(320)
            for step in range(1, 320):
                values[step] = correlation * values[step - 1] + chance.standard_normal()
            (effect,) = effects_of(values[None], 0.05)
            held[correlation] += abs(effect.mean_s) <= effect.half_s
    assert held[0.0] >= 190
    assert held[0.8] >= 184


def test_lower_clock_is_the_cause_only_if_it_explains_the_compute():
    steps = rows(compute=0.005)  # 25 % slower
    found = find_straggler(steps)
    assert lower_clock([2e9, 2e9, 1.6e9, 2e9], found, steps) == pytest.approx(0.2)
    assert lower_clock([2e9, 2e9, 1.96e9, 2e9], found, steps) is None  # 2 % of the time
    assert lower_clock([2e9, 2e9, None, 2e9], found, steps) is None
    disturbed = steps.copy()
    disturbed[..., 2] += np.where(np.random.default_rng(0).random((4, STEPS)) < 0.05, 0.5, 0.0)
    found = find_straggler(disturbed)
    assert lower_clock([2e9, 2e9, 1.6e9, 2e9], found, disturbed) == pytest.approx(0.2)
    # Of 21 ms, 9.5 % is 2 ms: not half of the excess, but of the mean with outliers it would be.
    assert lower_clock([2e9, 2e9, 1.9e9, 2e9], found, disturbed) is None
    of_data = rows(stall=0.005)
    assert lower_clock([2e9, 2e9, 1.6e9, 2e9], find_straggler(of_data), of_data) is None


def rank_window(rank, e2e_s, communication_s=None):
    parts = {"e2e_s": e2e_s} | ({} if communication_s is None else {"communication_s": communication_s})
    return RankWindow(0, 1, 0, parts, [], False, 0.0, 0.0, None, rank)


def test_waits_for_slower_ranks_are_what_exceeds_the_shortest_wait_of_a_step():
    waits = np.array([[0.1, 0.5], [0.3, 0.1]])
    steps = np.zeros((2, 2, 4))
    steps[..., 3] = waits
    first, other = with_waits([rank_window(0, 2.0, 0.6), rank_window(1, 2.0, 0.4)], steps)
    assert first.parts == pytest.approx({"e2e_s": 2.0, "communication_s": 0.6, "own_s": 1.4, "rank_wait_s": 0.4})
    assert other.parts == pytest.approx({"e2e_s": 2.0, "communication_s": 0.4, "own_s": 1.6, "rank_wait_s": 0.2})
    alone, without = with_waits([rank_window(0, 2.0, 0.6), rank_window(1, 2.0)], None)
    assert alone.parts == pytest.approx({"e2e_s": 2.0, "communication_s": 0.6, "own_s": 1.4})
    assert without.parts == {"e2e_s": 2.0}


def recorded(folder, epochs, ranks=(0, 1, 2, 3), **facts):
    """Return a record of epochs with the rows of ranks; None: an epoch without rows."""
    record, windows = Record(folder), []
    (folder / "host.json").write_text(json.dumps({"gpus": [{"uuid": f"GPU-{rank}{rank}"} for rank in ranks]}))
    for number, steps in enumerate(epochs):
        line = {"window": "epoch", "epoch": number, "metrics": {}, "of_ranks": [{"rank": rank} for rank in ranks]}
        if steps is not None:
            record.append_rank_rows(array("f", steps.astype(np.float32).tobytes()))
            line["rank_steps"] = steps.shape[1]
        windows.append(line)
    places = [{"rank": rank, "host": "node", "device": f"cuda:{rank}", "gpu": f"{rank}{rank}"} for rank in ranks]
    return record, windows, run_info(training={"places": places, **facts})


def test_straggler_of_a_run_is_found_in_the_epochs_after_the_warm_up_with_its_place(tmp_path):
    epochs = [rows(seed=1), rows(steps=60, stall=0.01), None, rows(steps=60, seed=2, stall=0.01)]
    straggler, metrics, reason = straggler_of(*recorded(tmp_path, epochs), warmup_epochs=1)
    assert (straggler["rank"], straggler["host"], straggler["device"], straggler["steps"]) == (2, "node", "cuda:2", 120)
    assert (straggler["causes"], reason) == (["data_stall"], "")
    assert metrics["straggler/excess_s"] == pytest.approx(0.01, rel=0.1)
    assert metrics["straggler/data_stall_s"] == pytest.approx(0.01, rel=0.1)
    sentence = straggler_sentence(straggler)
    assert all(word in sentence for word in ("rank 2 (node, cuda:2)", "of 120 steps", "its data stall"))


def test_straggler_has_the_clock_and_temperature_of_its_device(tmp_path):
    columns = [f"gpu{rank}_{gauge}" for rank in range(4) for gauge in ("clock_hz", "temperature_c")]
    lines = [f"{time},2e9,60,2e9,61,1.6e9,{88 + time},2e9,62" for time in range(3)]
    (tmp_path / "gauges.csv").write_text("\n".join([f"monotonic_ns,{','.join(columns)}", *lines, ""]))
    straggler, _, _ = straggler_of(*recorded(tmp_path, [rows(compute=0.005)]), warmup_epochs=0)
    assert (straggler["lower_clock"], straggler["temperature_c"]) == (pytest.approx(0.2), pytest.approx(89))
    assert "clock is 20 % lower, at 89 °C" in straggler_sentence(straggler)


@pytest.mark.parametrize(
    ("epochs", "ranks", "reason"),
    [
        ([rows(seed=3)], (0, 1, 2, 3), NO_STRAGGLER),
        ([rows(steps=20, stall=0.1)], (0, 1, 2, 3), TOO_FEW_STEPS),
        ([None], (0, 1, 2, 3), TOO_FEW_STEPS),
        ([None], (0,), ""),
    ],
)
def test_reason_why_there_is_no_straggler(tmp_path, epochs, ranks, reason):
    assert straggler_of(*recorded(tmp_path, epochs, ranks), warmup_epochs=0) == (None, {}, reason)


def test_rows_that_are_incomplete_are_not_used():
    assert rows_of_ranks(array("f", [0.0] * 12), 2, 2) is None
    assert rows_of_ranks(array("f"), 2, 0) is None
