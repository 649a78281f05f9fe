"""Epoch 0 beside the later ones: where its time goes, and when nothing is shown."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.effects import first_epochs
from epochmeter.report.analyses.questions import answers
from epochmeter.report.runs.configuration import group_repeats


def epoch(e2e_s, **parts):
    return {"epoch/e2e_s": e2e_s, **{f"epoch/{name}": value for name, value in parts.items()}}


def said(found, number):
    return list(answers(found)[number - 1].sentences)


FIRST = epoch(10.0, data_stall_s=2.5, loader_start_s=2.0, copy_s=0.5, compute_s=6.0, overhead_s=1.0)
LATER = epoch(6.0, data_stall_s=0.5, loader_start_s=0.4, copy_s=0.5, compute_s=4.5, overhead_s=0.5)


def test_where_the_first_epoch_loses_its_time():
    (told,) = first_epochs(group_repeats([trained(0, 100.0, epochs=[FIRST, LATER, LATER])]))
    assert (told.first_s, told.later_s, told.more_s.value) == pytest.approx((10.0, 6.0, 4.0))
    assert told.parts_s == pytest.approx(
        {"loader start": 1.6, "waiting for data": 0.4, "copies": 0.0, "compute": 1.5, "overhead": 0.5}
    )
    assert sum(told.parts_s.values()) == pytest.approx(told.more_s.value), "the parts are the whole"
    assert (told.slower, told.most) == (True, "loader start")


def test_a_run_whose_epoch_has_no_time_tells_nothing_of_its_first():
    untimed = {name: value for name, value in FIRST.items() if name != "epoch/e2e_s"}
    assert first_epochs(group_repeats([trained(0, 100.0, epochs=[untimed, LATER, LATER])])) == []


def test_epochs_that_were_lost_shift_none_of_the_others():
    known = trained(0, 100.0, epochs=[epoch(10.0), epoch(7.0), epoch(6.0), epoch(5.0)])
    without = {
        lost: replace(known, epochs={n: told for n, told in known.epochs.items() if n != lost}) for lost in (0, 2)
    }
    assert first_epochs(group_repeats([without[0]])) == [], "its first is not known"
    assert first_epochs(group_repeats([without[2]]))[0].later_s == 6.0


def test_the_answer_names_the_part_that_the_most_lies_in():
    assert said([trained(0, 100.0, epochs=[FIRST, LATER])], 2) == [
        "In 1 of 1 jobs epoch 0 is slower: it takes 1.67 times a later one.",
        "The most of it lies in loader start in 1 of 1: the loader's processes begin, and the first batch is waited "
        "for.",
    ]


def test_a_first_epoch_that_is_as_fast_is_not_slower():
    found = [trained(0, 100.0, epochs=[LATER, LATER])]
    assert not first_epochs(group_repeats(found))[0].slower
    assert said(found, 2) == ["In none of 1 jobs epoch 0 is shown to be slower than the later ones by 2 % or more."]


def test_a_first_epoch_whose_difference_is_chance_is_not_slower():
    slow, fast = [epoch(9.0), epoch(6.0)], [epoch(4.0), epoch(6.0)]
    (told,) = first_epochs(
        group_repeats([trained(0, 100.0, epochs=slow, repeat=0), trained(1, 100.0, epochs=fast, repeat=1)])
    )
    assert told.more_s.value == pytest.approx(0.5)
    assert not told.slower


def test_warm_up_epochs_are_neither_first_nor_later():
    run = trained(0, 100.0, epochs=[epoch(10.0), epoch(8.0), epoch(5.0)])
    run = replace(run, job={**run.job, "warmup_epochs": 2})
    assert first_epochs(group_repeats([run]))[0].later_s == 5.0
    unwarmed = replace(run, job={**run.job, "warmup_epochs": 0})
    assert first_epochs(group_repeats([unwarmed]))[0].later_s == 6.5


def test_a_part_that_an_epoch_does_not_tell_is_absent():
    (told,) = first_epochs(group_repeats([trained(0, 100.0, epochs=[epoch(9.0, compute_s=8.0), epoch(5.0)])]))
    assert (told.parts_s, told.most) == ({}, None)


def test_one_epoch_has_no_later_ones():
    assert first_epochs(group_repeats([trained(0, 100.0, epochs=[FIRST]), trained(1, 100.0, batch=128)])) == []
