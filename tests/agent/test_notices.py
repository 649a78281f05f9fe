"""Notices go to stderr only."""

import io
import sys

import pytest

from epochmeter.agent.notices import notice


@pytest.mark.parametrize("stderr", [None, "closed"])
def test_script_without_stderr_gets_no_notice_and_no_error(monkeypatch, capsys, stderr):
    file = io.StringIO()
    file.close()
    monkeypatch.setattr(sys, "stderr", stderr and file)
    notice("not measured")
    monkeypatch.undo()
    assert capsys.readouterr().out == ""


def test_notice_is_a_line_of_stderr(capsys):
    notice("not measured")
    assert capsys.readouterr() == ("", "epochmeter: not measured\n")
