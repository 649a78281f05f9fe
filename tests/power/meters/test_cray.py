"""The counters of Cray nodes, from trees of files whose scans are scripted.

Names and forms of the files: HPE's docs-csm ("User Access to Compute Node Power Data") and CSCS's listing of a node
with four GH200; an older system has no time in its files.
"""

from types import SimpleNamespace

import pytest
from cases import case, cases
from power.conftest import counters
from project import put

from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.machine.host import detect_device, device_facts
from epochmeter.power.meters import cray
from epochmeter.power.meters.cray import NODE, open_cray, parse
from epochmeter.power.meters.sum import open_sum
from epochmeter.power.window_energy import energy_of_window, take_reading
from epochmeter.shared.problem import Problem

WATTS = {"energy": 500.0, "cpu_energy": 150.0, "memory_energy": 40.0, "accel0_energy": 120.0, "accel1_energy": 110.0}
GH200 = {"energy": 900.0, "cpu_energy": 200.0, "cpu0_energy": 100.0, "cpu1_energy": 100.0, "accel0_energy": 600.0}
SCAN_S = 0.1


class CrayNode:
    """A node at constant power, whose files show the last scan at the time of the scripted clock."""

    def __init__(self, root, clock, watts=None, has_times=True):
        self.root, self.clock, self.watts, self.has_times = root, clock, watts or WATTS, has_times
        self.folder, self.startup, self.generation, self.started_s = root / "sys/cray/pm_counters", 7, 1, 0.0
        self.scan()

    def scan(self):
        at_us = f" {round(1e15 + 1e6 * self.clock.now_s)} us" if self.has_times else ""
        seconds = 1000 + self.clock.now_s - self.started_s
        files = {name: f"{watts * seconds:.0f} J{at_us}" for name, watts in self.watts.items()}
        files |= {"power": f"{self.watts['energy']:.0f} W{at_us}", "power_cap": f"0 W{at_us}"}
        files |= {"freshness": round(self.clock.now_s / SCAN_S), "generation": self.generation, "startup": self.startup}
        put(self.folder, {name: f"{text}\n" for name, text in {**files, "raw_scan_hz": 10, "version": 2}.items()})

    def run(self, seconds):
        self.clock.now_s += seconds
        self.scan()


@pytest.fixture
def clock(monkeypatch):
    scripted = SimpleNamespace(now_s=50.0)
    monkeypatch.setattr(cray, "time", SimpleNamespace(monotonic=lambda: scripted.now_s))
    return scripted


@pytest.fixture
def node(tmp_path, clock):
    return CrayNode(tmp_path, clock)


@pytest.fixture
def opened():
    meters = []

    def open_meter(node, **options):
        meters.append(open_cray(gpus=[], root=node.root, **{"cross_check": False, **options}))
        return meters[-1]

    yield open_meter
    for meter in meters:
        meter.close()


def used_in(node, meter, seconds):
    """The energy of a window in which the node runs for some seconds."""
    before = take_reading(meter)._replace(at_ns=0)
    node.run(seconds)
    after = take_reading(meter)._replace(at_ns=round(seconds * 1e9))
    return energy_of_window(before, after, meter, seconds)


@pytest.mark.parametrize(("watts", "has_times"), [(WATTS, True), (WATTS, False), (GH200, True)])
def test_node_cpu_memory_and_accelerators_are_domains_and_the_node_is_the_total(
    tmp_path, clock, opened, watts, has_times
):
    node = CrayNode(tmp_path, clock, watts, has_times)
    used = used_in(node, opened(node), 20.0)
    names = {name: name.removesuffix("_energy") for name in watts if not name.startswith(("cpu0", "cpu1"))}
    joules = {{"energy": NODE}.get(name, domain): 20 * watts[name] for name, domain in names.items()}
    assert used.joules == joules
    assert used.metrics["energy_j"] == 20 * watts["energy"]
    assert (used.findings, used.disagreements) == ([], ())
    assert 0 < used.metrics["energy_uncertainty_j"] < 0.2 * used.metrics["energy_j"]


def test_counters_that_are_no_longer_renewed_leave_no_energy_but_a_code(node, opened, clock):
    meter = opened(node)
    before = take_reading(meter)._replace(at_ns=0)
    clock.now_s += 20.0  # without a scan
    used = energy_of_window(before, take_reading(meter)._replace(at_ns=20 * 10**9), meter, 20.0)
    assert "energy_j" not in used.metrics
    assert {finding.code for finding in used.findings} == {EnergyCode.STALE}
    assert "was not renewed for 20.0 s" in used.notes[0]
    node.run(0.1)
    assert "energy_j" in used_in(node, meter, 20.0).metrics, "the controller scans again"


def test_a_single_file_that_stands_still_is_stale(node, opened):
    meter = opened(node)
    old = (node.folder / "energy").read_text()
    before = take_reading(meter)._replace(at_ns=0)
    node.run(20.0)
    (node.folder / "energy").write_text(old)
    used = energy_of_window(before, take_reading(meter)._replace(at_ns=20 * 10**9), meter, 20.0)
    assert [finding.code for finding in used.findings] == [EnergyCode.STALE]
    assert used.joules.keys() == {"cpu", "memory", "accel0", "accel1"}


def test_restart_of_the_controller_is_a_reset_even_if_the_counter_is_larger(node, opened):
    meter = opened(node)
    before = take_reading(meter)._replace(at_ns=0)
    node.startup += 1
    node.run(20.0)
    used = energy_of_window(before, take_reading(meter)._replace(at_ns=20 * 10**9), meter, 20.0)
    assert {finding.code for finding in used.findings} == {EnergyCode.COUNTER_RESET}
    assert "energy_j" not in used.metrics


def test_change_of_a_power_cap_within_a_window_is_found_by_its_generation(node, opened):
    meter = opened(node)
    before = take_reading(meter)._replace(at_ns=0)
    node.generation += 1
    node.run(20.0)
    used = energy_of_window(before, take_reading(meter)._replace(at_ns=20 * 10**9), meter, 20.0)
    assert used.metrics["energy_j"] == 20 * 500.0
    assert [finding.code for finding in used.findings] == [EnergyCode.SETTINGS_CHANGED]
    assert "from 1 to 2" in used.notes[0]


def test_parts_that_use_more_than_the_node_contradict_it(tmp_path, clock, opened):
    node = CrayNode(tmp_path, clock, {**WATTS, "accel0_energy": 900.0})
    (one,) = used_in(node, opened(node), 20.0).disagreements
    assert one.check.parts == ("accel0", "accel1")


def test_power_of_the_node_is_sampled_as_a_cross_check(node, opened):
    meter = opened(node, cross_check=True)
    assert meter.energy["domains"] == [NODE]
    assert "node_sampled" in meter.domains
    assert any(check.parts == ("node_sampled",) for check in meter.cross_checks)


@cases(
    case(files={"energy": None}, code="no_sensor", text="not a Cray system"),
    case(files={"energy": "0 J 1 us"}, code="counter_stopped", text="is 0"),
    case(files={"energy": "500 mJ 1 us"}, code="no_sensor", text="not a number in J"),
    case(files={"energy": ""}, code="no_sensor", text="not a number in J"),
)
def test_a_node_without_usable_counters_has_no_energy_with_the_code_and_the_reason(node, opened, files, code, text):
    for name, content in files.items():
        (node.folder / name).unlink()
        if content is not None:
            (node.folder / name).write_text(content)
    energy = opened(node).energy
    assert (energy["source"], energy["codes"]) == ("none", [code])
    assert text in energy["reason"]


def test_a_counter_that_this_user_may_not_read_has_its_code(node, opened, monkeypatch):
    def refuse(file):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(cray, "_text", refuse)
    assert opened(node).energy["codes"] == ["no_permission"]


def test_shared_node_has_the_energy_of_its_gpus_or_none(node, monkeypatch):
    shared = Problem("Slurm job 7 shares its node", "", EnergyCode.SHARED_NODE.value)
    monkeypatch.setattr(cray, "sharing_problem", lambda: shared)
    alone = open_cray(gpus=[], root=node.root).energy
    assert (alone["source"], alone["codes"]) == ("none", ["shared_node"])
    monkeypatch.setattr(cray, "open_gpus", lambda **_: SimpleNamespace(energy={"source": "counter", "reason": None}))
    of_gpus = open_cray(gpus=["GPU-aaaa"], root=node.root).energy
    assert of_gpus == {
        "source": "counter",
        "reason": "the counters of the node are not used: Slurm job 7 shares its node",
    }


@pytest.mark.parametrize("text", ["12 J", "12 J 3 us", "12J"])
def test_a_file_has_a_number_its_unit_and_maybe_its_time(tmp_path, text):
    assert parse(text, "J", tmp_path).value == 12.0
    with pytest.raises(ValueError, match="not a number in W"):
        parse(text, "W", tmp_path)


def test_energy_of_the_node_is_not_added_to_that_of_its_parts(node, monkeypatch):
    other = counters(cpu0=float)
    opened = iter([other, open_cray(gpus=[], root=node.root, cross_check=False)])
    monkeypatch.setattr("epochmeter.power.meters.sum.open_meter", lambda *_, **__: next(opened))
    energy = open_sum(gpus=[], root=node.root, parts=[{}, {}]).energy
    assert "machine" not in energy
    assert energy["codes"] == ["part_absent", "scope_unknown"]


def test_a_node_with_these_counters_is_detected(node):
    assert detect_device(device_facts(node.root)) == "cray"
