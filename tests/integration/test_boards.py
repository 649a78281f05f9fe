"""Runs on a recorded board, as commands: its rails metered, its power mode turned and put back, whatever ends them."""

import json
import os
import shutil
import signal
import threading
from itertools import islice

import boards
import pytest
from controls import Board

from epochmeter.shared.record import Record

TELLING_S = 60
TEN_W, FIFTEEN_W, DEFAULT = 4, 2, 5  # of a Xavier NX


class Nx:
    """A project and the Xavier NX that it runs on."""

    def __init__(self, project, root):
        self.project = project
        self.tree = boards.write(root, "nx")
        shutil.rmtree(root / "var/lib/nvpmodel")  # nvpmodel's own stands here for it
        self.board = Board(root).with_modes("nx", current=DEFAULT)
        self.environment = {"PATH": self.board.on_path(), "AS_ROOT": "1"}
        self.asked = {
            "machine.root": root,
            "machine.state_dir": root / "state",
            "meter.idle_s": 0.3,
            "device.python": "null",
            "device.accelerator": "cpu",
            "workers": 0,
        }

    def run(self, *flags, **overrides):
        """A run to its end."""
        return self.project.run("train", *self.project.quick(*flags, **self.asked, **overrides), **self.environment)

    def in_training(self, **overrides):
        """A run in the middle of an epoch: its process, and its record."""
        process = self.project.start("train", *self.project.long(**self.asked, **overrides), **self.environment)
        return process, self.project.until_in_training()


@pytest.fixture
def nx(project, tmp_path):
    return Nx(project, tmp_path)


def until_told(process, text):
    """The line of a command's that begins with a text, as soon as it is there."""
    found = []

    def listen():
        found.extend(islice((line for line in process.stdout if line.startswith(text)), 1))

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    listening.join(TELLING_S)
    assert found, f"{text}: not within {TELLING_S} s"
    return found[0]


def metrics(record):
    return record.windows()[0]["metrics"]


@pytest.mark.system
def test_sweep_over_power_limits_sets_measures_and_restores_them(nx):
    done = nx.run("-m", power_limit="15,20,99")
    fifteen, twenty = (Record(record.folder) for record in nx.project.records())
    assert [record.run()["power_limit_applied"] for record in (fifteen, twenty)] == [
        "MODE_15W_6CORE (id:2)",
        "MODE_20W_6CORE (id:8)",
    ]
    for record, watts in ((fifteen, 15), (twenty, 20)):
        found = record.summary()["metrics"]
        assert found["total/power_limit_w"] == watts
        # In a third of a second, a border that is read some milliseconds late is so much of it.
        assert found["total/idle_power_w"] == pytest.approx(nx.tree.board.total_w(), rel=0.02)
        assert metrics(record)["epoch/power_mean_w"] == pytest.approx(nx.tree.board.total_w(), rel=0.02)
        assert {"VDD_IN_w", "VDD_SOC_w", "total_w"} <= set(
            (record.folder / "power.csv").open().readline().strip().split(",")
        )
        assert record.run()["rehearsal"] == []
    assert nx.board.mode() == DEFAULT
    assert done.returncode == 1, "one of three could not be"
    assert "power_limit=99" in done.stderr
    assert "MODE_20W_6CORE" in done.stderr, "it lists what can be asked for"


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.system)])
def test_stopped_run_restores_the_power_mode(nx, number):
    process, _ = nx.in_training(power_limit="MODE_15W_2CORE")
    assert nx.board.mode() == 0
    process.send_signal(number)
    process.communicate(timeout=30)
    assert nx.board.mode() == DEFAULT


@pytest.mark.system
def test_run_whose_training_process_is_killed_restores_the_power_mode(nx):
    process, record = nx.in_training(power_limit=15)
    for worker in nx.project.at_work_in(record.folder):
        worker.kill()
    out, _ = process.communicate(timeout=30)
    assert "killed by SIGKILL" in out
    assert nx.board.mode() == DEFAULT


@pytest.mark.system
def test_next_start_restores_the_power_mode_of_a_killed_controller(nx):
    process, record = nx.in_training(power_limit=15)
    process.kill()
    process.communicate()
    nx.project.until(lambda: not nx.project.at_work_in(record.folder))
    assert nx.board.mode() == FIFTEEN_W
    done = nx.run()
    assert "restored nvpmodel to MODE_10W_DESKTOP (id:5)" in " ".join(done.stdout.split())
    assert nx.board.mode() == DEFAULT
    assert done.returncode == 0


@pytest.mark.system
def test_a_mode_that_somebody_changes_in_mid_run_marks_the_run_and_is_left_theirs(nx):
    process, record = nx.in_training(power_limit=15)
    nx.board.put(**{"nvpmodel/status": f"pmode:{TEN_W:04}"})
    nx.project.until(lambda: "setting_changed" in record.run()["flags"])
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert "something changed it to MODE_10W_4CORE (id:4)" in record.run()["flags"]["setting_changed"]
    assert "which is kept" in " ".join(out.split())
    assert nx.board.mode() == TEN_W


def test_sensor_failure_in_a_run_is_reported_without_energy(nx):
    process, record = nx.in_training()
    for file in nx.tree.files("VDD_IN"):
        os.unlink(file)
    nx.project.until(lambda: "energy_lost" in record.run()["flags"])
    said = until_told(process, "warning: the power of VDD_IN is no longer available")
    assert "No such file" in said
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    first, *_, last = record.windows()
    assert "epoch/energy_j" in first["metrics"]
    assert "epoch/energy_j" not in last["metrics"]
    assert last["metrics"]["epoch/energy_VDD_SOC_j"] > 0
    assert "No such file" in record.run()["flags"]["energy_lost"]
    json.dumps(record.summary(), allow_nan=False)


@pytest.mark.system
def test_a_run_that_goes_on_with_a_mended_sensor_is_marked_no_more_and_keeps_what_was_noted_of_what_stays(nx):
    asked = {"epochs": 20, "batch": 32, "checkpoint.every": 10, "sweep.resume": "true", "tracking": "mlflow"}
    command = nx.project.quick(**nx.asked, **asked)
    process = nx.project.start("train", *command, **nx.environment)
    record = nx.project.until_in_training()
    nx.project.until(record.checkpoint)
    sensor = {file: file.read_bytes() for file in nx.tree.files("VDD_IN")}
    for file in sensor:
        file.unlink()
    nx.project.until(lambda: "energy_lost" in record.run()["flags"])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert record.checkpoint()["epochs"] == 10, "the checkpoint is of before the sensor was lost"
    kept = [note for window in record.windows() if window["epoch"] < 10 for note in window.get("notes", [])]
    for file, content in sensor.items():
        file.write_bytes(content)
    assert nx.project.run("train", *command, **nx.environment).returncode == 0
    assert record.run()["resumed"]
    assert record.run()["flags"] == {}
    assert record.summary()["metrics"]["total/energy_j"] > 0
    assert kept
    assert kept[0] in " ".join(record.summary()["notes"])
    assert nx.project.rows("select count(*) from tags where key = 'epochmeter.energy_lost'") == [(0,)]
