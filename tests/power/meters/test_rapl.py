from contextlib import contextmanager, suppress

import pytest

from epochmeter.power.meters import rapl
from epochmeter.power.meters.rapl import open_rapl, power_from_energy


@pytest.fixture
def server(machine):
    """Two packages with DRAM, and zones that repeat or include their energy."""
    for package in (0, 1):
        machine.zone(f"intel-rapl:{package}", f"package-{package}", 100)
        machine.zone(f"intel-rapl:{package}:0", "core", 60)
        machine.zone(f"intel-rapl:{package}:1", "uncore", 10)
        machine.zone(f"intel-rapl:{package}:2", "dram", 20)
    machine.zone("intel-rapl:2", "psys", 500)
    machine.zone("intel-rapl-mmio:0", "package-0", 100)
    return machine


@contextmanager
def open_meter(machine, **options):
    meter = open_rapl(gpus=[], root=machine.root, **options)
    yield meter
    meter.close()


def test_energy_is_that_of_packages_and_dram_counted_once(server, energy):
    with open_meter(server) as meter:
        before = meter.read()
        for folder, name, joules in [
            ("intel-rapl:0", "package-0", 150),
            ("intel-rapl:0:0", "core", 95),
            ("intel-rapl:0:1", "uncore", 15),
            ("intel-rapl:0:2", "dram", 27),
            ("intel-rapl:1", "package-1", 130),
            ("intel-rapl:1:2", "dram", 21),
            ("intel-rapl:2", "psys", 700),
            ("intel-rapl-mmio:0", "package-0", 150),
        ]:
            server.zone(folder, name, joules)
        metrics = energy(before, meter.read(), meter, 1)
    assert metrics == pytest.approx(
        {"energy_j": 88, "energy_cpu0_j": 50, "energy_cpu1_j": 30, "energy_dram0_j": 7, "energy_dram1_j": 1}
    )
    assert meter.energy["covers"] == "CPU packages and DRAM"
    assert sorted(meter.energy["domains"]) == ["cpu0", "cpu1", "dram0", "dram1"]
    assert (meter.energy["source"], meter.energy["reason"]) == ("counter", None)


def test_counter_overflow_is_corrected(machine, energy):
    machine.zone("intel-rapl:0", "package-0", machine.counter_range_j - 10)
    with open_meter(machine) as meter:
        before = meter.read()
        machine.zone("intel-rapl:0", "package-0", 5)
        once = meter.read()
        machine.zone("intel-rapl:0", "package-0", 4)
        twice = meter.read()
    assert energy(before, once, meter, 1)["energy_j"] == pytest.approx(15)
    assert energy(once, twice, meter, 1)["energy_j"] == pytest.approx(machine.counter_range_j - 1)


@pytest.mark.parametrize("joules", [0, None], ids=["counters at 0", "no powercap"])
def test_virtual_machine_has_no_energy_and_a_reason(machine, joules):
    if joules is not None:
        machine.zone("intel-rapl:0", "package-0", joules)
    with open_meter(machine) as meter:
        assert meter.energy["source"] == "none"
        assert "No RAPL energy counter" in meter.energy["reason"]
        assert meter.energy["reason"].endswith("meter.tdp_w=65")


def test_counter_readable_by_root_only_is_absent_with_a_hint(machine, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder / "energy_uj"))

    machine.zone("intel-rapl:0", "package-0", 1)
    monkeypatch.setattr(rapl, "Zone", refuse)
    with open_meter(machine) as meter:
        assert meter.energy["source"] == "none"
        assert "intel-rapl:0/energy_uj. Allow it until the next boot: sudo chmod a+r" in meter.energy["reason"]


class Package:
    """A counter at 50 W with a simulated clock; each reading takes the next of `held_up_s` seconds."""

    def __init__(self, monkeypatch):
        self.now_ns, self.held_up_s = 0, []
        monkeypatch.setattr(rapl.time, "monotonic_ns", lambda: self.now_ns)

    def read(self):
        self.wait(self.held_up_s.pop(0) if self.held_up_s else 0.0)
        return 50 * self.now_ns / 1e9

    def wait(self, seconds):
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def package(monkeypatch):
    return Package(monkeypatch)


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


def test_readings_too_close_together_have_no_power(package):
    """One counter update more or less would give 0 W or 250 W."""
    watts = power_from_energy(lambda: package.read() // 0.05 * 0.05)  # updated every millisecond
    powers_w = []
    for seconds in (0.0003, 0.0001, 0.0049, 0.0201):
        package.wait(seconds)
        with suppress(OSError):
            powers_w.append(watts())
    assert powers_w == [pytest.approx(50.0, rel=0.21), pytest.approx(50.0, rel=0.06)]


def test_dies_of_a_package_are_separate_domains(machine):
    for die in (0, 1):
        machine.zone(f"intel-rapl:{die}", f"package-0-die-{die}", 1)
        machine.zone(f"intel-rapl:{die}:0", "dram", 1)
    with open_meter(machine) as meter:
        assert set(meter.domains) == {"cpu0_die0", "cpu0_die1", "dram0_die0", "dram0_die1"}
