"""Runs that are stopped or killed in the middle of an epoch: they are flagged, and no process remains."""

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest


def begun(project, *arguments):
    """Return command, record and training process of a run in the middle of an epoch."""
    command = project.start("train", *arguments)
    record = project.until_in_training()
    (worker,) = (process for process in project.at_work_in(record.folder) if process.ppid() == command.pid)
    return command, record, worker


def test_killed_training_process_fails_its_run_and_ctrl_c_ends_the_sweep(project):
    arguments = project.long_stubbed("-m", repeat="0,1,2", tracking="mlflow")
    command, failed, worker = begun(project, *arguments)
    measured = len(failed.windows())
    worker.kill()
    killed = project.until(lambda: next((run for run in project.records()[1:] if run.windows()), None))
    for _ in range(3):  # as a hasty person does
        os.killpg(command.pid, signal.SIGINT)
        time.sleep(0.05)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Traceback" not in out + err
    assert re.search(r"^error: run 0 failed: the training process was killed by SIGKILL$", out, re.MULTILINE)
    assert re.search(r"^error: run 1 killed: stopped by Ctrl-C$", out, re.MULTILINE)
    failure, message = failed.summary()["failure"], "the training process was killed by SIGKILL"
    assert (failure["code"], failure["message"]) == ("killed", message)
    assert [record.summary()["state"] for record in project.records()] == ["failed", "killed"]
    assert killed.summary()["failure"]["code"] == "stopped"
    assert failed.summary()["metrics"]["total/epochs"] >= measured >= 1
    assert killed.summary()["metrics"]["total/epochs"] == len(killed.windows()) >= 1
    assert project.at_work_in(killed.folder) == []
    assert project.shown("status") == ["FAILED", "KILLED"]
    tags = project.rows("select value from tags where key = 'epochmeter.failure' order by value")
    assert tags == [("killed",), ("stopped",)]


@pytest.mark.system
def test_ctrl_z_excludes_no_epoch_but_a_suspension_is_flagged(project):
    command, record, worker = begun(project, *project.long())
    for _ in range(3):
        measured = len(record.windows())
        os.killpg(command.pid, signal.SIGSTOP)  # as the terminal does, to all that it has in front
        project.until(lambda: psutil.Process(command.pid).status() == psutil.STATUS_STOPPED)
        assert worker.status() != psutil.STATUS_STOPPED
        os.killpg(command.pid, signal.SIGCONT)
        project.until(lambda before=measured: len(record.windows()) > before + 1)
    assert "paused" not in record.run()["flags"]
    assert not [window for window in record.windows() if window.get("paused")]

    def suspend_and_read_flag():
        """Return the flag, once a suspension was within an epoch."""
        worker.suspend()
        time.sleep(0.2)
        worker.resume()
        return record.run()["flags"].get("paused")

    flag = project.until(suspend_and_read_flag)
    first = next(window["epoch"] for window in record.windows() if window.get("paused"))
    assert flag.startswith(f"epoch {first + 1}: the training process was suspended")


@pytest.mark.system
def test_training_process_and_its_workers_end_with_a_killed_controller(project):
    command, record, worker = begun(project, *project.long(workers=2))
    project.until(lambda: len(project.at_work_in(record.folder)) == 3)
    worker.suspend()  # so that it cannot end by its own will
    command.kill()
    command.communicate()
    project.until(lambda: project.at_work_in(record.folder) == [], limit_s=10)
    assert record.summary() is None


@pytest.mark.system
def test_ctrl_c_during_the_start_of_a_command_ends_it_without_a_traceback(project):
    """During the imports, detected by the libraries mapped so far, and after them."""
    for seconds in (0, 0.5):
        command = project.start("train", *project.long())
        project.until(lambda pid=command.pid: "yaml" in Path(f"/proc/{pid}/maps").read_text())
        time.sleep(seconds)
        for _ in range(2):
            os.killpg(command.pid, signal.SIGINT)
            time.sleep(0.02)
        out, err = command.communicate(timeout=60)
        assert command.returncode in (130, -signal.SIGINT), (seconds, out, err)
        assert "Traceback" not in out + err, seconds


@pytest.mark.system
def test_a_run_that_waits_for_its_device_can_be_stopped(project):
    holder = project.start("train", *project.long_stubbed())
    project.until_in_training()
    waiting = project.start("train", *project.stubbed())
    assert any(line.startswith(f"Waiting for cpu, in use by pid {holder.pid}") for line in waiting.stdout)
    waiting.send_signal(signal.SIGTERM)
    out, err = waiting.communicate(timeout=10)
    assert waiting.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in out + err
    assert len(project.records()) == 1
    assert json.loads((project.record().folder / "job.json").read_text())["run"]["pid"] == holder.pid
