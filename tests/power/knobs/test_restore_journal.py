import os
import platform
import threading

import pytest

from epochmeter.power.knobs import restore_journal
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.shared.process_identity import start_ticks


def test_journals_of_machines_that_share_a_home_are_separate(journal, monkeypatch, tmp_path, tmp_path_factory):
    journal.note("NVML", ["GPU-aaaa"], "250 W", "by hand")
    monkeypatch.setattr(platform, "node", lambda: "another")
    monkeypatch.setenv("HOME", str(tmp_path))
    another = RestoreJournal("~/state", root="/", command="")
    assert (another.folder, another.unrestored()) == (tmp_path / "state/another", [])
    assert RestoreJournal(None, root="/", command="").folder.is_relative_to(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("changes", [{"start_ticks": "0"}, {"boot_id": "the boot before"}, {"pid": 2**22 + 1}])
def test_only_the_entry_of_an_ended_process_is_pending(journal, other_process, changes):
    """Cases: its pid was reused, the machine was rebooted, the process ended. Another container cannot see an end."""
    pid = other_process.pid
    entry = journal.update(journal.note("RAPL", [], "95 W", "by hand")._replace(pid=pid, start_ticks=start_ticks(pid)))
    assert journal.unrestored() == []
    left = journal.update(entry._replace(**changes))
    assert journal.unrestored() == [left]
    in_a_container = journal.update(left._replace(pid_namespace="pid:[1]"))
    assert journal.unrestored() == ([in_a_container] if "boot_id" in changes else [])


def test_original_setting_is_on_disk_before_a_change_and_never_overwritten(journal, monkeypatch):
    """A power failure could lose the file's name in its folder."""
    flushed = []
    monkeypatch.setattr(restore_journal, "fsync_folder", lambda folder: flushed.append(len(list(folder.iterdir()))))
    journal.note("RAPL", [], "95 W", "echo 95000000")
    assert flushed == [1]
    with pytest.raises(RuntimeError, match=rf"(?s)pid {os.getpid()} .*restore 95 W: echo 95000000 && rm "):
        journal.note("RAPL", [], "65 W", "echo 65000000")
    (entry,) = journal.unrestored()
    assert entry.original == "95 W"


def test_first_of_two_processes_that_change_a_setting_at_once_has_its_original(journal):
    """The second one waits for the journal, and would otherwise note the setting of the first as the original."""
    second = threading.Thread(target=journal.note, args=("RAPL", [], "95 W", "by hand"))
    with journal.locked():
        second.start()
        second.join(0.2)
        assert (second.is_alive(), list(journal.folder.glob("*.json"))) == (True, [])
    second.join()
    assert [entry.original for entry in journal.unrestored()] == ["95 W"]


def test_no_setting_is_changed_without_a_journal(tmp_path):
    (tmp_path / "file").touch()
    journal = RestoreJournal(str(tmp_path / "file"), root="/", command="")
    with pytest.raises(RuntimeError, match=r"(?s)journal of original device settings.*machine\.state_dir="):
        journal.note("RAPL", [], "95 W", "by hand")


def test_damaged_entry_is_an_error_with_its_file_and_a_deleted_one_is_ignored(journal):
    journal.note("RAPL", [], "95 W", "by hand")
    (file,) = journal.folder.iterdir()
    file.write_text('{"knob": "RAPL"}')
    gpu = journal.note("NVML", ["GPU-aaaa"], "250 W", "by hand")
    (journal.folder / "fan-0.json").symlink_to("dropped")  # listed, but deleted by another process before it is read
    assert journal.unrestored() == [gpu]
    (message,) = journal.damaged()
    assert message.startswith(f"cannot read {file}, ")
    assert message.endswith(f": rm {file}")
    assert journal.blocking("NVML", ["GPU-bbbb"]) is None
    assert journal.blocking("NVML", ["GPU-aaaa", "GPU-bbbb"]) == gpu
    with pytest.raises(RuntimeError, match=f"cannot read {file}"):
        journal.blocking("RAPL", [])
