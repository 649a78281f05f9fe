import json
import os
import platform
import stat
import threading

import pytest
from controls import Board

from epochmeter.power.knobs import restore_journal
from epochmeter.power.knobs.restore import restore_after_kill
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


def test_damaged_entry_is_an_error_with_its_file_and_a_deleted_one_is_ignored(journal, monkeypatch):
    journal.note("RAPL", [], "95 W", "by hand")
    (file,) = journal.folder.iterdir()
    file.write_text('{"knob": "RAPL"}')
    gpu = journal.note("NVML", ["GPU-aaaa"], "250 W", "by hand")
    (journal.folder / "fan-0.json").touch()

    def open_file(path, most, real=restore_journal.open_file):
        if path.name == "fan-0.json":  # listed, but deleted by another process before it is read
            path.unlink(missing_ok=True)
        return real(path, most)

    monkeypatch.setattr(restore_journal, "open_file", open_file)
    assert journal.unrestored() == [gpu]
    (problem,) = journal.damaged()
    assert problem.message.startswith(f"cannot use {file}, ")
    assert problem.hint.endswith(f": rm {file}")
    assert journal.blocking("NVML", ["GPU-bbbb"]) is None
    assert journal.blocking("NVML", ["GPU-aaaa", "GPU-bbbb"]) == gpu
    with pytest.raises(RuntimeError, match=f"cannot use {file}"):
        journal.blocking("RAPL", [])


def left(journal, **changes):
    """Write the entry of a process that ended; return its file and its content."""
    journal.update(journal.note("RAPL", [], "95 W", "by hand")._replace(start_ticks="0", **changes))
    (file,) = journal.folder.glob("*.json")
    return file, json.loads(file.read_text())


def rename(file):
    file.rename(file.with_name("fan-0123456789ab.json"))


def link(file):
    os.replace(file, file.parent.parent / "entry")
    file.symlink_to(file.parent.parent / "entry")


FOREIGN = {
    "it is a link": link,
    "it was renamed": rename,
    "other users may write to it": lambda file: file.chmod(0o620),
    "it is a file of the user with ID 65534": lambda file: os.chown(file, 65534, -1),
    "it is not a regular file": lambda file: (file.unlink(), os.mkfifo(file)),
}
CONTENT = {
    "it was written on another host, elsewhere": {"host": "elsewhere"},
    "`original` has a value of another type": {"original": 95},
    "`devices` has a value of another type": {"devices": [1]},
    "`pid` has a value of another type": {"pid": "1"},
    "unexpected keyword argument": {"more": ""},
}


@pytest.mark.parametrize("reason", [*FOREIGN, *CONTENT])
def test_entry_of_another_user_or_host_is_named_and_neither_used_nor_deleted(journal, tmp_path, reason):
    if "user with ID" in reason and os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    file, entry = left(journal)
    if reason in FOREIGN:
        FOREIGN[reason](file)
    else:
        file.write_text(json.dumps({**entry, **CONTENT[reason]}))
    before, messages = os.listdir(journal.folder), []
    assert restore_after_kill(journal, messages.append) == []
    (message,) = messages
    assert f": {reason}" in message or reason in message
    assert "\n  hint: check the settings with `make doctor`, then delete the entry: rm " in message
    assert os.listdir(journal.folder) == before


def test_journal_in_a_folder_of_another_user_is_not_used(journal, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder away")
    left(journal)
    os.chown(journal.folder, 65534, -1)
    assert journal.unrestored() == []
    (problem,) = journal.damaged()
    assert problem.message.endswith("it is a link, or another user's")
    assert problem.hint.startswith("name a folder of your own: machine.state_dir=")
    with pytest.raises(RuntimeError, match="another user's"):
        journal.note("fan", [], "quiet 77", "by hand")


def test_journal_is_writable_by_its_user_only_also_if_an_earlier_version_made_it(journal):
    umask = os.umask(0)
    try:
        journal.folder.mkdir(parents=True)
        file, _ = left(journal)
    finally:
        os.umask(umask)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (journal.folder, file)] == [0o700, 0o600]


def test_setting_of_a_recorded_board_is_restored_in_its_folder_only(tmp_path):
    """A link in the recording would else write into a file of this machine."""
    (board := Board(tmp_path / "board")).with_rapl()
    (outside := tmp_path / "outside").write_text("65000000")
    limit = board.root / "sys/class/powercap/intel-rapl:0/constraint_1_power_limit_uw"
    limit.unlink()
    limit.symlink_to(outside)
    journal = RestoreJournal(str(tmp_path / "state"), root=str(board.root), command="train.py")
    left(journal, root=str(board.root))
    messages = []
    restore_after_kill(journal, messages.append)
    assert "cannot restore RAPL" in messages[0]
    assert f"{limit} is a link out of {board.root}" in messages[0]
    assert outside.read_text() == "65000000"
