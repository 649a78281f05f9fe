import time
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from controls import Board

from epochmeter.machine.amd import find_cards, load_amdsmi
from epochmeter.power.instrument import Domain
from epochmeter.power.meters import amd, gpu
from epochmeter.power.meters.amd import open_amd
from epochmeter.power.uncertainty import UNKNOWN, Response
from epochmeter.shared.problem import Problem

UUID = "GPU-1f25e6fa38fdc9e1"


def energy_of(*gpus, **how):
    """The energy and the domains of a meter of these GPUs."""
    with closing(open_amd(gpus=gpus, period_s=0.01, **how)) as meter:
        return meter.energy, meter.domains


@pytest.mark.parametrize("name", ["0000:c1:00.0", "0000:c6:00.0", "both"])
def test_first_die_of_a_dual_board_measures_both(tmp_path, name):
    dies = ["0000:c1:00.0", "0000:c6:00.0"]
    board = Board(tmp_path).with_amdgpu(dies[0], "0x7408", power1_average=180_000_000)
    board.with_amdgpu(dies[1], "0x7408", power1_average=0).with_amdgpu(power1_average=9_000_000)
    for bus in ("0000:83:00.0", "0000:88:00.0"):  # another board
        board.with_amdgpu(bus, "0x7408", power1_average=70_000_000)
    energy, domains = energy_of(*(dies if name == "both" else [name]), root=tmp_path)
    assert {name: domain.covers for name, domain in domains.items()} == {"gpu3": "GPU board, both its dies"}
    assert (energy["covers"], energy["domains"]) == ("GPUs used (whole boards, both dies of each)", ["gpu3"])


@pytest.mark.parametrize(
    ("device", "sensors"),
    [("0x15bf", {"in1_label": "vddnb"}), ("0x74a0", {})],
    ids=["its driver shows the voltage of a northbridge", "MI300A"],
)
def test_power_of_an_apu_is_labeled_as_that_of_its_cpu_too(tmp_path, device, sensors):
    Board(tmp_path).with_amdgpu(device=device, power1_average=40_000_000, **sensors)
    energy, domains = energy_of("0000:03:00.0", root=tmp_path)
    assert (energy["covers"], domains["gpu0"].covers) == ("APUs used (GPU and CPU)", "APU (GPU and CPU)")


@pytest.mark.parametrize(("sensors", "source"), [({"in1_label": "vddnb"}, "none"), ({}, "sampled")], ids=["APU", "GPU"])
def test_energy_that_includes_the_cpu_is_absent_on_a_node_with_other_jobs(tmp_path, monkeypatch, sensors, source):
    monkeypatch.setattr(gpu, "sharing_problem", lambda: Problem("job 17 shares its node"))
    Board(tmp_path).with_amdgpu(power1_average=40_000_000, **sensors)
    energy, _ = energy_of("0000:03:00.0", root=tmp_path)
    assert (energy["source"], energy["reason"] == "job 17 shares its node") == (source, source == "none")


@pytest.mark.parametrize(("file", "response"), [("power1_average", Response(1.0, 0.0, 0.1)), ("power1_input", UNKNOWN)])
def test_power_has_the_response_of_the_device_table_and_the_limit_of_the_driver(tmp_path, file, response):
    Board(tmp_path).with_amdgpu(**{file: 90_000_000})
    table = {"power1_average": {"averaging_s": 1.0, "renewal_s": 0.1}}
    _, domains = energy_of("0000:03:00.0", root=tmp_path, sensors=table)
    assert (domains["gpu0"].response, domains["gpu0"].limit_w) == (response, 303.0)
    for unknown in (0, "garbage"):
        Board(tmp_path / str(unknown)).with_amdgpu(**{file: 90_000_000}, power1_cap_max=unknown)
        _, domains = energy_of("0000:03:00.0", root=tmp_path / str(unknown))
        assert domains["gpu0"].limit_w is None


def test_energy_is_absent_unless_every_gpu_has_an_instrument(tmp_path):
    for gpus, sensors, reason in (
        ([], {}, "uses no AMD GPU"),
        ([UUID], {}, UUID),
        (["0000:03:00.0"], {}, "reports no power"),
        (["0000:03:00.0"], {"power1_average": 0}, "reports no power"),
        (["0000:03:00.0"], {"power1_average": "garbage"}, "reports no power"),
    ):
        energy, _ = energy_of(*gpus, root=Board(tmp_path / f"{gpus}{sensors}").with_amdgpu(**sensors).root)
        assert (energy["source"], reason in energy["reason"]) == ("none", True)


def test_counter_of_earlier_versions_of_amdsmi_is_read(tmp_path, monkeypatch):
    count = {"power": 2_000_000, "counter_resolution": 15.3, "timestamp": 1}
    monkeypatch.setattr(amd, "AmdSmiGpu", lambda bus: Mock(call=lambda function: count))
    monkeypatch.setattr(amd, "check_counter", lambda *counter: None)
    (card,) = find_cards(Board(tmp_path).with_amdgpu(power1_average=100_000_000).root)
    assert amd.counter_of(card, Path("/")).read() == pytest.approx(30.6)


def test_rocm_counter_is_in_joules_and_a_wrong_one_is_refused_with_the_reason(amd_smi, tmp_path, monkeypatch):
    (card,) = find_cards(Board(tmp_path).with_amdgpu("0000:c1:00.0", power1_average=100_000_000).root)
    monkeypatch.setattr(amd, "CHECK_DURATION_S", 0.1)

    def counted(stub):
        monkeypatch.setenv("STUB", stub)
        load_amdsmi.cache_clear()
        (domain, read), times_s, joules = amd.counter_of(card, Path("/")), [], []
        for pause_s in (0, 0.2):
            time.sleep(pause_s)
            times_s.append(time.monotonic())
            joules.append(read())
            times_s.append(time.monotonic())
        return domain, times_s, joules[1] - joules[0]

    domain, times_s, joules = counted("working")
    assert 90 * (times_s[2] - times_s[1]) - 0.01 <= joules <= 90 * (times_s[3] - times_s[0]) + 0.01
    assert domain == Domain("counter", 0.001, "GPU board")
    for stub, reason in {
        "still": " 0 W, but the driver reports 100 W",
        "unit": r" (9|8\.\d+|9\.\d+)e\+04 W, but the driver reports 100 W",
        "unsupported": "AMDSMI_STATUS_NOT_SUPPORTED",
        "silent": "AMDSMI_STATUS_DRIVER_NOT_LOADED",
        "lost": "AMDSMI_STATUS_NOT_FOUND",
    }.items():
        with pytest.raises(OSError, match=reason):
            counted(stub)
