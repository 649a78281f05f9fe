from contextlib import closing, suppress
from itertools import pairwise
from unittest.mock import Mock

import pytest
from controls import COUNTER_RANGE_J

from epochmeter.power.meters import rapl
from epochmeter.power.meters.rapl import ESTIMATE_HINT, open_estimate, open_rapl, power_from_energy
from epochmeter.power.window_energy import Reading, energy_of_window


def energy_j(before, after, meter, seconds):
    """The energies of a window between two readings."""
    metrics = energy_of_window(Reading(0, before), Reading(round(seconds * 1e9), after), meter, seconds).metrics
    return {name: joules for name, joules in metrics.items() if name.endswith("_j") and "uncertainty" not in name}


def open_meter(board):
    return closing(open_rapl(gpus=[], root=board.root))


ZONES_J = {
    "intel-rapl:0 package-0": (100, 150), "intel-rapl:0:0 core": (60, 95), "intel-rapl:0:1 uncore": (10, 15),
    "intel-rapl:0:2 dram": (20, 27), "intel-rapl:1 package-1": (100, 130), "intel-rapl:1:2 dram": (20, 21),
    "intel-rapl:2 psys": (500, 700), "intel-rapl-mmio:0 package-0": (100, 150),
    "intel-rapl:3 package-2-die-1": (10, 12), "intel-rapl:3:0 dram": (10, 11),
}  # fmt: skip
"""Counters of a server before and after a window; some zones repeat or include the energy of others."""


def test_energy_is_that_of_packages_and_dram_counted_once(board):
    for zone, (joules, _) in ZONES_J.items():
        board.zone(*zone.split(), joules)
    with open_meter(board) as meter:
        before = meter.read()
        for zone, (_, joules) in ZONES_J.items():
            board.zone(*zone.split(), joules)
        metrics = energy_j(before, meter.read(), meter, 1)
    assert metrics == pytest.approx(
        {
            "energy_j": 91, "energy_cpu0_j": 50, "energy_cpu1_j": 30, "energy_cpu2_die1_j": 2, "energy_dram0_j": 7,
            "energy_dram1_j": 1, "energy_dram2_die1_j": 1,
        }
    )  # fmt: skip
    assert {f"energy_{name}_j" for name in meter.energy.pop("domains")} == metrics.keys() - {"energy_j"}
    assert meter.energy == {"source": "counter", "covers": "CPU packages and DRAM", "reason": None}


def test_counter_overflow_is_corrected_and_a_reset_or_wrong_value_has_no_energy_until_the_next_window(board):
    """A suspension of the machine resets the counters. An overflow would mean 65 kJ in microseconds."""
    board.zone("intel-rapl:0", "package-0", COUNTER_RANGE_J - 10)
    readings = []
    with open_meter(board) as meter:
        for joules in (COUNTER_RANGE_J - 10, 5, 305, 4, 6, 50_000, 8, 9):
            board.zone("intel-rapl:0", "package-0", joules)
            readings.append(meter.read())
        assert meter.energy["covers"] == "CPU packages"
        windows = [energy_j(before, after, meter, 1).get("energy_j") for before, after in pairwise(readings)]
        assert windows == [pytest.approx(15), pytest.approx(300), None, pytest.approx(2), None, None, pytest.approx(1)]
        assert energy_j(readings[0], readings[-1], meter, 1) == {}


def test_counter_that_is_read_rarely_may_advance_far_until_it_overflows(board, monkeypatch):
    clock = iter([0.0, 25.0])
    monkeypatch.setattr(rapl.time, "monotonic", lambda: next(clock))
    board.zone("intel-rapl:0", "package-0", COUNTER_RANGE_J - 1)
    zone = rapl.Zone(board.root / "sys/class/powercap/intel-rapl:0")
    board.zone("intel-rapl:0", "package-0", 20_000)
    assert zone.read() == pytest.approx(COUNTER_RANGE_J + 20_000)


@pytest.mark.parametrize(
    ("joules", "reason"),
    [
        (None, "No RAPL energy counter"),
        (0, "No RAPL energy counter"),
        (1, "intel-rapl:0/energy_uj. Allow it until the next boot: sudo chmod a+r"),
        ("hidden", "intel-rapl:0/name, which containers hide by default"),
    ],
    ids=["no powercap", "virtual machine", "readable by root", "container"],
)
def test_energy_without_a_readable_counter_is_absent_with_the_reason(board, monkeypatch, joules, reason):
    if joules == "hidden":
        board.put(**{"sys/class/powercap/uevent": ""})
        (board.root / "sys/class/powercap/intel-rapl:0").symlink_to("../../devices/virtual/powercap/intel-rapl:0")
    elif joules is not None:
        board.zone("intel-rapl:0", "package-0", joules)
    if joules == 1:
        refusal = PermissionError(13, "Permission denied", "intel-rapl:0/energy_uj")
        monkeypatch.setattr(rapl, "Zone", Mock(side_effect=refusal))
    with open_meter(board) as meter:
        assert meter.energy["source"] == "none"
        assert reason in meter.energy["reason"]


@pytest.mark.parametrize(("flags", "has_driver"), [("fpu hypervisor lahf_lm", False), ("fpu lahf_lm", True)])
def test_driver_of_the_counters_is_a_hint_only_outside_of_virtual_machines(board, flags, has_driver):
    board.put(**{"proc/cpuinfo": f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n"})
    with open_meter(board) as meter:
        reason = meter.energy["reason"]
    assert ("modprobe" in reason, reason.endswith(ESTIMATE_HINT)) == (has_driver, True)


class Package:
    """A counter at 50 W with a simulated clock; each reading takes the next of `held_up_s` seconds."""

    def __init__(self):
        self.now_ns, self.held_up_s = 0, []

    def read(self):
        self.wait(self.held_up_s.pop(0) if self.held_up_s else 0.0)
        return 50 * self.now_ns / 1e9

    def wait(self, seconds):
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def package(monkeypatch):
    package = Package()
    monkeypatch.setattr(rapl.time, "monotonic_ns", lambda: package.now_ns)
    return package


def test_interrupted_reading_is_repeated(package):
    watts = power_from_energy(package.read)
    with suppress(OSError):
        watts()
    package.wait(0.01)
    package.held_up_s = [0.008]  # between the clock and the counter
    assert watts() == pytest.approx(50.0)
    package.wait(0.01)
    package.held_up_s = [0.008] * 3
    with pytest.raises(OSError, match=r"each of 3 readings took longer than 0\.001 s"):
        watts()
    package.wait(0.01)
    assert watts() == pytest.approx(50.0)
    package.wait(0.01)
    package.held_up_s = [0.0008]  # so short that the middle is taken
    assert watts() == pytest.approx(50 * 0.0108 / 0.0104)


def test_readings_too_close_together_have_no_power(package):
    """One counter update more or less would give 0 W or 250 W."""
    watts = power_from_energy(lambda: package.read() // 0.05 * 0.05)  # updated every millisecond
    powers_w = []
    for seconds in (0.0003, 0.0001, 0.0049, 0.0201):
        package.wait(seconds)
        with suppress(OSError):
            powers_w.append(watts())
    assert powers_w == [pytest.approx(50.0, rel=0.21), pytest.approx(50.0, rel=0.06)]


def test_power_across_a_reset_of_the_counter_is_a_failed_reading(package):
    joules, powers_w = iter([100.0, 101.0, 101.0, 5.0, 6.0]), []
    watts = power_from_energy(lambda: next(joules))
    for _ in range(5):
        package.wait(0.02)
        with suppress(OSError):
            powers_w.append(watts())
    assert powers_w == [pytest.approx(50.0), 0.0, pytest.approx(50.0)]


def test_half_busy_cpu_is_estimated_at_half_its_rated_power(board):
    board.ticks(busy=1000, idle=9000, cores=4)
    meter = open_estimate(gpus=[], root=board.root, tdp_w=65)
    before = meter.read()
    board.ticks(busy=1000 + 2000, idle=9000 + 2000, cores=4)  # ten seconds of four cores
    assert energy_j(before, meter.read(), meter, 10) == {"estimated_energy_j": pytest.approx(10 * 65 / 2)}
    scope = {"covers": "CPU: busy fraction of 65 W", "domains": ["cpu"]}
    reason = "meter=estimate: an estimate, not a measurement."
    assert meter.energy == {"source": "estimated", **scope, "reason": reason}


def test_estimate_without_rated_power_or_proc_stat_is_absent_with_the_reason_and_zero_is_refused(board):
    unreadable = open_estimate(gpus=[], root=board.root, tdp_w=65).energy
    board.ticks(busy=1000, idle=9000)
    unrated = open_estimate(gpus=[], root=board.root).energy
    assert (unreadable["source"], "cannot be estimated" in unreadable["reason"]) == ("none", True)
    assert (unrated["source"], unrated["reason"]) == ("none", f"meter.tdp_w is not set. {ESTIMATE_HINT}")
    with pytest.raises(ValueError, match=r"meter\.tdp_w=0 is not a rated power"):
        open_estimate(gpus=[], root=board.root, tdp_w=0)
