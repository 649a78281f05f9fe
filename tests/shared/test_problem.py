"""Problems: errors as data."""

import copy
import json

import pytest

from epochmeter.shared.problem import (
    InputError,
    MachineError,
    Place,
    Problem,
    format_problem,
    machine_error,
    problem_of,
    problems_of,
    read_problem,
)

FULL = Problem("batch=8 ran out of memory. Twice.", "reduce the batch size", "oom", Place(key="batch", host="n1"))
OF_USER = "The labels are missing. They were found in the folder of last year."


def test_fields_are_the_same_after_json():
    for problem in (FULL, Problem("no"), Problem("", "x")):
        assert read_problem(json.loads(json.dumps(problem.to_fields()))) == problem
    assert FULL.to_fields()["where"] == {"key": "batch", "host": "n1"}
    assert read_problem(None) is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, Problem("")),
        (
            {"message": "no", "code": "of a later version", "where": {"rank": 3}},
            Problem("no", code="of a later version"),
        ),
        ({"message": None, "kind": None}, Problem("")),
        ({"kind": "oom", "message": "no\n  hint: x"}, Problem("no\n  hint: x", code="oom")),
    ],
    ids=["no fields", "unknown code and place", "null", "earlier version"],
)
def test_missing_and_unknown_fields_are_accepted(fields, problem):
    assert read_problem(fields) == problem


@pytest.mark.parametrize(
    "fields", [[], "no", {"message": 1}, {"hint": ["x"]}, {"code": {}}, {"where": "here"}, {"where": {"key": 8}}]
)
def test_field_of_another_type_is_refused(fields):
    with pytest.raises(ValueError, match=r"of a problem is a|a problem has a"):
        read_problem(fields)


def test_text_of_another_exception_is_its_message_without_a_hint():
    assert problems_of(ValueError(OF_USER)) == (Problem(OF_USER),)
    assert problems_of(RuntimeError("a\n  hint: b")) == (Problem("a\n  hint: b"),)
    assert problem_of(AssertionError()) == Problem("AssertionError")


def test_problems_of_an_error_are_one_with_the_code_and_place_of_the_first():
    error = MachineError(FULL, Problem("no fan.", "restart"), Problem("no clocks"))
    assert problem_of(error) == FULL._replace(
        message="batch=8 ran out of memory. Twice; no fan; no clocks", hint="reduce the batch size; restart"
    )
    assert problem_of(MachineError(FULL)) == FULL


def test_error_is_copied_between_processes_with_its_problems():
    for error in (InputError(FULL, Problem("no")), machine_error("no", "yes", file="/a")):
        other = copy.copy(error)
        assert (type(other), other.problems) == (type(error), error.problems)
    assert str(InputError(Problem("a", "b"), Problem("c"))) == "a\n  hint: b\nc"


def test_problem_is_printed_after_its_severity_with_its_hint_in_a_line():
    assert format_problem(FULL, "error") == "error: batch=8 ran out of memory. Twice.\n  hint: reduce the batch size"
    assert format_problem(Problem("a").within("run 1")) == "run 1: a"
