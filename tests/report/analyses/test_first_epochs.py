"""The first epoch compared with the steady ones."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.effects import first_epochs
from epochmeter.report.analyses.questions import answers
from epochmeter.report.runs.configuration import group_repeats


def epoch(e2e_s, **parts):
    return {"epoch/e2e_s": e2e_s, **{f"epoch/{name}": value for name, value in parts.items()}}


def sentences(found, number):
    return list(answers(found)[number - 1].sentences)


FIRST = epoch(10.0, data_stall_s=2.5, loader_start_s=2.0, copy_s=0.5, compute_s=6.0, overhead_s=1.0)
LATER = epoch(6.0, data_stall_s=0.5, loader_start_s=0.4, copy_s=0.5, compute_s=4.5, overhead_s=0.5)


def test_difference_is_divided_between_parts():
    (result,) = first_epochs(group_repeats([trained(0, 100.0, epochs=[FIRST, LATER, LATER])]))
    assert (result.first_s, result.later_s, result.more_s.value) == pytest.approx((10.0, 6.0, 4.0))
    assert result.parts_s == pytest.approx(
        {"loader start": 1.6, "waiting for data": 0.4, "copies": 0.0, "compute": 1.5, "overhead": 0.5}
    )
    assert sum(result.parts_s.values()) == pytest.approx(result.more_s.value)
    assert (result.is_slower, result.largest_part) == (True, "loader start")


def test_first_epoch_without_time_is_absent():
    untimed = {name: value for name, value in FIRST.items() if name != "epoch/e2e_s"}
    assert first_epochs(group_repeats([trained(0, 100.0, epochs=[untimed, LATER, LATER])])) == []


def test_missing_epoch_does_not_shift_later_ones():
    known = trained(0, 100.0, epochs=[epoch(10.0), epoch(7.0), epoch(6.0), epoch(5.0)])
    without = {
        lost: replace(known, epochs={n: values for n, values in known.epochs.items() if n != lost}) for lost in (0, 2)
    }
    assert first_epochs(group_repeats([without[0]])) == []
    assert first_epochs(group_repeats([without[2]]))[0].later_s == 6.0


def test_answer_names_the_largest_part():
    slower, cause = sentences([trained(0, 100.0, epochs=[FIRST, LATER])], 2)
    assert "1 of 1 configurations: 1.67 times" in slower
    assert "loader start, in 1 of 1" in cause


def test_equally_fast_first_epoch_is_not_slower():
    found = [trained(0, 100.0, epochs=[LATER, LATER])]
    assert not first_epochs(group_repeats(found))[0].is_slower
    (text,) = sentences(found, 2)
    assert "not significantly slower" in text


def test_insignificant_difference_is_not_slower():
    slow, fast = [epoch(9.0), epoch(6.0)], [epoch(4.0), epoch(6.0)]
    (result,) = first_epochs(
        group_repeats([trained(0, 100.0, epochs=slow, repeat=0), trained(1, 100.0, epochs=fast, repeat=1)])
    )
    assert result.more_s.value == pytest.approx(0.5)
    assert not result.is_slower


def test_later_warm_up_epochs_are_excluded():
    run = trained(0, 100.0, epochs=[epoch(10.0), epoch(8.0), epoch(5.0)])
    run = replace(run, job={**run.job, "warmup_epochs": 2})
    assert first_epochs(group_repeats([run]))[0].later_s == 5.0
    unwarmed = replace(run, job={**run.job, "warmup_epochs": 0})
    assert first_epochs(group_repeats([unwarmed]))[0].later_s == 6.5


def test_unmeasured_part_is_absent():
    (result,) = first_epochs(group_repeats([trained(0, 100.0, epochs=[epoch(9.0, compute_s=8.0), epoch(5.0)])]))
    assert (result.parts_s, result.largest_part) == ({}, None)


def test_single_epoch_has_no_comparison():
    assert first_epochs(group_repeats([trained(0, 100.0, epochs=[FIRST]), trained(1, 100.0, batch=128)])) == []
