"""Errors as they are printed."""

import sys

import pytest

from epochmeter.config import app
from epochmeter.config.app import friendly_hydra_errors
from epochmeter.config.errors import format_error


def test_remedy_in_a_message_is_printed_as_a_hint():
    for text, printed in (
        ("Cannot read it. Mount the disk.", "error: Cannot read it\n  hint: mount the disk."),
        ("Not found. RAPL needs root.", "error: Not found\n  hint: RAPL needs root."),
        ("batch=0 is wrong: give 1 or more", "error: batch=0 is wrong\n  hint: give 1 or more"),
        ("one. sentence", "error: one. sentence"),
        ("why\nhint: do this", "error: why\n  hint: do this"),
    ):
        assert format_error(text) == printed


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
