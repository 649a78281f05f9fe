"""The contract of meters: every test runs for every meter.

jtop's meter is tested in its own file, since its service and client need separate processes.
"""

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from boards import write
from power.conftest import counters as scripted_counters

from epochmeter.power.instrument import SOURCES
from epochmeter.power.meter import EnergyMeter, NullMeter
from epochmeter.power.meters.amd import open_amd
from epochmeter.power.meters.nvml import open_nvml
from epochmeter.power.meters.rails import open_rails
from epochmeter.power.meters.rapl import open_estimate, open_rapl
from epochmeter.power.meters.sum import SumMeter

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
    "absent": lambda board: NullMeter("there is none"),
    "counters": counters,
    "rapl": rapl,
    "estimate": estimate,
    "rails": rails,
    "nvml": lambda board: open_nvml(gpus=["GPU-aaaa"], root=Path("/"), period_s=0.01),
    "amd": amd,
    "sum of two": lambda board: SumMeter([rails(board), counters(board)]),
}


@pytest.fixture(params=METERS)
def meter(request, board, monkeypatch) -> Iterator[EnergyMeter]:
    if request.param == "nvml":
        request.getfixturevalue("nvml")
        monkeypatch.setenv("STUB", "ticks")
    made = METERS[request.param](board)
    yield made
    made.close()


@pytest.fixture
def parts(meter) -> set[str]:
    """The domains that the total adds up."""
    everything = dict.fromkeys(meter.domains, 1.0)
    return {name for name in meter.domains if meter.total({**everything, name: 1.5}) != meter.total(everything)}


def test_meter_describes_its_total_and_domains(request, meter, parts):
    energy, is_absent = meter.energy, "absent" in request.node.callspec.id
    assert energy.keys() - {"machine", "codes", "limit_w"} == {"source", "covers", "domains", "reason"}
    assert ("codes" in energy) == (energy["source"] not in ("counter", "sampled"))
    assert sorted(energy["domains"]) == sorted(parts)
    sources = [meter.domains[name].source for name in parts]
    assert energy["source"] == max(sources, key=SOURCES.index, default="none"), "that of the least accurate domain"
    assert (energy["source"] == "none") == is_absent == (not meter.domains)
    assert energy["reason"] if is_absent else energy["covers"]
    for domain in meter.domains.values():
        assert domain.source in SOURCES
        assert domain.covers
        assert domain.period_s > 0 <= domain.step
        assert all(value is None or value >= 0 for value in domain.response)


def test_total_is_the_sum_of_its_domains_or_none(meter, parts):
    joules = {name: float(2**number) for number, name in enumerate(meter.domains)}
    assert meter.total({name: joules[name] for name in parts}) == meter.total(joules), "others may be missing"
    assert meter.total(joules) == (sum(joules[name] for name in parts) if parts else None)
    for name in parts:
        assert meter.total({other: value for other, value in joules.items() if other != name}) is None


def test_readings_have_all_domains_and_never_decrease(meter):
    limit = time.monotonic() + 5  # samples that only check a counter may arrive later
    while (before := meter.read()).keys() != meter.domains.keys() and time.monotonic() < limit:
        time.sleep(0.01)
    after = meter.read()
    assert before.keys() == after.keys() == meter.domains.keys()
    assert all(after[name] >= before[name] for name in before)


def test_samples_have_statistics_and_are_drained_once(meter):
    opened_ns = time.monotonic_ns()
    meter.read()
    time.sleep(0.1)  # a counter's power is sampled only between its readings
    meter.read()
    closed_ns = time.monotonic_ns()
    sampling, powers = meter.sampling(opened_ns, closed_ns), meter.drain(closed_ns + 1)
    assert (sampling is not None) == bool(powers.times_ns)
    assert powers.watts.keys() <= meter.domains.keys()
    assert {len(values) for values in (*powers.watts.values(), powers.total_w)} == {len(powers.times_ns)}
    assert list(powers.times_ns) == sorted(powers.times_ns)
    if sampling:
        assert sampling.samples >= 2  # one per reading
        assert 0 < sampling.gap_max_s <= (closed_ns - opened_ns) * 1e-9
        assert sampling.half_width_j >= 0
        assert (sampling.failed, sampling.unavailable) == (0, {})
    assert not set(powers.times_ns) & set(meter.drain(time.monotonic_ns()).times_ns)
    meter.close()
    meter.close()
