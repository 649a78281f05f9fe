"""Faults that need root or much time: a full file system and a locked database."""

import re
import sqlite3
import subprocess
import time
from itertools import pairwise

import pytest

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


@pytest.fixture
def multirun(project):
    """The folder of runs, as a file system of half a megabyte."""
    (multirun := project.root / "multirun").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=524288", "tmpfs", multirun]
    if (made := subprocess.run(mount, capture_output=True, text=True)).returncode:
        pytest.skip(f"needs the right to mount: {made.stderr.strip()}")
    yield multirun
    project.clear()
    subprocess.run(["umount", multirun], check=True)


def test_storage_that_fills_up_fails_the_run_and_keeps_its_epochs(project, multirun):
    process = project.start("train", *project.long_stubbed())
    record = project.until_in_training()
    subprocess.run(["dd", "if=/dev/zero", f"of={multirun / 'filler'}", "bs=4096"], stderr=subprocess.DEVNULL)
    measured = len(record.windows())
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"^error: .*No space left on device", out, re.MULTILINE)
    assert "Traceback" not in out + err
    assert len(record.windows()) >= measured >= 1
    assert not record.is_completed()
    assert project.at_work_in(record.folder) == []
