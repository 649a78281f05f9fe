"""Where the time of a whole run went: runs with known moments, windows and steps."""

import math
from array import array

import pytest
from metadata import run_info

from epochmeter.results.account import CONCURRENT, NO_ATTEMPTS, NO_MOMENTS, NO_WINDOWS, account_of, grouped

S = 10**9
MOMENTS = {"command_ns": 0, "process_ns": 2 * S, "imported_ns": 5 * S, "ended_ns": 50 * S, "recorded_ns": 54 * S}


def epoch(number, begin_s, end_s, **parts):
    """An epoch of four steps; the rest of its time is compute."""
    e2e_s = end_s - begin_s
    values = {"e2e_s": e2e_s, "steps": 4, "data_stall_s": 1.0, "overhead_s": 1.0, **parts}
    values.setdefault("compute_s", e2e_s - values["data_stall_s"] - values["overhead_s"])
    return window("epoch", number, begin_s, end_s, **values)


def window(kind, number, begin_s, end_s, **values):
    metrics = {
        f"{kind}/{name}": value for name, value in {"e2e_s": end_s - begin_s, **values}.items() if value is not None
    }
    return {"window": kind, "epoch": number, "opened_ns": begin_s * S, "closed_ns": end_s * S, "metrics": metrics}


def rows(*computes_s):
    return array("f", [value for compute_s in computes_s for value in (0.25, 0.25, 0.0, compute_s)])


WINDOWS = [epoch(0, 10, 20), window("val", 0, 20, 23), epoch(1, 24, 34), window("val", 1, 34, 37), epoch(2, 38, 48)]
STEADY = rows(*12 * [2.0])
SECONDS = {
    "prepare_s": 2, "import_s": 3, "build_s": 5, "data_stall_s": 3, "compute_s": 24, "overhead_s": 3,
    "evaluation_s": 6, "save_s": 0, "between_s": 2, "finish_s": 2, "analyze_s": 4,
}  # fmt: skip


def seconds(windows=WINDOWS, steps=STEADY, moments=MOMENTS, **facts):
    """Return the rows of an account in seconds, which add up."""
    account = account_of(run_info(moments=moments, **facts), windows, steps, 1)
    assert account.reason == ""
    values = {name.removeprefix("run/"): value for name, value in account.metrics.items()}
    wall_s, residual_s = values.pop("wall_s"), values.pop("residual_s")
    assert math.fsum([*values.values(), residual_s]) - values.get("gap_s", 0) == pytest.approx(wall_s)
    assert residual_s == pytest.approx(0, abs=1e-6)
    return values


def test_rows_are_the_stages_and_the_parts_of_epochs():
    assert seconds() == pytest.approx(SECONDS)


@pytest.mark.parametrize(
    ("begin_s", "end_s", "row"), [(6, 7, "build_s"), (23, 24, "between_s"), (48, 49, "finish_s"), (51, 52, "analyze_s")]
)
def test_saving_outside_of_windows_is_taken_out_of_the_row_in_which_it_happened(begin_s, end_s, row):
    saved = seconds(moments={**MOMENTS, "saves_ns": [[begin_s * S, end_s * S]]})
    assert saved == pytest.approx({**SECONDS, "save_s": 1, row: SECONDS[row] - 1})


def test_saving_within_windows_is_taken_out_of_their_overhead_and_counts_once():
    windows = [epoch(0, 10, 20, save_s=0.5), window("val", 0, 20, 23, save_s=0.25), *WINDOWS[2:]]
    saved = seconds(windows, moments={**MOMENTS, "saves_ns": [[19 * S, 19 * S + S // 2], [21 * S, 21 * S + S // 4]]})
    assert saved == pytest.approx({**SECONDS, "save_s": 0.75, "overhead_s": 2.5, "evaluation_s": 5.75})


def test_peaks_are_measured_while_the_model_is_built():
    measured = seconds(moments={**MOMENTS, "peaks_ns": [6 * S, 8 * S]})
    assert measured == pytest.approx({**SECONDS, "peaks_s": 2, "build_s": 3})


@pytest.mark.parametrize(
    ("computes_s", "warm_up_s"),
    [([5, 3.5, 2, 2, *8 * [2]], 4.5), ([2, 9, 2, 2, *8 * [2]], 0), ([2.9, 2, 2, 2, *8 * [2]], 0), ([4, *11 * [2]], 2)],
    ids=["two longer steps", "a later one", "noise", "one"],
)
def test_warm_up_is_what_the_first_steps_computed_longer_than_later_ones(computes_s, warm_up_s):
    found = seconds(steps=rows(*computes_s))
    assert found.get("warm_up_s", 0) == pytest.approx(warm_up_s)
    assert found["compute_s"] == pytest.approx(SECONDS["compute_s"] - warm_up_s)


def test_only_epoch_is_compared_with_its_own_second_half():
    assert seconds(WINDOWS[:1], rows(6, 2, 2, 2))["warm_up_s"] == pytest.approx(4)


def test_epochs_without_parts_and_named_windows_have_rows_of_their_own():
    windows = [window("epoch", 0, 10, 20, steps=4), window("load", 0, 20, 22)]
    found = seconds([*windows, *WINDOWS[2:]])
    assert (found["unknown_s"], found["window_s"], found["between_s"]) == (10, 2, 3)
    assert "warm_up_s" not in found


def test_script_whose_import_of_torch_is_not_known_has_no_row_for_it():
    moments = {key: value for key, value in MOMENTS.items() if key != "imported_ns"}
    assert seconds(moments=moments) == pytest.approx(
        {**{k: v for k, v in SECONDS.items() if k != "import_s"}, "build_s": 8}
    )


def test_time_in_which_only_some_ranks_are_in_a_window_is_between_windows():
    """The times of a window are means over its ranks, which begin and end at different moments."""
    early = {**epoch(0, 10, 20, e2e_s=9.5, compute_s=7.5), "ranks": 2}
    found = seconds([early, *WINDOWS[1:]])
    assert found == pytest.approx({**SECONDS, "compute_s": SECONDS["compute_s"] - 0.5, "between_s": 2.5})


def shifted(moments, by_s):
    return {key: at_ns + by_s * S for key, at_ns in moments.items()}


KILLED = {**shifted(MOMENTS, 900), "ended_ns": 925 * S, "recorded_ns": 925 * S}
RESUMED = [{"epoch": 1, "started": "", "clock": None}]


def attempt(moments, epochs=1, gap_s=7.0):
    return {"moments": moments, "epochs": epochs, "gap_s": gap_s}


def test_resumed_run_has_the_rows_of_all_attempts_and_what_was_trained_again_is_lost():
    """Its first attempt, on another boot, was killed 5 s after its epoch, and 10 s of preparation were repeated."""
    resumed = {"resumed": RESUMED, "attempts": [attempt(KILLED)]}
    found = seconds([epoch(0, 910, 920), *WINDOWS[1:]], **resumed)
    assert found == pytest.approx({
        **SECONDS, "prepare_s": 4, "import_s": 6, "build_s": 5 + 15, "between_s": 2, "lost_s": 5, "gap_s": 7,
    })  # fmt: skip
    account = account_of(run_info(moments=MOMENTS, **resumed), [epoch(0, 910, 920), *WINDOWS[1:]], STEADY, 1)
    assert account.metrics["run/wall_s"] == pytest.approx(25 + 54)


@pytest.mark.parametrize(
    ("moments", "rows"),
    [
        ({key: KILLED[key] for key in ("command_ns", "ended_ns", "recorded_ns")}, {"prepare_s": 25}),
        ({key: KILLED[key] for key in ("command_ns", "process_ns", "ended_ns", "recorded_ns")},
         {"prepare_s": 2, "lost_s": 23}),
        (KILLED, {"prepare_s": 2, "import_s": 3, "lost_s": 20}),
    ],
    ids=["preparation", "start", "training"],
)  # fmt: skip
def test_attempt_without_a_checkpoint_of_its_own_lost_all_after_its_start(moments, rows):
    both = [attempt(shifted(KILLED, -100)), attempt(moments)]
    twice = {"resumed": [*RESUMED, *RESUMED], "attempts": both}
    found, once = (
        seconds([epoch(0, 810, 820), *WINDOWS[1:]], **facts)
        for facts in (twice, {"resumed": RESUMED, "attempts": both[:1]})
    )
    added = {row: found[row] - once[row] for row in found if found[row] != once[row]}
    assert added == pytest.approx({**rows, "gap_s": 7})


def test_time_between_attempts_is_unknown_if_that_of_one_is():
    both = [attempt(shifted(KILLED, -100)), attempt(KILLED, gap_s=None)]
    found = seconds([epoch(0, 810, 820), *WINDOWS[1:]], resumed=[*RESUMED, *RESUMED], attempts=both)
    assert "gap_s" not in found


def test_resumed_run_has_no_energy_as_that_of_the_killed_attempt_is_not_known():
    stages = {name: {"energy_j": used_j, "uncertainty_j": 1.0} for name, used_j in STAGES.items()}
    run = run_info(moments=MOMENTS, stage_energies=stages, resumed=RESUMED, attempts=[attempt(KILLED)])
    windows = [metered(window) for window in (epoch(0, 910, 920), *WINDOWS[1:])]
    assert [name for name in account_of(run, windows, STEADY, 1).metrics if name.endswith("_j")] == []


@pytest.mark.parametrize(
    ("known", "now_s", "count", "expected"),
    [
        (["command_ns"], 1, 0, {"prepare_s": 1}),
        (["command_ns", "process_ns"], 4, 0, {"prepare_s": 2, "build_s": 2}),
        (["command_ns", "process_ns", "imported_ns"], 9, 0, {"prepare_s": 2, "import_s": 3, "build_s": 4}),
        (["command_ns", "process_ns", "imported_ns"], 29, 3, {"open_s": 0, "evaluation_s": 3, "between_s": 1}),
        (["command_ns", "process_ns", "imported_ns"], 40, 3, {"open_s": 6, "evaluation_s": 3, "between_s": 1}),
        (["command_ns", "process_ns", "imported_ns", "ended_ns"], 53, 5, {"finish_s": 2, "analyze_s": 3}),
    ],
)
def test_account_of_a_run_that_goes_on_is_up_to_now(known, now_s, count, expected):
    run = run_info(moments={key: MOMENTS[key] for key in known})
    windows = WINDOWS[:count]
    now_s = max([now_s, *(window["closed_ns"] // S for window in windows)])
    account = account_of(run, windows, STEADY, 1, now_ns=now_s * S)
    values = {name.removeprefix("run/"): value for name, value in account.metrics.items() if value}
    assert values.pop("wall_s") == pytest.approx(now_s)
    assert math.fsum(values.values()) == pytest.approx(now_s)
    assert {row: values.get(row, 0) for row in expected} == pytest.approx(expected)
    assert grouped(account.metrics)["since the last epoch"] == values.get("open_s", 0)


def test_record_of_an_earlier_version_lacks_the_moments_of_its_first_attempt():
    run = run_info(moments=MOMENTS, resumed=RESUMED)
    assert account_of(run, WINDOWS, STEADY, 1) == ({}, NO_ATTEMPTS)


@pytest.mark.parametrize(
    ("windows", "moments", "reason"),
    [
        (WINDOWS, {}, NO_MOMENTS),
        (WINDOWS, {"command_ns": 0, "process_ns": 1}, NO_MOMENTS),
        ([], MOMENTS, NO_WINDOWS),
        ([epoch(0, 10, 20), epoch(1, 15, 25)], MOMENTS, CONCURRENT),
    ],
)
def test_account_that_is_not_known_has_a_reason(windows, moments, reason):
    assert account_of(run_info(moments=moments), windows, STEADY, 1) == ({}, reason)
    assert grouped({}) == {}


def test_groups_add_up_and_the_largest_is_first():
    groups = grouped(account_of(run_info(moments=MOMENTS), WINDOWS, STEADY, 1).metrics)
    assert [*groups.items()][:3] == [("training", 30), ("start, imports, building", 8), ("evaluation", 6)]
    assert math.fsum(groups.values()) == pytest.approx(54)


STAGES = {"start": 40.0, "between": 20.0, "finish": 10.0}


def metered(window, power_w=10.0, **term):
    used_j = (window["closed_ns"] - window["opened_ns"]) / S * power_w
    borders = {key: window[key] for key in ("opened_ns", "closed_ns")}
    return {**window, "energy": {**borders, "term": {"energy_j": used_j, "energy_uncertainty_j": used_j / 20, **term}}}


@pytest.mark.parametrize("missing", [None, *STAGES, "window"])
def test_energies_of_stages_and_windows_add_up_or_are_absent_if_one_is_not_known(missing):
    stages = {name: {"energy_j": used_j, "uncertainty_j": 1.0} for name, used_j in STAGES.items() if name != missing}
    windows = [metered(window) for window in WINDOWS]
    if missing == "window":
        windows[1]["energy"]["term"] = {}
    metrics = account_of(run_info(moments=MOMENTS, stage_energies=stages), windows, STEADY, 1).metrics
    energies_j = {name.removeprefix("run/"): value for name, value in metrics.items() if name.endswith("_j")}
    if missing:
        assert energies_j == {}
        return
    parts = {"start": 40, "training": 300, "evaluation": 60, "between": 20, "finish": 10}
    total = {"energy_j": 430, "energy_uncertainty_j": 360 / 20 + 3}
    assert energies_j == pytest.approx({**{f"{part}_energy_j": used_j for part, used_j in parts.items()}, **total})
