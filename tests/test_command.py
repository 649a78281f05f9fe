"""What is written on stderr of a command that Hydra composes, or refuses."""

import sys

import pytest

from trainmeter.command import in_our_words, instead
from trainmeter.hints import Hint


def refuse(text, code=1):
    sys.stderr.write(text)
    sys.exit(code)


def test_what_a_hint_is_about_is_told_by_it_alone(capsys):
    with pytest.raises(SystemExit), in_our_words(["bathc=8"], "train"):
        refuse("Could not override 'bathc'.\n")
    said = capsys.readouterr().err
    assert said.startswith("There is no key bathc. Did you mean batch=?")
    assert "Could not override" not in said


def test_what_no_hint_is_about_is_told_as_hydra_tells_it_after_the_hints():
    found = [Hint("bathc", "There is no key bathc.")]
    assert instead("Ambiguous value\n", found) == "There is no key bathc.\nAmbiguous value\n"
    assert instead("Ambiguous value\n", []) == "Ambiguous value\n"


def test_what_is_written_once_all_is_composed_stands_as_it_is(capsys):
    with in_our_words(["bathc=8"], "train") as composed:
        sys.stderr.write("warned of bathc\n")
        composed()
        assert capsys.readouterr().err == "warned of bathc\n"
        composed()
        sys.stderr.write("more\n")
        assert capsys.readouterr().err == "more\n"


@pytest.mark.parametrize(("text", "code"), [("usage\n", 2), ("", 0), ("", "no run")])
def test_other_ends_are_left_as_they_are(capsys, text, code):
    with pytest.raises(SystemExit) as end, in_our_words(["bathc=8"], "train"):
        refuse(text, code)
    assert (end.value.code, capsys.readouterr().err) == (code, text)


def test_an_error_that_is_no_refusal_goes_on_with_all_that_was_said(capsys):
    def fail():
        sys.stderr.write("warned\n")
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"), in_our_words([], "train"):
        fail()
    assert capsys.readouterr().err == "warned\n"


def test_flags_that_do_not_go_together_are_refused_in_a_sentence(project):
    done = project.run("train", "-m", "batch=8,16", "--cfg", "job")
    assert done.returncode == 1
    assert done.stderr.startswith("Only one of --run, --multirun, --cfg")
    assert done.stderr.endswith(". --cfg job prints one job: leave out -m, and give each key one value.\n")
    assert len(done.stderr.splitlines()) == 1
