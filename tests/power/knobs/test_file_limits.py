"""Power limits in kernel files: RAPL and amdgpu."""

import os
from contextlib import nullcontext

import pytest
from controls import Board

from epochmeter.power.knobs import knob as settling
from epochmeter.power.knobs.file_limits import open_amd_cap, open_rapl_limit

LIMIT = "sys/class/powercap/{}/constraint_1_power_limit_uw"
CAP = "sys/class/drm/card{}/device/hwmon/hwmon4/power1_cap"
RADEON, MI250X = "0x744c", "0x7408"


def test_only_the_long_term_limit_of_each_package_is_changed(board):
    before = {file: file.read_text() for file in board.with_rapl().root.rglob("*_uw")}
    open_rapl_limit(board.root).set("65 W")
    after = {file: file.read_text().strip() for file in before if file.read_text() != before[file]}
    assert after == {board.root / LIMIT.format(f"intel-rapl:{package}"): "65000000" for package in (0, 1)}


def test_different_limits_are_restored_to_the_microwatt(board):
    board.with_rapl().put(**{LIMIT.format("intel-rapl:1"): 94_999_877})
    knob = open_rapl_limit(board.root)
    was = knob.get()
    assert was == "95 W, 94.999877 W"
    knob.set("65 W")
    knob.set(was)
    assert board.read(LIMIT.format("intel-rapl:1")) == "94999877"


@pytest.mark.parametrize(("rounding", "takes"), [(1.009, True), (0.991, True), (1.011, False), (0.989, False)])
def test_rounding_by_one_percent_is_accepted(board, monkeypatch, rounding, takes):
    monkeypatch.setattr(settling, "SETTLE_LIMIT_S", 0.1)
    knob = open_rapl_limit(board.with_rapl(packages=1).root)
    write = type(board.root).write_text
    rounded = lambda file, text: write(file, str(round(int(text) * rounding)))  # noqa: E731
    monkeypatch.setattr(type(board.root), "write_text", rounded)
    with nullcontext() if takes else pytest.raises(RuntimeError, match=r"65 W: the device is at 6[45]\.\d+ W\."):
        knob.set("65 W")


def test_limit_that_is_switched_off_is_an_error_with_the_switch(board):
    board.with_rapl().put(**{"sys/class/powercap/intel-rapl:0/enabled": 0})
    with pytest.raises(RuntimeError, match=r"switched off: (\S+) is 0\nhint: echo 1 \| sudo tee \1$"):
        open_rapl_limit(board.root).target_for(65)
    with pytest.raises(RuntimeError, match="switched off"):
        open_rapl_limit(board.root).choices()
    assert board.read(LIMIT.format("intel-rapl:0")) == "95000000"


@pytest.mark.parametrize("highest", ["0", "garbage"])
def test_unknown_highest_limit_is_not_checked(board, highest):
    board.with_rapl(packages=1).put(**{"sys/class/powercap/intel-rapl:0/constraint_1_max_power_uw": highest})
    knob = open_rapl_limit(board.root)
    assert knob.choices().startswith("watts (lowest limit unknown)")
    assert (knob.target_for(500).watts, knob.target_for(500).max_w) == (500, None)


def test_lowest_limit_is_the_kernels_and_may_be_unknown(board):
    assert open_rapl_limit(board.with_rapl(packages=1).root).choices() == "up to 120 W (lowest limit unknown)"
    board.put(**{"sys/class/powercap/intel-rapl:0/constraint_1_min_power_uw": 15_000_000})
    knob = open_rapl_limit(board.root)
    assert knob.choices() == "15 to 120 W"
    with pytest.raises(ValueError, match="is out of the range of RAPL: 15 to 120 W"):
        knob.target_for(14.5)


def test_kernel_file_of_root_is_written_by_sudo(open_folder, monkeypatch):
    board = Board(open_folder).with_rapl(packages=1)
    monkeypatch.setenv("PATH", board.on_path())
    board.root.joinpath(LIMIT.format("intel-rapl:0")).chmod(0o444)
    knob = open_rapl_limit(board.root)
    uid = os.getuid()
    try:
        if uid == 0:
            os.seteuid(65534)
        knob.set("65 W")
    finally:
        os.seteuid(uid)
    assert knob.get() == "65 W"


@pytest.mark.parametrize(("device", "used", "limited"), [(RADEON, [1], 1), (MI250X, [1], 0), (MI250X, [0, 1], 0)])
def test_only_the_gpus_used_are_limited_and_a_dual_board_by_its_first_die(board, device, used, limited):
    buses = ["0000:c1:00.0", "0000:c6:00.0"]
    board.with_amdgpu(buses[0], device).with_amdgpu(buses[1], device)
    knob = open_amd_cap([buses[die] for die in used], board.root)
    knob.set("200 W")
    assert knob.devices == [buses[limited]]
    limits = ["200000000" if die == limited else "250000000" for die in (0, 1)]
    assert [board.read(CAP.format(die)) for die in (0, 1)] == limits


@pytest.mark.parametrize("buses", [[], ["0000:83:00.0"], ["0000:03:00.0", "0000:83:00.0"]])
def test_gpus_without_a_limit_have_no_knob(board, buses):
    board.with_amdgpu("0000:03:00.0")
    assert open_amd_cap(buses, board.root) is None
