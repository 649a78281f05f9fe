import os
import signal
import subprocess

import pytest
from controls import TABLES, Board, nvpmodel_conf

from epochmeter.power.knobs import jtop_control, knob, privilege
from epochmeter.power.knobs.knob import held
from epochmeter.power.knobs.nvpmodel import modes, open_nvpmodel
from epochmeter.power.knobs.restore_journal import Desk


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A board, whose user is root unless a test says otherwise."""
    board = Board(tmp_path)
    monkeypatch.setenv("PATH", board.on_path())
    monkeypatch.setenv("AS_ROOT", "1")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(knob, "SETTLES_S", 0.1)
    return board


@pytest.fixture
def knob_of(board):
    """knob_of(name, current) -> the knob of that board."""

    def made(name, current=None):
        board.with_modes(name, current)
        return open_nvpmodel(board.root)

    return made


@pytest.mark.parametrize("name", TABLES)
def test_the_modes_are_those_of_the_boards_own_file(name):
    default, table = TABLES[name]
    read, read_default = modes(nvpmodel_conf(name))
    assert read_default == default
    assert [(mode.number, mode.name, mode.cores) for mode in read.values()] == [mode[:3] for mode in table]
    gating = [dict(mode.gating).get("TPC_PG_MASK") for mode in read.values()]
    assert gating == [None if mode.mask is None else str(mode.mask) for mode in table]


def test_any_mask_of_the_gpu_counts_as_one_and_other_sections_do_not():
    read, _ = modes(
        "< POWER_MODEL ID=0 NAME=A >\nTPC_POWER_GATING TPC_PG_MASK 1\nFBP_POWER_GATING FBP_PG_MASK 2\n"
        "< PARAM TYPE=FILE NAME=LATER >\nTPC_POWER_GATING TPC_PG_MASK 7\nCPU_ONLINE CORE_0 1"
    )
    assert read[0].gating == {("TPC_PG_MASK", "1"), ("FBP_PG_MASK", "2")}
    assert read[0].cores == 0


@pytest.mark.parametrize(
    ("name", "current", "asked", "setting", "watts"),
    [
        ("nano", 0, 5, "5W (id:1)", 5),
        ("nano", 1, "MAXN", "MAXN (id:0)", None),
        ("nx", 5, "mode_15w_6core", "MODE_15W_6CORE (id:2)", 15),
        ("nx", 5, "id:8", "MODE_20W_6CORE (id:8)", 20),
        ("nx", 5, "ID:0", "MODE_15W_2CORE (id:0)", 15),
        ("agx", 7, "MODE_30W_ALL", "MODE_30W_ALL (id:3)", 30),
        ("orin_nano", 1, 15, "15W (id:0)", 15),
        ("orin_nano", 1, "15W", "15W (id:0)", 15),
        ("orin_nx", 4, 25.0, "25W (id:3)", 25),
        ("agx_orin", 0, "50W", "MODE_50W (id:3)", 50),
        ("thor", 1, "MAXN", "MAXN (id:0)", None),
        ("gaps", 5, 20, "MODE_20W_AI (id:9)", 20),
    ],
)
def test_a_mode_is_meant_by_its_name_its_id_or_its_watts(knob_of, name, current, asked, setting, watts):
    wish = knob_of(name, current).wish(asked)
    assert (wish.setting, wish.watts, wish.note) == (setting, watts, None)


@pytest.mark.parametrize(("name", "current", "most_w"), [("nano", 0, None), ("nx", 5, 20)])
def test_the_highest_limit_is_that_of_the_modes_unless_one_has_no_watts(knob_of, name, current, most_w):
    """MAXN has none in its name: it draws what it can."""
    assert knob_of(name, current).wish("id:0").most_w == most_w


@pytest.mark.parametrize(
    ("name", "current", "asked", "setting", "note"),
    [
        (
            "nx",
            5,
            15,
            "MODE_15W_6CORE (id:2)",
            "of MODE_15W_2CORE (id:0), MODE_15W_4CORE (id:1), ",
        ),
        ("nx", 0, 10, "MODE_10W_DESKTOP (id:5)", "the most CPU cores, then the board's default, then the lowest id"),
        ("agx", 0, 30, "MODE_30W_ALL (id:3)", "MODE_30W_2CORE (id:6)"),
        ("agx", 0, 15, "MODE_15W_DESKTOP (id:7)", "then the board's default"),
        ("orin_nano", 1, "MAXN", "MAXN_SUPER (id:2)", "is taken for MAXN_SUPER (id:2): there is no mode MAXN."),
    ],
)
def test_where_several_are_meant_the_rule_that_picked_one_is_said(knob_of, name, current, asked, setting, note):
    wish = knob_of(name, current).wish(asked)
    assert wish.setting == setting
    assert wish.note.startswith(f"power_limit={asked} is taken for {setting}")
    assert note in wish.note


def test_of_modes_with_as_many_cores_and_no_default_among_them_the_lowest_id_is_taken(board, knob_of):
    knob_of("agx", 0)
    board.put(**{"etc/nvpmodel.conf": nvpmodel_conf("agx").replace("DEFAULT=7", "DEFAULT=0")})
    assert open_nvpmodel(board.root).wish(15).setting == "MODE_15W (id:2)"


@pytest.mark.parametrize(("name", "asked"), [("nx", "MAXN"), ("agx", 50), ("nano", "id:2"), ("gaps", "id:3")])
def test_a_mode_that_the_board_has_not_is_refused_with_those_it_has(knob_of, name, asked):
    with pytest.raises(ValueError, match=f"power_limit={asked} is no power mode of this board. It has: ") as refused:
        knob_of(name).wish(asked)
    assert all(f"{mode.name} (id:{mode.number})" in str(refused.value) for mode in TABLES[name].modes)


def live(name):
    """For each pair of a board's modes, whether one leads to the other without a reboot."""
    table = TABLES[name].modes
    return [(start, to, start.mask == to.mask) for start in table for to in table if start != to]


@pytest.mark.parametrize("name", TABLES)
def test_a_mode_that_takes_a_reboot_is_refused_with_the_command_before_anything_is_tried(board, knob_of, name):
    knob = knob_of(name)
    for start, to, without_reboot in live(name):
        board.put(**{"nvpmodel/status": f"pmode:{start.number:04}"})
        if without_reboot:
            assert knob.wish(f"id:{to.number}").setting == f"{to.name} (id:{to.number})"
        else:
            with pytest.raises(RuntimeError, match=f"takes a reboot.*sudo nvpmodel -m {to.number}$"):
                knob.wish(f"id:{to.number}")
        assert board.mode() == start.number


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("nano", "MAXN (id:0), 5W (id:1)"),
        ("thor", "MAXN (id:0), 120W (id:1); after a reboot: 90W (id:2), 70W (id:3)"),
        ("agx_orin", "MODE_30W (id:2); after a reboot: MAXN (id:0), MODE_15W (id:1), MODE_50W (id:3)"),
    ],
)
def test_modes_that_need_a_reboot_are_listed_separately(board, knob_of, name, choices):
    assert knob_of(name).choices() == choices


def test_nvpmodel_that_asks_for_a_reboot_is_told_nothing_and_the_mode_stays(board, knob_of):
    """Where the board's file does not tell the masks, nvpmodel itself knows better."""
    knob = knob_of("agx_orin", 2)
    with pytest.raises(
        RuntimeError, match=r"asked for MAXN \(id:0\), the device is at MODE_30W .*takes a reboot: sudo"
    ):
        knob.set("MAXN (id:0)")
    assert board.mode() == 2
    assert not (board.root / "rebooted").exists()


def test_the_mode_is_asked_of_nvpmodel_where_no_status_file_tells_it(board, knob_of):
    knob = knob_of("nx", 3)
    (board.root / "var/lib/nvpmodel").unlink()
    assert knob.get() == "MODE_10W_2CORE (id:3)"
    knob.set("MODE_15W_2CORE (id:0)")
    assert knob.get() == "MODE_15W_2CORE (id:0)"


def test_a_mode_that_the_file_does_not_know_is_put_back_all_the_same(board, knob_of):
    knob = knob_of("nano", 7)
    assert knob.get() == "unknown (id:7)"
    assert knob.wish(5).setting == "5W (id:1)"
    assert knob.by_hand(knob.get()) == "sudo nvpmodel -m 7"


def test_while_jetson_clocks_holds_the_clocks_the_mode_is_not_changed(board, knob_of):
    knob = knob_of("nx")
    board.with_clocks()
    privilege.answer("jetson_clocks")
    with pytest.raises(RuntimeError, match="sudo jetson_clocks --restore"):
        knob.set("MODE_15W_2CORE (id:0)")
    assert board.mode() == 5


def test_a_program_that_hangs_is_given_up(board, knob_of, monkeypatch):
    knob = knob_of("nx")
    board.program("nvpmodel", "exec sleep 60")
    monkeypatch.setattr(privilege, "LIMIT_S", 0.1)
    begun, begin = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *how, **more: begun.append(begin(*how, **more)) or begun[-1])
    with pytest.raises(RuntimeError, match=r"`nvpmodel -m 0` did not end within 0.1 s\."):
        knob.set("MODE_15W_2CORE (id:0)")
    assert (begun[-1].returncode, begun[-1].stdout.closed) == (-signal.SIGKILL, True)


def test_without_nvpmodel_on_the_path_the_error_says_so(board, knob_of):
    knob = knob_of("nx")
    (board.programs / "nvpmodel").unlink()
    with pytest.raises(RuntimeError, match="nvpmodel cannot be run: No such file"):
        knob.set("MODE_15W_2CORE (id:0)")


def test_without_jtop_and_sudo_the_error_says_what_would_allow_it(board, knob_of, no_jtop):
    board.put(no_sudo="")
    knob = knob_of("nx")
    with pytest.raises(RuntimeError, match=r"(?s)`nvpmodel -m 0` needs root.*a password is required.*NOPASSWD.*jtop"):
        knob.set("MODE_15W_2CORE (id:0)")


def test_a_machine_without_power_modes_has_no_such_knob(tmp_path):
    assert open_nvpmodel(tmp_path) is None


def test_a_mode_that_jtop_sets_late_is_put_back(board, knob_of, monkeypatch):
    """It does one thing after another: what was there is asked for again, though it is there still."""
    asked = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(jtop_control, "set_mode", lambda number, name: asked.append(number) or "")
    knob, desk = knob_of("nx"), Desk(str(board.root / "state"), root=str(board.root), boot_id="", command="")
    with pytest.raises(RuntimeError, match="asked for"), held([(knob, knob.wish("id:0"))], desk, print):
        pytest.fail("held what did not take")
    assert asked == [0, 5]


def test_who_may_use_jtop_needs_no_sudo(board, knob_of, monkeypatch):
    def by_jtop(number, name):
        board.put(**{"nvpmodel/status": f"pmode:{number:04}"})
        return ""

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(jtop_control, "set_mode", by_jtop)
    board.put(no_sudo="")
    knob_of("nx").set("MODE_15W_2CORE (id:0)")
    assert board.mode() == 0
