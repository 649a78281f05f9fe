"""The controller of a `Meter`: of the script's own environment, on PATH, or named."""

import math
import os
import sys

import pytest

from epochmeter import Meter
from epochmeter.agent import find_controller as module
from epochmeter.agent import hooks
from epochmeter.agent.find_controller import VARIABLE, find_controller
from epochmeter.agent.own_controller import script_command
from epochmeter.shared.events import FOLDER_PREFIX, NO_CONTROLLER

BATCHES = [1, 2]


@pytest.fixture
def elsewhere(tmp_path):
    """elsewhere(lines) -> the folder of a program `epochmeter`, a shell script."""

    def write(lines="true"):
        (folder := tmp_path / "a tool" / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "epochmeter").write_text(f"#!/bin/sh\n{lines}\n")
        (folder / "epochmeter").chmod(0o755)
        return folder

    return write


@pytest.fixture
def without_tool(monkeypatch):
    monkeypatch.setattr(module.tool, "missing_packages", lambda: ["hydra-core"])


def test_controller_is_of_this_python_if_it_has_the_packages(elsewhere):
    environment = {"PATH": str(elsewhere()), "PYTHONPATH": "own"}
    command, kept = find_controller(environment)
    assert (command[:2], command[3:], kept) == ([sys.executable, "-c"], [module.SOURCE], environment)


def test_other_controller_is_found_on_path_but_not_that_of_this_python(elsewhere, without_tool, monkeypatch, tmp_path):
    own = tmp_path / "own"
    monkeypatch.setattr(sys, "prefix", str(own))
    (own / "bin").mkdir(parents=True)
    (own / "bin/epochmeter").symlink_to(elsewhere() / "epochmeter")
    with pytest.raises(RuntimeError, match="lacks hydra-core, and there is no other `epochmeter` on PATH"):
        find_controller({"PATH": f"{own}/bin:/nowhere"})
    command, kept = find_controller({"PATH": f"{own}/bin:{elsewhere()}", "PYTHONPATH": "own", "A": "1"})
    assert command == [f"{elsewhere()}/epochmeter", "run"]
    assert kept.keys() == {"PATH", "A"}, "nothing that is for the script's Python"


def test_named_controller_comes_first(elsewhere):
    assert find_controller({VARIABLE: f"'{elsewhere()}/epochmeter'"})[0] == [f"{elsewhere()}/epochmeter", "run"]


def metered(monkeypatch):
    """Return the meter of a loop, which must go on."""
    monkeypatch.setattr(hooks, "agent", None)
    monkeypatch.delenv("EPOCHMETER_MEASURED", raising=False)
    meter = Meter("tracking=none")
    assert list(meter.batches(BATCHES)) == BATCHES
    assert math.isnan(meter.last.e2e_s)
    return meter


def test_script_without_a_controller_keeps_its_events_and_says_so_once(without_tool, monkeypatch, capfd, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    meter = metered(monkeypatch)
    meter.close()
    (folder,) = tmp_path.glob(f"{FOLDER_PREFIX}*")
    assert meter.last.reason == NO_CONTROLLER
    (line,) = capfd.readouterr().err.splitlines()
    assert f"measure.events={folder}`" in line
    assert os.environ.get("EPOCHMETER_MEASURED") is None


def test_folder_that_cannot_be_written_leaves_the_script_alone(without_tool, monkeypatch, capfd):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir("/proc")
    assert "No such file or directory" in metered(monkeypatch).last.reason
    assert capfd.readouterr().err.count("not measured, the script continues") == 1


@pytest.mark.parametrize("version", ["", ', "version": "other"'])
def test_controller_of_another_version_measures_nothing(elsewhere, monkeypatch, version):
    reply = f'{{"socket": "", "logs": "", "folder": ""{version}}}'
    folder = elsewhere(f"echo '{reply}' > /proc/self/fd/$EPOCHMETER_ATTACHED; exec sleep 60")
    monkeypatch.setenv(VARIABLE, f"'{folder}/epochmeter'")
    assert "is of another version than" in metered(monkeypatch).last.reason


def test_controller_gets_the_script_and_the_keys(elsewhere, monkeypatch, tmp_path):
    folder = elsewhere(f"printf '%s\\n' \"$@\" > '{tmp_path}/arguments'")
    monkeypatch.setenv(VARIABLE, f"'{folder}/epochmeter'")
    monkeypatch.setattr(sys, "argv", ["own.py", "--lr", "0.1"])
    assert metered(monkeypatch).last.reason == "RuntimeError: the controller could not start"
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments == ["run", "tracking=none", "--", "own.py", "--lr", "0.1"]
    assert os.environ.get("EPOCHMETER_MEASURED") is None


@pytest.mark.parametrize("program", ["/a/ray/_private/workers/default_worker.py", "/venv/bin/flwr-clientapp"])
def test_processes_that_a_library_starts_have_the_same_command_without_its_tokens(monkeypatch, program):
    for token in ("1", "2"):
        monkeypatch.setattr(sys, "argv", [program, "--startup-token", token])
        assert script_command() == [os.path.basename(program)]
