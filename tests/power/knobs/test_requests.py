"""Which knobs a job asks for, and which of them a machine has."""

import pytest
from controls import Board

from epochmeter.power.knobs import requests
from epochmeter.power.knobs.fan import open_fan
from epochmeter.power.knobs.nvpmodel import open_nvpmodel
from epochmeter.power.knobs.rapl_limit import open_rapl_limit
from epochmeter.power.knobs.requests import demanded, put_back, wishes
from epochmeter.power.knobs.restore_journal import Desk

KEEP = {"power_limit": None, "clocks": "keep", "fan": "keep"}
NVIDIA = {"vendor": "nvidia", "bus": "0000:01:00.0", "uuid": "GPU-aaaa"}
AMD = {"vendor": "amd", "bus": "0000:03:00.0"}


@pytest.fixture
def board(tmp_path, monkeypatch):
    board = Board(tmp_path)
    monkeypatch.setenv("PATH", str(board.programs))
    return board


@pytest.fixture
def asked(board):
    """asked(gpus=..., clocks=...) -> what a job asks for on the board."""

    def of(trains_on_gpu=False, gpus=(), **typed):
        desk = Desk(str(board.root / "state"), root=str(board.root), boot_id="this", command="train")
        return demanded({**KEEP, **typed}, trains_on_gpu=trains_on_gpu, gpus=gpus, root=str(board.root), desk=desk)

    return of


def test_a_job_that_asks_for_nothing_opens_no_knob(asked):
    assert asked() == []


@pytest.mark.parametrize(
    ("typed", "lack"),
    [
        ({"power_limit": 100}, "power_limit=100 asked for, this machine has no limit to set"),
        ({"clocks": "locked"}, "clocks=locked asked for, this machine has no jetson_clocks"),
        ({"fan": "max"}, "fan=max asked for, this machine has no fan to set"),
    ],
)
def test_what_the_machine_has_no_knob_for_is_said(asked, typed, lack):
    (demand,) = asked(**typed)
    assert demand.lack == lack
    assert wishes([demand]) == []


def test_a_jetson_is_set_to_its_mode_then_to_its_clocks_then_its_fan(board, asked):
    board.with_modes("nano").with_clocks().with_kernel_fan()
    turns = wishes(asked(power_limit=5, clocks="locked", fan="max"))
    assert [(knob.name, wish.setting) for knob, wish in turns] == [
        ("nvpmodel", "5W (id:1)"),
        ("jetson_clocks", "locked"),
        ("fan", "manual 255"),
    ]


@pytest.mark.parametrize("gpus", [[], [NVIDIA]])
@pytest.mark.parametrize("trains_on_gpu", [True, False])
def test_a_jetson_is_limited_by_its_power_modes_whatever_else_it_has(board, asked, trains_on_gpu, gpus):
    board.with_modes("nano").with_rapl()
    (demand,) = asked(trains_on_gpu, gpus, power_limit=5)
    assert demand.knob.name == "nvpmodel"


def test_what_trains_on_the_cpu_is_limited_by_its_packages(board, asked):
    board.with_rapl().with_amdgpu()
    (demand,) = asked(False, [], power_limit=65)
    assert demand.knob.name == "RAPL"


def test_what_trains_on_a_gpu_is_limited_by_that_gpu(board, asked, nvml):
    board.with_rapl().with_amdgpu()
    assert [demand.knob.name for demand in asked(True, [NVIDIA], power_limit=150)] == ["NVML"]
    assert [demand.knob.name for demand in asked(True, [AMD], power_limit=150)] == ["amdgpu"]


def test_where_no_gpu_is_listed_there_is_no_limit_to_set(board, asked):
    """As in a container that does not show them."""
    board.with_rapl()
    (demand,) = asked(True, [], power_limit=65)
    assert demand.lack == "power_limit=65 asked for, this machine has no limit to set"


@pytest.mark.parametrize("gpus", [[{"vendor": "nvidia"}], [NVIDIA, AMD]])
def test_gpus_that_are_not_known_cannot_be_limited(board, asked, gpus):
    board.with_rapl()
    with pytest.raises(RuntimeError, match="power_limit limits the GPUs used"):
        asked(True, gpus, power_limit=65)


def test_knobs_that_were_left_turned_are_put_back_the_last_one_first(board, no_jtop, monkeypatch):
    """The clocks before the mode, which cannot change while they are held."""
    board.with_modes("nx").with_clocks()
    monkeypatch.setenv("PATH", f"{board.on_path()}:/usr/bin:/bin")
    desk = Desk(str(board.root / "state"), root=str(board.root), boot_id="this", command="train")
    asked = {**KEEP, "power_limit": "id:0", "clocks": "locked"}
    for knob, wish in wishes(demanded(asked, trains_on_gpu=True, gpus=[], root=str(board.root), desk=desk)):
        memo = desk.note(knob.name, knob.devices, knob.get(), knob.by_hand(knob.get()))
        knob.set(wish.setting)
        desk.keep(memo._replace(ours=wish.setting, began="0"))
    said = []
    put_back(desk, said.append)
    assert [text.partition(" ")[0] for text in said] == ["jetson_clocks", "nvpmodel"]
    assert board.mode() == 5
    assert desk.left() == []


def test_what_did_not_outlive_a_reboot_is_forgotten_though_its_device_is_gone(board):
    desk = Desk(str(board.root / "state"), root=str(board.root), boot_id="this", command="train")
    memo = desk.note("NVML", ["GPU-gone"], "250 W", "nvidia-smi -pl 250")
    desk.keep(memo._replace(ours="150 W", boot_id="the boot before"))
    said = []
    put_back(desk, said.append)
    assert said == ["NVML was left at 150 W by a run that was killed; the machine has started anew since."]
    assert desk.left() == []


def test_what_cannot_be_put_back_names_the_file_that_says_so(board):
    desk = Desk(str(board.root / "state"), root=str(board.root), boot_id="this", command="train")
    memo = desk.keep(desk.note("unheard-of", [], "1", "by hand")._replace(ours="2", began="0"))
    said = []
    assert put_back(desk, said.append) == [memo]
    assert said[0].endswith(f"\nhint: by hand && rm {desk.file(memo)}")


def test_a_journal_that_cannot_be_locked_is_a_warning(board):
    desk = Desk(str(board.root / "state"), root=str(board.root), boot_id="this", command="train")
    memo = desk.keep(desk.note("RAPL", [], "95 W", "by hand")._replace(began="0"))
    (desk.folder / "lock").mkdir()
    said = []
    assert put_back(desk, said.append) == [memo]
    assert said[0].startswith(
        f"warning: settings that an earlier run changed are not restored: cannot lock {desk.folder}"
    )


def test_a_jetson_that_replays_another_board_turns_nothing_of_its_own(board, asked, monkeypatch):
    """The programs, and jtop's service, act on this machine whatever the root."""
    board.with_modes("nano").put(jtop_socket="")
    desk = Desk(str(board.root / "state"), root=str(board.root), boot_id="this", command="train")
    desk.keep(desk.note("nvpmodel", [], "MAXN (id:0)", "sudo nvpmodel -m 0")._replace(began="0"))
    monkeypatch.setattr(requests, "OF_A_JETSON", (str(board.root / "jtop_socket"),))
    replays = pytest.raises(RuntimeError, match=r"replays another board, and to set its power would turn this Jetson's")
    with replays:
        asked(power_limit=5)
    said = []
    (memo,) = put_back(desk, said.append)
    assert (memo.knob, board.mode()) == ("nvpmodel", 0)
    assert "replays another board" in said[0]
    assert asked() == []


@pytest.mark.parametrize(
    ("path", "opened"),
    [
        ("etc/nvpmodel.conf", open_nvpmodel),
        ("sys/class/hwmon/hwmon0/name", open_fan),
        ("sys/class/powercap/intel-rapl:0/name", open_rapl_limit),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error_with_what_to_do(board, path, opened):
    (board.root / path).mkdir(parents=True)
    with pytest.raises(RuntimeError, match=rf"{path} cannot be read: Is a directory\. Let this user: sudo chmod a\+r"):
        opened(board.root)
