"""Data that becomes unreadable during a run: the run fails with the cause, and the sweep continues."""

import os
import shutil
from pathlib import Path

import pytest

SMALL = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=200k none /dev/shm && exec "$@"', "sh"]
"""Root, in a container whose shared memory is as small as containers have it."""


@pytest.mark.system
def test_removed_storage_fails_its_run_and_the_sweep_continues(project, tmp_path):
    card = tmp_path / "card"
    card.mkdir()
    overrides = {"storage.root": f"{card},data", "target_accuracy": 0.95, "dataset.on_bad": "skip", "workers": 1}
    sweep = project.start("train", *project.long("-m", **overrides))
    project.until_in_training()
    shutil.move(card, tmp_path / "drawer")
    out, err = sweep.communicate(timeout=100)
    ends = [(record.summary() or {}).get("failure") for record in project.records()]
    assert sweep.returncode == 1, err
    assert ends[0]["code"] == "storage"
    assert str(card) in ends[0]["message"]
    assert [record.is_completed() for record in project.records()] == [False, True], out


@pytest.mark.system
def test_dataset_in_memory_is_staged_and_noted_as_never_cold(project):
    store = Path("/dev/shm/epochmeter-test")
    shutil.rmtree(store, ignore_errors=True)
    try:
        overrides = {"dataset": "digits", "storage": "ram", "storage.root": store, "cache": "cold"}
        project.run("train", *project.stubbed(rehearse="false", **overrides), check=True)
        run = project.record().run()
        assert run["dataset"]["folder"] == str(store / "digits")
        assert run["storage"]["medium"] == "ram"
        notes = " ".join(project.record().summary()["notes"])
        assert "memory" in notes
        assert "disk reads are not counted" in notes
    finally:
        shutil.rmtree(store, ignore_errors=True)


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make shared memory small")
def test_too_small_shared_memory_is_named_as_the_cause(project):
    process = project.start("train", *project.quick(workers=2, prefetch=4), before=SMALL)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 1, out
    failure = project.record().summary()["failure"]
    assert failure["code"] == "shared_memory"
    assert "--shm-size" in out.replace("\n", " ")
