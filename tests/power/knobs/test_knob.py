"""What holds for every knob there is: turned, looked at, and put back whatever ends the run."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from controls import Board

from epochmeter.power.knobs import jtop_control, knob, nvpmodel, privilege
from epochmeter.power.knobs.amd_cap import open_amd_cap
from epochmeter.power.knobs.fan import open_fan
from epochmeter.power.knobs.jetson_clocks import open_jetson_clocks
from epochmeter.power.knobs.knob import held
from epochmeter.power.knobs.nvml_limit import open_nvml_limit
from epochmeter.power.knobs.nvpmodel import open_nvpmodel
from epochmeter.power.knobs.rapl_limit import open_rapl_limit
from epochmeter.power.knobs.requests import LASTING, put_back, refuse_unrestored
from epochmeter.power.knobs.restore_journal import Desk


class Case(NamedTuple):
    """A knob on a machine, what is asked of it, and where it then stands."""

    machine: Callable[[Board], Board]
    opened: Callable[[Path, Path], Any]
    asked: Any
    was: str
    turned: str
    other: str
    """What somebody else sets it to meanwhile."""
    wrong: Any
    choices: str


GPUS = ["GPU-aaaa", "GPU-bbbb"]
CASES = {
    "nvpmodel": Case(
        lambda board: board.with_modes("nx").with_clocks(),
        lambda root, _: open_nvpmodel(root),
        15,
        "MODE_10W_DESKTOP (id:5)",
        "MODE_15W_6CORE (id:2)",
        "MODE_20W_2CORE (id:6)",
        30,
        "MODE_15W_2CORE (id:0), MODE_15W_4CORE (id:1)",
    ),
    "jetson_clocks": Case(
        Board.with_clocks, open_jetson_clocks, "locked", "free", "locked", "free", "loose", "keep or locked"
    ),
    "fan of the kernel": Case(
        Board.with_kernel_fan,
        lambda root, _: open_fan(root),
        "max",
        "temp_control 77",
        "manual 255",
        "manual 100",
        "min",
        "keep or max",
    ),
    "fan of the service": Case(
        Board.with_service_fan,
        lambda root, _: open_fan(root),
        "max",
        "quiet 77",
        "manual 255",
        "manual 100",
        "min",
        "keep or max",
    ),
    "RAPL": Case(
        Board.with_rapl, lambda root, _: open_rapl_limit(root), 65, "95 W", "65 W", "80 W, 95 W", 150, "up to 120 W"
    ),
    "amdgpu": Case(
        Board.with_amdgpu,
        lambda root, _: open_amd_cap(["0000:03:00.0"], root),
        200,
        "250 W",
        "200 W",
        "210 W",
        400,
        "up to 303 W",
    ),
    "NVML": Case(
        lambda board: board, lambda *_: open_nvml_limit(GPUS), 150, "250 W", "150 W", "180 W, 250 W", 50, "100 to 300 W"
    ),
}


class Bench:
    """A knob to try, its machine, and the desk where what it was is written down."""

    def __init__(self, name: str, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case, self.board, self.monkeypatch = CASES[name], board, monkeypatch
        self.case.machine(board)
        monkeypatch.setenv("PATH", board.on_path())
        self.desk = desk(board.root)
        self.knob = self.case.opened(board.root, self.desk.folder)
        self.said: list[str] = []

    @contextmanager
    def held(self):
        with held([(self.knob, self.knob.wish(self.case.asked))], self.desk, self.said.append) as holding:
            yield holding

    def memos(self) -> list[dict]:
        return [json.loads(file.read_text()) for file in self.desk.folder.glob("*.json")]

    def at(self) -> str:
        """Where the knob stands; what turns a fan by temperature then sets its duty as it likes."""
        profile, _, duty = self.knob.get().partition(" ")
        return f"{profile} 77" if profile == "quiet" and duty == "80" else self.knob.get()

    def deafen(self) -> None:
        """From now on the machine takes settings and does nothing."""
        self.board.put(deaf="")
        self.monkeypatch.setattr(privilege, "write", lambda file, text: None)
        self.monkeypatch.setenv("STUB", "deaf")

    @contextmanager
    def forbidden(self):
        """Within, the user may set nothing: sudo refuses, and files are for reading, as root would not find them."""
        self.board.put(no_sudo="")
        self.monkeypatch.setenv("STUB", "nopermission")
        for file in self.board.root.rglob("sys/**/*"):
            file.chmod(0o755 if file.is_dir() else 0o444)
        if os.getuid() == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            if os.getuid() == 0:
                os.seteuid(0)


def desk(root: Path, boot_id: str = "this boot") -> Desk:
    return Desk(str(root / "state"), root=str(root), boot_id=boot_id, command="python src/train.py")


@pytest.fixture(params=CASES)
def bench(request, open_folder, no_jtop, monkeypatch):
    monkeypatch.setattr(knob, "SETTLES_S", 0.1)
    if request.param == "NVML":
        request.getfixturevalue("nvml")
    return Bench(request.param, Board(open_folder), monkeypatch)


def test_a_knob_is_turned_for_as_long_as_it_is_held(bench):
    assert bench.at() == bench.case.was
    with bench.held() as holding:
        assert holding.applied == {bench.knob.name: bench.case.turned}
        assert bench.knob.get() == bench.case.turned
        assert holding.drifted() == []
    assert bench.at() == bench.case.was
    assert bench.said == []


def test_what_was_there_is_on_the_disk_while_it_is_not_there(bench):
    with bench.held():
        (memo,) = bench.memos()
        assert (memo["was"], memo["ours"], memo["pid"]) == (bench.case.was, bench.case.turned, os.getpid())
    assert bench.memos() == []


@pytest.mark.parametrize("end", [ValueError, RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_it_is_put_back_whatever_ends_the_run(bench, end):
    with pytest.raises(end), bench.held():
        raise end
    assert bench.at() == bench.case.was
    assert bench.memos() == []


def test_what_is_there_already_is_neither_turned_nor_put_back(bench):
    bench.knob.set(bench.case.turned)
    with bench.held() as holding:
        assert bench.memos() == []
        assert holding.applied == {bench.knob.name: bench.case.turned}
    assert bench.knob.get() == bench.case.turned


def test_what_somebody_else_sets_meanwhile_is_said_and_left_theirs(bench):
    with bench.held() as holding:
        bench.knob.set(bench.case.other)
        theirs = bench.knob.get()
        (told,) = holding.drifted()
    assert told == f"{bench.knob.name} was set to {bench.case.turned}, and somebody else set it to {theirs}."
    assert bench.knob.get() == theirs
    if theirs != bench.case.was:
        assert bench.said == [
            f"{bench.knob.name} was set to {bench.case.turned}, and somebody else set it to {theirs}: left so. "
            f"It was {bench.case.was}."
        ]
    assert bench.memos() == []


def test_a_setting_that_does_not_take_is_an_error_that_says_where_the_device_is(bench):
    bench.deafen()
    with pytest.raises(RuntimeError, match=r": asked for .*, the device is at .*"), bench.held():
        pytest.fail("held what did not take")
    assert bench.memos() == []


def test_without_the_right_to_it_the_error_says_what_gives_it(bench):
    remedy = pytest.raises(RuntimeError, match=r"(?s)(needs root.*(NOPASSWD|-aG jtop))|zeusd")
    with bench.forbidden(), remedy, bench.held():
        pytest.fail("held what may not be turned")
    assert bench.at() == bench.case.was
    assert bench.memos() == []


def test_what_cannot_be_asked_for_is_refused_with_what_can(bench):
    with pytest.raises(ValueError, match=f"={bench.case.wrong}") as refused:
        bench.knob.wish(bench.case.wrong)
    assert bench.case.choices in str(refused.value)


def test_what_cannot_be_put_back_is_a_loud_error_with_the_command_and_stays_written_down(bench):
    with pytest.raises(RuntimeError, match=r"cannot restore .* to ") as stuck, bench.held():
        bench.deafen()
    (memo,) = bench.memos()
    (file,) = bench.desk.folder.glob("*.json")
    assert bench.said == [str(stuck.value)]
    assert str(stuck.value).endswith(f"\nhint: {memo['by_hand']} && rm {file}")
    assert memo["by_hand"].count("sudo ") >= 1


@pytest.fixture
def ctrl_c():
    """Ctrl-C is heard, also where the tests run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_waits_until_all_is_put_back(bench, ctrl_c):
    turn, when = bench.knob.set, []

    def interrupted(setting):
        if setting == bench.case.was:
            signal.raise_signal(signal.SIGINT)
            when.append(bench.knob.get())
        turn(setting)

    bench.monkeypatch.setattr(bench.knob, "set", interrupted)
    with pytest.raises(KeyboardInterrupt), bench.held():
        pass
    assert when == [bench.case.turned]
    assert bench.at() == bench.case.was
    assert bench.memos() == []


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), BrokenPipeError(), SystemExit(1), ValueError()])
def test_a_terminal_that_is_gone_keeps_nothing_from_being_put_back(bench, error):
    def gone(text):
        raise error

    wish = bench.knob.wish(bench.case.asked)
    with pytest.raises(RuntimeError, match="cannot restore"), held([(bench.knob, wish)], bench.desk, gone):
        bench.deafen()


def test_a_knob_whose_library_exits_keeps_no_other_from_being_put_back(tmp_path):
    knobs = [open_rapl_limit(Board(tmp_path / name).with_rapl().root) for name in ("first", "second")]
    knobs[1].name = "another"

    def exits():
        raise SystemExit("of a library's")

    stuck = pytest.raises(RuntimeError, match="cannot restore another to 95 W: of a library's")
    with stuck, held([(knob, knob.wish(65)) for knob in knobs], desk(tmp_path), print):
        knobs[1].get = exits
    assert knobs[0].get() == "95 W"


def test_a_turn_that_was_cut_short_is_put_back_whatever_it_looks_like(bench):
    memo = bench.desk.note(bench.knob.name, bench.knob.devices, bench.at(), bench.knob.by_hand(bench.at()))
    bench.desk.keep(memo._replace(began="0"))
    put_back(bench.desk, bench.said.append)
    assert bench.at() == bench.case.was
    assert bench.memos() == []


def test_what_a_killed_run_requested_and_cannot_be_read_yet_is_requested_back(open_folder, monkeypatch):
    """As jtop's service does it: later than it was asked, and the run that asked is dead by then."""
    board = Board(open_folder).with_modes("nx").with_clocks()
    monkeypatch.setenv("PATH", board.on_path())
    late = [2]  # the mode that was requested
    monkeypatch.setattr(nvpmodel.jtop_control, "set_mode", lambda number, name: late.append(number) or "")
    monkeypatch.setattr(jtop_control.os, "geteuid", lambda: 1000)
    journal, was = desk(board.root), open_nvpmodel(board.root).get()
    memo = journal.note("nvpmodel", (), was, "sudo nvpmodel -m 5")
    journal.keep(memo._replace(began="0"))
    assert put_back(journal, print) == []
    assert late == [2, 5]


def test_a_setting_that_cannot_be_restored_is_a_warning_and_refuses_the_runs_that_change_it(bench):
    left_by_a_dead_run(bench)
    bench.deafen()
    failed = put_back(bench.desk, bench.said.append)
    (memo,) = bench.desk.left()
    assert failed == [memo]
    assert (memo.was, bench.knob.get()) == (bench.case.was, bench.case.turned)
    assert bench.said[0].startswith(f"warning: cannot restore {bench.knob.name} to {bench.case.was}: ")
    assert bench.said[0].endswith(f"\nhint: {memo.by_hand} && rm {bench.desk.file(memo)}")
    assert put_back(bench.desk, pytest.fail, failed) == failed
    with pytest.raises(RuntimeError, match=f"cannot set {bench.knob.name}: .* restored to"):
        refuse_unrestored([bench.knob], bench.desk)
    bench.desk.file(memo).unlink()
    refuse_unrestored([bench.knob], bench.desk)


def test_a_change_that_was_never_made_and_cannot_be_undone_leaves_no_journal_entry(bench):
    """As after a power cut between journal and change, for a user who may no longer set anything."""
    with bench.forbidden():
        memo = bench.desk.note(bench.knob.name, bench.knob.devices, bench.at(), bench.knob.by_hand(bench.at()))
        bench.desk.keep(memo._replace(began="0"))
        assert put_back(bench.desk, bench.said.append) == []
    assert bench.memos() == []
    assert bench.at() == bench.case.was


def left_by_a_dead_run(bench, **changes):
    """A memo as a steward leaves it that was killed while it held the knob."""
    memo = bench.desk.note(bench.knob.name, bench.knob.devices, bench.at(), bench.knob.by_hand(bench.at()))
    bench.knob.set(bench.case.turned)
    return bench.desk.keep(memo._replace(ours=bench.knob.get(), began="0", **changes))


def test_what_a_killed_run_has_left_is_put_back_by_the_next(bench):
    left_by_a_dead_run(bench)
    put_back(bench.desk, bench.said.append)
    assert bench.at() == bench.case.was
    assert bench.memos() == []
    assert bench.said[0].startswith(f"restored {bench.knob.name} to {bench.case.was}")


def test_a_run_killed_between_writing_and_turning_is_put_back_too(bench):
    left_by_a_dead_run(bench)
    (memo,) = bench.desk.left()
    bench.desk.keep(memo._replace(ours=None))
    put_back(bench.desk, bench.said.append)
    assert bench.at() == bench.case.was


def test_after_a_reboot_only_what_outlives_it_is_put_back(bench):
    left_by_a_dead_run(bench, boot_id="the boot before")
    put_back(bench.desk, bench.said.append)
    assert bench.at() == (bench.case.was if bench.knob.name in LASTING else bench.case.turned)
    assert bench.memos() == []
    assert len(bench.said) == 1
