"""Faults that need root or much time: a full file system and a locked database."""

import os
import re
import sqlite3
import subprocess
import time
from contextlib import contextmanager
from itertools import pairwise

import pytest
from project import LIMIT_S

from epochmeter.tracking.client import open_store
from epochmeter.tracking.publish import MEASURED

pytestmark = pytest.mark.system


def test_locked_database_delays_no_epoch(project):
    database = sqlite3.connect(project.root / "mlflow.db", isolation_level=None)
    database.execute("begin exclusive")
    begun = time.monotonic()
    process = project.start("train", *project.long_stubbed(epochs=8, tracking="mlflow"))
    record = project.until_in_training()
    project.until(lambda: len(record.windows()) == 8)
    windows = record.windows()
    database.execute("rollback")
    database.close()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert time.monotonic() - begun < 100
    assert all(after["opened_ns"] - before["closed_ns"] < 2e9 for before, after in pairwise(windows))


def test_run_with_a_trace_is_complete_and_published_on_one_core(project):
    core = str(min(os.sched_getaffinity(0)))
    arguments = project.quick(tracking="mlflow", profiler="torch", epochs=2, evaluate="false")
    ended = project.start("train", *arguments, before=["taskset", "--cpu-list", core])
    out, err = ended.communicate(timeout=LIMIT_S)
    assert ended.returncode == 0, out + err
    record = project.record()
    assert (record.is_completed(), len(record.windows())) == (True, 2)
    assert record.trace_analysis()["metrics"]["steps"] == 5
    (run,) = open_store(uri=f"sqlite:///{project.root}/mlflow.db").client.search_runs(["1", "2"], MEASURED)
    assert run.info.status == "FINISHED"


@contextmanager
def small_file_system(folder, size):
    """Mount a file system of a few bytes at a folder, and remove it at the end."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    if (made := subprocess.run(mount, capture_output=True, text=True)).returncode:
        pytest.skip(f"needs the right to mount: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # also while this process has a database open


def fill(folder):
    subprocess.run(["dd", "if=/dev/zero", f"of={folder / 'filler'}", "bs=4096"], stderr=subprocess.DEVNULL)


@pytest.fixture
def multirun(project):
    """The folder of runs, as a file system of half a megabyte."""
    with small_file_system(project.root / "multirun", 524288) as folder:
        yield folder
        project.clear()


def test_run_is_complete_if_the_storage_of_mlflow_is_full_and_is_published_later(project, tmp_path):
    with small_file_system(tmp_path / "full", 2**21) as folder:
        uri = f"sqlite:///{folder}/mlflow.db"
        open_store(uri=uri)
        fill(folder)
        environment = {"MLFLOW_TRACKING_URI": uri}
        ended = project.run("train", *project.stubbed(tracking="mlflow"), **environment)
        assert ended.returncode == 0
        (warning,) = [line for line in ended.stdout.splitlines() if "published" in line and "warning" in line]
        assert warning.endswith("database or disk is full")
        (record,) = project.records()
        assert record.is_completed()
        (folder / "filler").unlink()
        assert project.run("publish", **environment).returncode == 0
        (run,) = open_store(uri=uri).client.search_runs(["1"], MEASURED)
        assert run.info.status == "FINISHED"


def test_storage_that_fills_up_fails_the_run_and_keeps_its_epochs(project, multirun):
    process = project.start("train", *project.long_stubbed())
    record = project.until_in_training()
    fill(multirun)
    measured = len(record.windows())
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"^error: .*No space left on device", out, re.MULTILINE)
    assert "Traceback" not in out + err
    assert len(record.windows()) >= measured >= 1
    assert not record.is_completed()
    assert project.at_work_in(record.folder) == []
