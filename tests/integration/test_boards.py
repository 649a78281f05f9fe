"""Runs on a recorded board, as commands: power rails are measured, and the power mode is set and restored."""

import shutil
import signal
import threading

import boards
import pytest
from accounts import assert_account_has_the_energy_of
from controls import TABLES, Board
from project import LIMIT_S

from epochmeter.report.runs.load import load_run

DEFAULT = 5  # power mode of a Xavier NX


class Nx:
    """A project and the replayed Xavier NX that it runs on."""

    def __init__(self, project, root):
        self.project = project
        self.tree = boards.write(root, "nx")
        shutil.rmtree(root / "var/lib/nvpmodel")  # replaced by the nvpmodel of `Board`
        self.board = Board(root).with_modes("nx", current=DEFAULT)
        self.environment = {"PATH": self.board.on_path(), "AS_ROOT": "1"}
        self.overrides = {
            "machine.root": root, "machine.state_dir": root / "state", "meter.idle_s": 0.3,
            "device": "auto", "device.accelerator": "cpu", "workers": 0,
        }  # fmt: skip

    def run(self, *flags, **overrides):
        """Run the command until it ends."""
        arguments = self.project.stubbed(*flags, **self.overrides, **overrides)
        return self.project.run("train", *arguments, **self.environment)

    def in_training(self, **overrides):
        """Return process and record of a run in the middle of an epoch."""
        arguments = self.project.long_stubbed(**self.overrides, **overrides)
        process = self.project.start("train", *arguments, **self.environment)
        return process, self.project.until_in_training()

    @staticmethod
    def stop(process, number=signal.SIGINT):
        """Stop a run by a signal; return its output as one line."""
        process.send_signal(number)
        return " ".join("".join(process.communicate(timeout=LIMIT_S)).split())


@pytest.fixture
def nx(project, tmp_path):
    return Nx(project, tmp_path)


@pytest.mark.timed
@pytest.mark.system
def test_sweep_over_power_limits_sets_measures_and_restores_them(nx):
    footprint = {"footprint.intensity": "FRA", "footprint.price": 0.25, "footprint.currency": "EUR"}
    done = nx.run("-m", power_limit="15,20,99", batch=500, **footprint)
    fifteen, twenty = nx.project.records()
    for record, watts, mode in ((fifteen, 15, "MODE_15W_6CORE (id:2)"), (twenty, 20, "MODE_20W_6CORE (id:8)")):
        assert (record.run()["power_limit_applied"], record.run()["rehearsal"]) == (mode, [])
        run = load_run(record.folder)
        assert (run.mode, len(run.mode_clocks)) == (mode.partition(" ")[0], len(TABLES["nx"].modes))
        assert run.mode_clocks["MODE_15W_4CORE"] == [4, 1.201e9, 510_000_001, 1.866e9]
        summary, metrics = record.summary()["metrics"], record.windows()[0]["metrics"]
        assert summary["total/power_limit_w"] == watts
        assert summary["total/co2e_g"] == pytest.approx(summary["total/energy_j"] / 3.6e6 * 56)
        assert metrics["epoch/cost"] == pytest.approx(metrics["epoch/energy_j"] / 3.6e6 * 0.25)
        # The idle time is 0.3 s, so a border that is read some milliseconds late matters.
        assert summary["total/idle_power_w"] == pytest.approx(nx.tree.board.total_w(), rel=0.02)
        assert metrics["epoch/power_mean_w"] == pytest.approx(nx.tree.board.total_w(), rel=0.02)
        assert_account_has_the_energy_of(nx.tree.board.total_w(), record)
        assert summary["run/energy_j"] > summary["total/energy_j"]
        columns = (record.folder / "power.csv").read_text().partition("\n")[0].split(",")
        assert {"VDD_IN_w", "VDD_SOC_w", "total_w"} <= {*columns}
    assert nx.board.mode() == DEFAULT
    assert done.returncode == 1, "power_limit=99 is not a mode"
    assert "power_limit=99" in done.stderr
    assert "MODE_20W_6CORE" in done.stderr, "valid modes are listed"


@pytest.mark.timed
@pytest.mark.system
@pytest.mark.alone
def test_power_mode_with_the_least_energy_is_found_while_training(nx):
    """The epochs last equally long in all modes, so that the mode with the least power uses the least energy."""
    shares, stopped = {DEFAULT: 0.6, 2: 0.8, 8: 1.0}, threading.Event()

    def play():
        while not stopped.wait(0.02):
            nx.tree.show(shares[nx.board.mode()])

    nx.board.put(**{"nvpmodel/status": "pmode:0008"})
    playing = threading.Thread(target=play, daemon=True)
    playing.start()
    done = nx.run(power_limit="auto", batch=400, epochs=60)  # half a minute: too short to settle
    stopped.set()
    playing.join()
    assert done.returncode == 0, done.stderr
    (record,) = nx.project.records()
    (search,) = record.run()["power_limit_search"]
    assert search["chosen"] == record.run()["power_limit_applied"] == "MODE_10W_DESKTOP (id:5)"
    low, high = search["saving_interval"]
    assert low <= 1 - nx.tree.board.total_w(0.6) / nx.tree.board.total_w() <= high
    modes = {"MODE_10W_DESKTOP (id:5)", "MODE_15W_6CORE (id:2)", "MODE_20W_6CORE (id:8)"}
    assert {probe["setting"] for probe in search["probes"]} <= modes
    warmup = [bool(window.get("warmup")) for window in record.windows()]
    assert warmup == sorted(warmup, reverse=True)
    assert 0 < sum(warmup) < len(warmup)
    assert record.summary()["metrics"]["steady/power_mean_w"] == pytest.approx(nx.tree.board.total_w(0.6), rel=0.03)
    assert nx.board.mode() == 8, "the mode is restored"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.system), signal.SIGTERM])
def test_stopped_run_restores_the_power_mode_and_is_killed(nx, number):
    process, record = nx.in_training(power_limit="MODE_15W_2CORE")
    assert nx.board.mode() == 0
    assert "Traceback" not in nx.stop(process, number)
    assert nx.board.mode() == DEFAULT
    assert process.returncode == 128 + number
    assert record.summary()["state"] == "killed"
    assert nx.project.at_work_in(record.folder) == []


@pytest.mark.timed
@pytest.mark.system
def test_resumed_run_with_a_repaired_sensor_loses_its_flag_and_keeps_notes(nx):
    overrides = {"epochs": 12, "batch": 32, "checkpoint.every": 6, "sweep.resume": "true", "device.python": "null"}
    command = nx.project.quick(**nx.overrides, **overrides)
    process = nx.project.start("train", *command, **nx.environment)
    record = nx.project.until_in_training()
    nx.project.until(record.checkpoint)
    sensor = {file: file.read_bytes() for file in nx.tree.files("VDD_IN")}
    for file in sensor:
        file.unlink()
    nx.project.until(lambda: "energy_lost" in record.run()["flags"])
    text = "warning: the power of VDD_IN is no longer available"
    assert any(line.startswith(text) for line in process.stdout), "it is printed within a second"

    def has_energy_of_remaining_rails() -> bool:
        metrics = [window["metrics"] for window in record.windows()]
        return any("epoch/energy_j" not in own and own.get("epoch/energy_VDD_SOC_j", 0) > 0 for own in metrics)

    nx.project.until(has_energy_of_remaining_rails)
    nx.stop(process)
    assert record.checkpoint()["epochs"] == 6, "the checkpoint is of before the sensor was lost"
    kept = [note for window in record.windows() if window["epoch"] < 6 for note in window.get("notes", [])]
    for file, content in sensor.items():
        file.write_bytes(content)
    nx.project.run("train", *command, check=True, **nx.environment)
    assert record.run()["resumed"]
    assert record.run()["flags"] == {}
    assert record.summary()["metrics"]["total/energy_j"] > 0
    assert kept
    assert kept[0] in " ".join(record.summary()["notes"])
    assert nx.project.rows("select count(*) from tags where key = 'epochmeter.energy_lost'") == [(0,)]
