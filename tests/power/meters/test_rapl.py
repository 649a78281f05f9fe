import os
import threading
import time
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from unittest.mock import Mock

import pytest
from clocks import time_with
from controls import COUNTER_RANGE_J
from timed import next_renewal

from epochmeter.power.meters import rapl
from epochmeter.power.meters.rapl import ESTIMATE_HINT, open_estimate, open_rapl, power_from_energy
from epochmeter.power.window_energy import Reading, energy_of_window
from epochmeter.shared.problem import Problem


def energy_j(before, after, meter, seconds):
    """The energies of a window between two readings."""
    metrics = energy_of_window(Reading(0, before), Reading(round(seconds * 1e9), after), meter, seconds).metrics
    return {name: joules for name, joules in metrics.items() if name.endswith("_j") and "uncertainty" not in name}


def open_meter(board):
    return closing(open_rapl(gpus=[], root=board.root))


ZONES_J = {
    "intel-rapl:0 package-0": (100, 150), "intel-rapl:0:0 core": (60, 95), "intel-rapl:0:1 uncore": (10, 15),
    "intel-rapl:0:2 dram": (20, 27), "intel-rapl:1 package-1": (300, 330), "intel-rapl:1:2 dram": (40, 41),
    "intel-rapl:2 psys": (500, 700), "intel-rapl-mmio:0 package-0": (100, 150),
    "intel-rapl:3 package-2-die-1": (210, 212), "intel-rapl:3:0 dram": (60, 61),
}  # fmt: skip
"""Counters of a server before and after a window; some zones repeat or include the energy of others."""
CHECKING_J = {"energy_core0_j": 35, "energy_uncore0_j": 5, "energy_psys_j": 200}


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
        } | CHECKING_J
    )  # fmt: skip
    assert {f"energy_{name}_j" for name in meter.energy.pop("domains")} == metrics.keys() - {"energy_j", *CHECKING_J}
    assert meter.energy == {"source": "counter", "covers": "CPU packages and DRAM", "reason": None}


@contextmanager
def counting(board, zones, watts):
    """Count the zones at this power from a thread, as the kernel does; each zone starts at its joules."""
    files = {}
    for folder, (name, start_j) in zones.items():
        board.zone(folder, name, start_j)
        file = board.root / f"sys/class/powercap/{folder}/energy_uj"
        if start_j in files:  # the same counter: no pause of the thread makes them differ
            file.unlink()
            os.link(files[start_j], file)
        files.setdefault(start_j, file)
    begun_s, ended = time.monotonic(), threading.Event()

    def count():
        while not ended.wait(0.001):
            joules = watts * (time.monotonic() - begun_s)
            for start_j, file in files.items():
                with file.open("r+") as opened:
                    opened.write(f"{round(1e6 * (start_j + joules)):014d}\n")

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.parametrize(
    ("starts_j", "domains", "watts"),
    [
        ((3000.0, 3000.0, 3000.0), ["cpu0_die0"], 50),
        ((3000.0, 3001.0, 3000.0), ["cpu0_die0", "cpu0_die1"], 100),
        ((3000.0, 3001.0, 3002.0), ["cpu0_die0", "cpu0_die1", "cpu0_die2"], 150),
    ],
)
def test_counter_that_each_die_of_a_socket_shows_is_counted_once(board, starts_j, domains, watts):
    zones = {f"intel-rapl:{die}": (f"package-0-die-{die}", start_j) for die, start_j in enumerate(starts_j)}
    with counting(board, zones, watts=50), open_meter(board) as meter:
        assert meter.energy["domains"] == [*meter.domains] == domains
        repeated = [f"cpu0_die{die}" for die in range(3) if f"cpu0_die{die}" not in domains]
        reasons = [f"{name} shows the counter of cpu0_die0, which is counted once." for name in repeated]
        assert meter.energy["reason"] == (" ".join(reasons) or None)
        before = next_renewal(meter)
        time.sleep(0.4)
        after = next_renewal(meter)
    seconds = (after.at_ns - before.at_ns) * 1e-9
    assert energy_j(before.joules, after.joules, meter, seconds)["energy_j"] / seconds == pytest.approx(watts, rel=0.1)


@pytest.mark.parametrize(
    ("changed_j", "found"),
    [
        ({}, []),
        ({"intel-rapl:0:0 core": (60, 150)}, [((("core0", "uncore0"), ("cpu0",)), (95, 50))]),
        ({"intel-rapl:2 psys": (500, 570)}, [((("cpu0", "cpu1", "cpu2_die1"), ("psys",)), (82, 70))]),
    ],
    ids=["right", "cores exceed their package", "packages exceed the platform"],
)
def test_parts_of_packages_and_packages_of_the_platform_must_not_exceed_them(board, changed_j, found):
    zones_j = {**ZONES_J, **changed_j}
    for zone, (joules, _) in zones_j.items():
        board.zone(*zone.split(), joules)
    with open_meter(board) as meter:
        before = Reading(0, meter.read())
        for zone, (_, joules) in zones_j.items():
            board.zone(*zone.split(), joules)
        used = energy_of_window(before, Reading(1_000_000_000, meter.read()), meter, 1.0)
    assert [(one.check.parts, one.check.reference) for one in used.disagreements] == [domains for domains, _ in found]
    joules = [(one.parts_j, one.reference_j) for one in used.disagreements]
    assert joules == [pytest.approx(pair) for _, pair in found]
    excess_j = sum(parts_j - reference_j for _, (parts_j, reference_j) in found)
    assert used.metrics["energy_uncertainty_j"] == pytest.approx(0.182 + excess_j, abs=0.01)


def test_overflows_of_zones_outside_of_the_total_are_read_within_a_window(board, monkeypatch):
    """Otherwise the packages would seem to exceed the platform in windows that last longer than its range."""
    monkeypatch.setattr(rapl, "MAX_W", 1e12)
    board.zone("intel-rapl:0", "package-0", 1000.0)
    board.zone("intel-rapl:1", "psys", COUNTER_RANGE_J - 10)
    with closing(open_rapl(gpus=[], root=board.root, period_s=0.015)) as meter:
        before = meter.read()
        board.zone("intel-rapl:1", "psys", 20)
        until_s = time.monotonic() + 5
        while len(meter.drain(time.monotonic_ns()).times_ns) < 3 and time.monotonic() < until_s:
            time.sleep(0.05)
        board.zone("intel-rapl:1", "psys", COUNTER_RANGE_J - 15)
        assert meter.read()["psys"] - before["psys"] == pytest.approx(COUNTER_RANGE_J - 5)


def test_zones_outside_of_the_total_are_not_read_without_cross_check_and_not_needed(board):
    for zone, (joules, _) in ZONES_J.items():
        board.zone(*zone.split(), joules)
    (board.root / "sys/class/powercap/intel-rapl:0:1/energy_uj").write_text("garbage")
    with open_meter(board) as meter:
        assert [check.parts for check in meter.cross_checks] == [("core0",), ("cpu0", "cpu1", "cpu2_die1")]
    with closing(open_rapl(gpus=[], root=board.root, cross_check=False)) as meter:
        assert (meter.cross_checks, [*meter.domains]) == ((), meter.energy["domains"])


def test_zones_with_one_name_are_separate_domains(board):
    for number, joules in enumerate((100.0, 500.0)):
        board.zone(f"intel-rapl:{number}", "package-0", joules)
        board.zone(f"intel-rapl:{number}:0", "dram", joules / 10)
    with open_meter(board) as meter:
        readings = meter.read()
    assert readings == {"cpu0_0": 100.0, "dram0_0-0": 10.0, "cpu0_1": 500.0, "dram0_1-0": 50.0}


def test_counter_overflow_is_corrected_and_a_reset_has_no_energy_until_later(board):
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
    monkeypatch.setattr(rapl, "time", time_with(monotonic=lambda: next(clock)))
    board.zone("intel-rapl:0", "package-0", COUNTER_RANGE_J - 1)
    zone = rapl.Zone(board.root / "sys/class/powercap/intel-rapl:0")
    board.zone("intel-rapl:0", "package-0", 20_000)
    assert zone.read() == pytest.approx(COUNTER_RANGE_J + 20_000)


@pytest.mark.parametrize(
    ("joules", "reason"),
    [
        (None, "No RAPL energy counter"),
        (0, "No RAPL energy counter"),
        (1, "intel-rapl:0/energy_uj\n  hint: allow it until the next boot: sudo chmod a+r"),
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
        problem = Problem(meter.energy["reason"], meter.energy["hint"])
        assert reason in str(problem)


@pytest.mark.parametrize(("flags", "has_driver"), [("fpu hypervisor lahf_lm", False), ("fpu lahf_lm", True)])
def test_driver_of_the_counters_is_a_hint_only_outside_of_virtual_machines(board, flags, has_driver):
    board.put(**{"proc/cpuinfo": f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: spectre_v1\n"})
    with open_meter(board) as meter:
        hint = meter.energy["hint"]
    assert ("modprobe" in hint, hint.endswith(ESTIMATE_HINT)) == (has_driver, True)


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
    assert meter.energy == {"source": "estimated", **scope, "reason": reason, "codes": ["estimated"]}


def test_estimate_without_rated_power_or_proc_stat_is_absent_with_the_reason(board):
    unreadable = open_estimate(gpus=[], root=board.root, tdp_w=65).energy
    board.ticks(busy=1000, idle=9000)
    unrated = open_estimate(gpus=[], root=board.root).energy
    assert (unreadable["source"], "cannot be estimated" in unreadable["reason"]) == ("none", True)
    assert (unrated["source"], unrated["reason"], unrated["hint"]) == ("none", "meter.tdp_w is not set", ESTIMATE_HINT)
    with pytest.raises(ValueError, match=r"meter\.tdp_w=0 is not a rated power"):
        open_estimate(gpus=[], root=board.root, tdp_w=0)
