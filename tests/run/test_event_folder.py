"""The folder of a script's event logs."""

import os

import pytest

from epochmeter.run import event_folder as module
from epochmeter.run.event_folder import event_folder, left_event_folder
from epochmeter.shared.events import FOLDER_PREFIX
from epochmeter.shared.record import Record


@pytest.fixture(params=[True, False])
def parent(tmp_path, monkeypatch, request):
    """The folder with the logs, which is shared memory if that has space."""
    shared, record = tmp_path / "shm", tmp_path / "record"
    shared.mkdir()
    record.mkdir()
    monkeypatch.setattr(module, "SHARED_MEMORY", shared)
    monkeypatch.setattr(module, "MIN_FREE_BYTES", 1 if request.param else 1 << 62)
    return shared if request.param else record


def test_logs_are_in_shared_memory_else_in_the_run_folder_and_are_deleted(parent, tmp_path):
    with event_folder(Record(tmp_path / "record"), "id") as folder:
        assert folder.parent == parent
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "1-0.0").write_bytes(b"events")
    assert not folder.exists()


def test_logs_of_a_killed_controller_are_found_but_none_of_another_user_and_no_link(parent, tmp_path, monkeypatch):
    record = Record(tmp_path / "record")
    assert left_event_folder(record, "id") is None
    folder = parent / f"{FOLDER_PREFIX}id"
    folder.mkdir()
    assert left_event_folder(record, "id") == folder
    assert left_event_folder(record, f"../{folder.name}/../id") == folder, "of a foreign record"
    with monkeypatch.context() as other_user:
        other_user.setattr(os, "geteuid", lambda: 12345)
        assert left_event_folder(record, "id") is None
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert left_event_folder(record, "id") is None
