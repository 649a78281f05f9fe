import os

import pytest
from controls import CPU, GPU

from epochmeter.power.knobs import jtop_control
from epochmeter.power.knobs.jetson import open_jetson_clocks
from epochmeter.power.knobs.knob import AppliedSettings


@pytest.fixture
def board(root_board):
    return root_board.with_clocks()


@pytest.fixture
def knob(board):
    return open_jetson_clocks(board.root, board.root / "state")


def lows(board):
    return [board.read(path) for path in (CPU.format(0, "min"), CPU.format(1, "min"), GPU.format("min"))]


def test_partial_lock_is_undone(board, knob):
    """The program may lock only some of the clocks. A file of an earlier run does not replace the original clocks."""
    before = lows(board)
    board.put(**{"state/l4t_dfs.conf": f"{GPU.format('min')}:1\n"})
    knob.set("locked")
    assert lows(board) == ["1510400", "1510400", "624750000"]
    board.put(**{GPU.format("min"): before[2]})
    assert knob.get() == "free"
    knob.set("free")
    assert lows(board) == before
    assert list((board.root / "state").iterdir()) == []


def test_clocks_are_locked_only_after_they_are_stored(board, knob):
    board.program("jetson_clocks", 'echo "Error: unknown SoC"')
    with pytest.raises(RuntimeError, match=r"did not store the original clocks: Error: unknown SoC"):
        knob.set("locked")


def test_manual_command_uses_the_file_of_jtop_if_it_locked_the_clocks(board, journal, monkeypatch):
    def lock(on):
        for path in (CPU.format(0, "{}"), CPU.format(1, "{}"), GPU):
            board.put(**{path.format("min"): board.read(path.format("max")) if on else 1})
        return ""

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(jtop_control, "lock_clocks", lock)
    knob = open_jetson_clocks(board.root, journal.folder)
    with AppliedSettings([(knob, knob.target_for("locked"))], journal, print):
        (entry,) = journal.unrestored()
    assert entry.by_hand == "sudo jetson_clocks --restore /usr/local/jtop/l4t_dfs.conf"
