import os
import platform
import subprocess
import uuid

import pytest

from epochmeter.machine.process_identity import began
from epochmeter.power.knobs.restore_journal import Desk


@pytest.fixture
def desk(tmp_path):
    return Desk(str(tmp_path), root="/", boot_id="this boot", command="python src/train.py")


@pytest.fixture
def other():
    """Another process, which lives."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_by_default_memos_lie_where_a_users_programs_keep_their_state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    by = {"root": "/", "boot_id": "", "command": ""}
    assert Desk(None, **by).folder == tmp_path / "epochmeter" / platform.node()
    monkeypatch.delenv("XDG_STATE_HOME")
    assert Desk(None, **by).folder == tmp_path / "home/.local/state/epochmeter" / platform.node()


def test_a_home_may_be_shared_by_machines(desk, monkeypatch, tmp_path):
    desk.note("NVML", ["GPU-aaaa"], "250 W", "by hand")
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert Desk(str(tmp_path), root="/", boot_id="", command="").left() == []


def test_each_gpus_limit_is_written_down_apart(desk):
    for gpu in ("GPU-aaaa", "GPU-bbbb"):
        desk.note("NVML", [gpu], "250 W", "by hand")
    assert sorted(memo.devices for memo in desk.left()) == [["GPU-aaaa"], ["GPU-bbbb"]]


def test_the_limit_of_as_many_gpus_as_a_machine_may_have_is_written_down(desk):
    gpus = [f"GPU-{uuid.UUID(int=number)}" for number in range(16)]
    memo = desk.note("NVML", gpus, "250 W", "by hand")
    assert desk.left() == [memo]
    desk.drop(memo)
    assert desk.left() == []


def test_what_a_process_that_lives_holds_is_not_left(desk, other):
    memo = desk.note("RAPL", [], "95 W", "by hand")
    desk.keep(memo._replace(pid=other.pid, began=began(other.pid)))
    assert desk.left() == []


@pytest.mark.parametrize("changes", [{"began": "0"}, {"boot_id": "the boot before"}, {"pid": 2**22 + 1}])
def test_what_a_process_held_that_is_no_more_is_left(desk, other, changes):
    """Gone, gone and its number given to another, or gone with the machine's last start."""
    memo = desk.note("RAPL", [], "95 W", "by hand")
    left = desk.keep(memo._replace(pid=other.pid, began=began(other.pid))._replace(**changes))
    assert desk.left() == [left]


def test_what_an_earlier_run_of_this_very_process_did_not_put_back_is_left(desk):
    memo = desk.note("RAPL", [], "95 W", "by hand")
    assert desk.left() == [memo]


def test_what_was_there_before_all_is_never_written_over(desk):
    desk.note("RAPL", [], "95 W", "echo 95000000")
    with pytest.raises(RuntimeError, match=rf"held by pid {os.getpid()} .*back to 95 W by hand \(echo 95000000\)"):
        desk.note("RAPL", [], "65 W", "echo 65000000")
    (memo,) = desk.left()
    assert memo.was == "95 W"


def test_nothing_is_turned_where_nothing_can_be_written_down(tmp_path):
    (tmp_path / "file").touch()
    desk = Desk(str(tmp_path / "file"), root="/", boot_id="", command="")
    with pytest.raises(RuntimeError, match=r"no knob is turned unless.*machine\.state_dir="):
        desk.note("RAPL", [], "95 W", "by hand")


def test_a_memo_that_cannot_be_read_is_an_error_with_its_name(desk):
    desk.note("RAPL", [], "95 W", "by hand")
    (file,) = desk.folder.iterdir()
    file.write_text('{"knob": "RAPL"}')
    gpu = desk.note("NVML", ["GPU-aaaa"], "250 W", "by hand")
    assert desk.left() == [gpu]
    (said,) = desk.damaged()
    assert said.startswith(f"cannot read {file}, ")
    assert said.endswith(f": rm {file}")
    assert desk.blocking("NVML", ["GPU-bbbb"]) is None
    assert desk.blocking("NVML", ["GPU-aaaa", "GPU-bbbb"]) == gpu
    with pytest.raises(RuntimeError, match=f"cannot read {file}"):
        desk.blocking("RAPL", [])


def test_a_memo_that_another_process_has_just_dropped_is_none(desk):
    memo = desk.note("RAPL", [], "95 W", "by hand")
    gone = desk.folder / "NVML-0.json"
    gone.symlink_to("dropped")  # it is listed, and no longer there when it is read
    assert desk.left() == [memo]


def test_what_a_process_of_another_container_holds_is_left_once_the_machine_starts_anew(desk):
    memo = desk.note("RAPL", [], "95 W", "by hand")
    inside = desk.keep(memo._replace(pid=2**22 + 1, began="0", numbers="pid:[1]"))
    assert desk.left() == []
    desk.boot_id = "the next boot"
    assert desk.left() == [inside]
