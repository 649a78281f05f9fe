"""Power mode, clocks and fan of a Jetson."""

import os
import signal
import subprocess
from itertools import permutations

import pytest
from cases import case, cases
from controls import CPU, GPU, TABLES

from epochmeter.machine import privilege
from epochmeter.power.knobs import jetson, knob
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.jetson import open_fan, open_jetson_clocks, open_nvpmodel

DUTY = "sys/class/hwmon/hwmon2/pwm1"


@pytest.fixture
def board(board, monkeypatch):
    """A machine that root uses."""
    monkeypatch.setenv("AS_ROOT", "1")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(knob, "SETTLE_LIMIT_S", 0.1)
    return board


@pytest.fixture
def knob_of(board):
    """Function of (board name, current mode): the knob of that board."""

    return lambda name, current=None: open_nvpmodel(board.with_modes(name, current).root)


@cases(
    case(name="nano", current=0, requested=5, setting="5W (id:1)", watts=5, note=None),
    case(name="nx", current=5, requested="mode_15w_6core", setting="MODE_15W_6CORE (id:2)", watts=15, note=None),
    case(name="nx", current=5, requested="id:8", setting="MODE_20W_6CORE (id:8)", watts=20, note=None),
    case(name="orin_nano", current=1, requested="15W", setting="15W (id:0)", watts=15, note=None),
    case(name="gaps", current=5, requested=20.0, setting="MODE_20W_AI (id:9)", watts=20, note=None),
    case(
        name="nx",
        current=5,
        requested=15,
        setting="MODE_15W_6CORE (id:2)",
        watts=15,
        note="of MODE_15W_2CORE (id:0), MODE_15W_4CORE (id:1), ",
    ),
    case(
        name="nx",
        current=0,
        requested=10,
        setting="MODE_10W_DESKTOP (id:5)",
        watts=10,
        note="the most CPU cores, then the board's default, then the lowest",
    ),
    case(
        name="agx",
        current=0,
        requested=15,
        setting="MODE_15W_DESKTOP (id:7)",
        watts=15,
        note="then the board's default",
    ),
    case(
        name="orin_nano",
        current=1,
        requested="MAXN",
        setting="MAXN_SUPER (id:2)",
        watts=None,
        note="there is no mode MAXN.",
    ),
)
def test_mode_is_selected_by_name_id_or_watts_with_a_note_if_several_match(
    knob_of, name, current, requested, setting, watts, note
):
    target = knob_of(name, current).target_for(requested)
    assert (target.setting, target.watts, note is None) == (setting, watts, target.note is None)
    if note:
        assert target.note.startswith(f"power_limit={requested} selects {setting}")
        assert note in target.note


@pytest.mark.parametrize(
    ("name", "requested", "choices"),
    [
        ("nano", "id:2", "MAXN (id:0), 5W (id:1)"),
        ("gaps", "MAXN", "QUIET (id:2), MODE_15W (id:5), MODE_20W_AI (id:9)"),
        ("agx_orin", 40, "MODE_30W (id:2); after a reboot: MAXN (id:0), MODE_15W (id:1), MODE_50W (id:3)"),
    ],
)
def test_unknown_mode_is_refused_with_the_modes_of_the_board(knob_of, name, requested, choices):
    with pytest.raises(ValueError, match="is not a power mode of this board") as refused:
        knob_of(name).target_for(requested)
    assert refused.value.problems[0].hint == f"it has {choices}"


@pytest.mark.parametrize("name", TABLES)
def test_mode_that_needs_a_reboot_is_refused_with_the_command(board, knob_of, name):
    knob = knob_of(name)
    for start, to in permutations(TABLES[name].modes, 2):
        board.put(**{"nvpmodel/status": f"pmode:{start.number:04}"})
        if start.mask == to.mask:
            assert knob.target_for(f"id:{to.number}").setting == f"{to.name} (id:{to.number})"
        else:
            with pytest.raises(RuntimeError, match=f"(?s)needs a reboot.*sudo nvpmodel -m {to.number}$"):
                knob.target_for(f"id:{to.number}")
        assert board.mode() == start.number


def test_reboot_prompt_of_nvpmodel_is_not_answered(board, knob_of):
    """If the board's file lacks the masks, only nvpmodel knows that a reboot is needed."""
    knob = knob_of("agx_orin", 2)
    with pytest.raises(RuntimeError, match=r"(?s)to MAXN \(id:0\): the device is at MODE_30W .*needs a reboot: sudo"):
        knob.set("MAXN (id:0)")
    assert board.mode() == 2
    assert not (board.root / "rebooted").exists()


def test_mode_is_not_changed_while_clocks_are_locked(board, knob_of):
    knob = knob_of("nx")
    board.with_clocks()
    privilege.run_program("jetson_clocks")
    with pytest.raises(RuntimeError, match="sudo jetson_clocks --restore"):
        knob.set("MODE_15W_2CORE (id:0)")
    assert board.mode() == 5


def test_program_that_hangs_is_killed(board, knob_of, monkeypatch):
    knob = knob_of("nx")
    board.program("nvpmodel", "exec sleep 60")
    monkeypatch.setattr(privilege, "LIMIT_S", 0.1)
    begun, begin = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *how, **more: begun.append(begin(*how, **more)) or begun[-1])
    with pytest.raises(RuntimeError, match=r"`nvpmodel -m 0` did not end within 0.1 s"):
        knob.set("MODE_15W_2CORE (id:0)")
    assert (begun[-1].returncode, begun[-1].stdout.closed) == (-signal.SIGKILL, True)


def lows(board):
    return [board.read(path) for path in (CPU.format(0, "min"), CPU.format(1, "min"), GPU.format("min"))]


def test_partial_lock_is_undone(board):
    """The program may lock only some of the clocks. A file of an earlier run does not replace the original clocks."""
    locking = open_jetson_clocks(board.with_clocks().root, board.root / "state")
    before = lows(board)
    board.put(**{"state/l4t_dfs.conf": f"{GPU.format('min')}:1\n"})
    locking.set("locked")
    assert lows(board) == ["1510400", "1510400", "624750000"]
    board.put(**{GPU.format("min"): before[2]})
    assert locking.get() == "free"
    locking.set("free")
    assert lows(board) == before
    assert list((board.root / "state").iterdir()) == []


def test_clocks_are_locked_after_they_are_stored_and_not_restored_for_others(board, journal):
    """The command waits for a run that had locked the clocks."""
    journal.folder.mkdir(parents=True, exist_ok=True)
    stored = journal.folder / "l4t_dfs.conf"
    stored.touch()
    knob = open_jetson_clocks(board.with_clocks().root, journal.folder)
    stored.unlink()
    board.program("jetson_clocks", 'echo "Error: unknown SoC"')
    with pytest.raises(RuntimeError, match="did not store the original clocks: Error: unknown SoC"):
        AppliedSettings([(knob, knob.target_for("locked"))], journal, print).__enter__()
    assert list(journal.folder.glob("*.json")) == []


def test_manual_command_uses_the_file_of_jtop_if_it_locked_the_clocks(board, journal, monkeypatch):
    def lock(on):
        for path in (CPU.format(0, "{}"), CPU.format(1, "{}"), GPU):
            board.put(**{path.format("min"): board.read(path.format("max")) if on else 1})

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(jetson, "request_clocks", lock)
    knob = open_jetson_clocks(board.with_clocks().root, journal.folder)
    with AppliedSettings([(knob, knob.target_for("locked"))], journal, print):
        (entry,) = journal.unrestored()
    assert entry.by_hand == "sudo jetson_clocks --restore /usr/local/jtop/l4t_dfs.conf"


def test_manual_fan_is_restored_to_its_duty_and_the_command_to_its_controller(board):
    fan = open_fan(board.with_service_fan().root)
    (board.root / "nvfancontrol").unlink()
    assert fan.get() == "manual 77"
    fan.set("manual 255")
    fan.set("manual 77")
    assert board.read(DUTY) == "77"
    assert fan.by_hand("manual 77") == f"echo 77 | sudo tee {board.root / DUTY}"
    assert fan.by_hand("quiet 77") == "sudo systemctl start nvfancontrol"
    kernel = board.with_kernel_fan().root / "sys/devices/pwm-fan/temp_control"
    assert open_fan(board.root).by_hand("temp_control 77") == f"echo 1 | sudo tee {kernel}"
