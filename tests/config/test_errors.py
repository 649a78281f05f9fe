"""Errors as they are printed."""

import sys

import pytest

from epochmeter.config import app, installation
from epochmeter.config.app import friendly_hydra_errors
from epochmeter.config.errors import format_error
from epochmeter.shared.problem import InputError, Problem, input_error


def test_problem_has_severity_and_hint_and_other_errors_keep_their_text():
    of_user = "The labels are missing. They were found: give it up.\nhint: none"
    for error, printed in (
        (Problem("cannot read it", "mount the disk"), "error: cannot read it\n  hint: mount the disk"),
        (input_error("no"), "error: no"),
        (InputError(Problem("a", "b"), Problem("c")), "error: a\n  hint: b\nerror: c"),
        (ValueError(of_user), f"error: {of_user}"),
        (KeyError(), "error: KeyError"),
    ):
        assert format_error(error) == printed
    assert format_error(Problem("a", "b"), "warning") == "warning: a\n  hint: b"


def test_printed_problem_has_no_credentials_and_the_commands_of_the_installation(monkeypatch):
    monkeypatch.setattr(installation, "IS_INSTALLED", True)
    problem = Problem("`api_key=hunter2` is not valid", "run `python src/doctor.py`")
    assert format_error(problem) == "error: `api_key=***` is not valid\n  hint: run `epochmeter doctor`"


def test_credentials_are_hidden():
    refused = pytest.raises(SystemExit, match=r"`~dataset\.password=\*\*\*` deletes")
    with refused as end, friendly_hydra_errors(["~dataset.password=hunter2"], "train"):
        pytest.fail("accepted an override that deletes a required key")
    assert "hunter2" not in str(end.value)


def test_closed_output_of_a_command_is_raised_without_a_message(monkeypatch, capsys):
    def write(config):
        raise BrokenPipeError

    monkeypatch.setattr(sys, "argv", ["watch.py"])
    with pytest.raises(BrokenPipeError):
        app.run("watch", write, "")
    assert capsys.readouterr() == ("", "")
