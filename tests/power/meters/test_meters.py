"""Every meter keeps the contract of `epochmeter.testing`.

jtop's meter is tested in its own file, since its service and client need separate processes.
"""

import math
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from boards import write
from power.conftest import counters as scripted_counters

from epochmeter.power.meter import EnergyMeter
from epochmeter.power.meters.amd import open_amd
from epochmeter.power.meters.nvml import open_nvml
from epochmeter.power.meters.rails import open_rails
from epochmeter.power.meters.rapl import open_estimate, open_rapl
from epochmeter.power.meters.sum import SumMeter
from epochmeter.testing import check_meter

RAIL_TABLE = {"total": ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"]}


def counters(board) -> EnergyMeter:
    ticks = count(1)
    return scripted_counters(gpu0=lambda: float(next(ticks)), gpu1=lambda: float(next(ticks)))


def rapl(board) -> EnergyMeter:
    board.zone("intel-rapl:0", "package-0", 100.0)
    board.zone("intel-rapl:0:0", "dram", 20.0)
    return open_rapl(gpus=[], root=board.root, period_s=0.005)


def estimate(board) -> EnergyMeter:
    board.ticks(busy=1000, idle=3000)
    return open_estimate(gpus=[], root=board.root, tdp_w=65)


def rails(board) -> EnergyMeter:
    write(board.root, "agx_orin")
    return open_rails(gpus=[], root=board.root, period_s=0.005, rails=RAIL_TABLE)


def amd(board) -> EnergyMeter:
    board.with_amdgpu(power1_average=90_000_000)
    return open_amd(gpus=["0000:03:00.0"], root=board.root, period_s=0.01)


METERS: dict[str, Callable[..., EnergyMeter]] = {
    "counters": counters,
    "rapl": rapl,
    "estimate": estimate,
    "rails": rails,
    "nvml": lambda board: open_nvml(gpus=["GPU-aaaa"], root=Path("/"), period_s=0.01),
    "amd": amd,
    "sum of two": lambda board: SumMeter([rails(board), counters(board)]),
}


@pytest.mark.parametrize("name", METERS)
def test_meter_keeps_the_contract(request, board, monkeypatch, name):
    if name == "nvml":
        request.getfixturevalue("nvml")
        monkeypatch.setenv("STUB", "ticks")
    check_meter(lambda: METERS[name](board), max_w=math.inf)  # simulated instruments count faster than time passes
