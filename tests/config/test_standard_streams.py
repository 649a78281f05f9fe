"""Starts with a closed or full output, without a current folder, or without the script's folder in Python's path."""

import os
import subprocess
import sys

import pytest
from project import ROOT

from epochmeter.config import standard_streams

ENTRIES = ["train", "measure", "watch", "report", "doctor", "publish", "validate"]
FULL = "error: cannot write the output: No space left on device\n  hint: free disk space, or redirect the output"
CASES = {
    ("--help", ""): (0, ""),
    ("--help", "> /dev/full"): (1, FULL),
    ("--help", ">&-"): (0, ""),
    ("--help", "2>&-"): (0, ""),
    ("--help", ">&- 2>&-"): (0, ""),
    ("--help", "> /dev/full 2> /dev/full"): (1, ""),
    ("-=1", ">&-"): (2, "usage: "),
    ("-=1", "2> /dev/full"): (2, ""),
}
"""Argument and redirection -> exit code, and the start of the error."""
OF_EACH = [("--help", "> /dev/full"), ("-=1", ">&-")]
"""The cases of other commands than `train` (Hydra) and `publish` (argparse): all start in the same way."""
OF_ARGPARSE = [*OF_EACH, ("--help", ""), ("--help", ">&- 2>&-"), ("-=1", "2> /dev/full")]
OF_ENTRY = {"train": [*CASES], "publish": OF_ARGPARSE}


def test_files_of_the_commands_differ_in_their_name_only():
    texts = {(ROOT / f"src/{entry}.py").read_text().replace(f'start("{entry}")', "start()") for entry in ENTRIES}
    assert len(texts) == 1


@pytest.mark.parametrize("entry", ENTRIES)
def test_command_starts_whatever_its_output_is_and_with_a_safe_path(sources, entry):
    """All with PYTHONSAFEPATH."""
    command = [sys.executable, f"{sources}/src/{entry}.py"]
    environment, piped = {**os.environ, "PYTHONSAFEPATH": "1"}, {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = {
        (argument, how): subprocess.Popen(
            ["sh", "-c", f'"$@" {how}', "sh", *command, argument], env=environment, text=True, **piped
        )
        for argument, how in OF_ENTRY.get(entry, OF_EACH)
    }
    for case, process in started.items():
        out, err = process.communicate(timeout=100)
        code, start = CASES[case]
        assert (process.returncode, err[: len(start)]) == (code, start), (case, err)
        assert "Traceback" not in err
        assert bool(out) == (case[1] in ("", "2>&-"))


@pytest.mark.parametrize("entry", ENTRIES)
def test_deleted_current_folder_is_named_as_the_cause(sources, tmp_path, entry):
    command = 'mkdir "$1" && cd "$1" && rmdir "$1" && shift && exec "$@"'
    words = ["sh", "-c", command, "sh", f"{tmp_path}/gone", sys.executable, f"{sources}/src/{entry}.py", "batch=8"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    error, hint = done.stderr.splitlines()
    assert (done.returncode, error) == (1, "error: the current folder cannot be used: No such file or directory")
    assert hint.startswith("  hint: change to another folder, `cd ~`")


def test_run_is_measured_although_its_output_cannot_be_written(project):
    command = [sys.executable, "src/train.py", *project.stubbed()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=project.root, timeout=100)
    assert (done.returncode, done.stderr[: len(FULL)]) == (1, FULL)
    assert project.record().is_completed()


def test_output_keeps_its_first_error_and_raises_only_that_its_reader_has_ended():
    with open("/dev/full", "wb") as full, standard_streams.Output(full.fileno(), "wb", closefd=False) as output:
        assert output.write(b"text") == 4
        assert output.error.strerror == "No space left on device"
    reader, writer = os.pipe()
    os.close(reader)
    with standard_streams.Output(writer, "wb") as output, pytest.raises(BrokenPipeError):
        output.write(b"text")
