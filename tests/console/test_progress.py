"""Stages of a run that take long."""

import io
import time

import pytest
from rich.console import Console

from epochmeter.console import progress
from epochmeter.console.console import Terminal
from epochmeter.console.progress import Stage
from epochmeter.run import experiment, instruments
from epochmeter.run.experiment import run


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "STAGE_DELAY_S", 0.05)


@pytest.fixture
def terminal():
    terminal = Terminal()
    terminal.console = Console(file=io.StringIO(), width=80, highlight=False)
    return terminal


def test_stage_is_printed_once_in_a_file_and_only_if_it_lasts():
    console = Console(file=io.StringIO())
    stage = Stage(console)
    stage.begin("Short")
    stage.begin("Long")
    time.sleep(0.3)
    stage.end()
    stage.begin("Never ended")
    stage.end()
    time.sleep(0.1)
    assert console.file.getvalue() == "Long ...\n"


def test_stage_in_a_terminal_is_a_live_line_that_is_erased():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    stage = Stage(console)
    stage.begin("Long")
    time.sleep(0.3)
    stage.end()
    written = console.file.getvalue()
    assert "Long" in written
    assert written.endswith("\x1b[2K")  # the line is erased


@pytest.mark.parametrize(
    ("slow", "text"),
    [("resolve_plan", "Checking the machine and the dataset ..."), ("prepare_dataset", "Checking dataset digits ..."),
     ("open_meter", "Preparing the device and its meter ..."), ("start_training", "Starting the training process ...")],
)  # fmt: skip
def test_stages_of_a_run_before_its_first_epoch_are_printed(order, terminal, monkeypatch, slow, text):
    request = order("meter=none", "tracking=none", "dataset=digits")

    def take_long(*arguments, **options):
        time.sleep(0.3)
        raise ValueError("that was all")

    monkeypatch.setattr(
        experiment, "prepare_dataset", lambda *arguments: {"digest": "1d", "splits": {"train": 1442}, "folder": None}
    )
    module = instruments if slow == "open_meter" else experiment
    monkeypatch.setattr(module, slow, take_long)
    outcome = run(request, terminal)
    assert outcome.failure == "that was all"
    lines = terminal.console.file.getvalue().splitlines()
    assert text in lines
    failed = [place for place, line in enumerate(lines) if "that was all" in line]  # a refusal is printed to stderr
    assert all(lines.index(text) < place for place in failed)
