"""Sources of samples, with real files and the kernel's page cache, and cooling down before a run."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from default_jobs import job_of
from metadata import run_info
from project import put

from epochmeter.machine.disk import Disk, ReadCounters
from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.window_energy import IdlePower, WindowEnergy
from epochmeter.results.run_result import RunResult
from epochmeter.run import instruments
from epochmeter.run.instruments import DataSource, cool_down, measure_idle_power

SECOND = 1_000_000_000
FEW, MANY = ReadCounters(2, 100), ReadCounters(9, 900)


@pytest.fixture
def folder(tmp_path):
    """A dataset of two splits, and files of ten pages each."""
    return put(tmp_path, {f"{split}/cat/{n}.png": "x" * 40960 for split in ("train", "val") for n in range(4)})


@pytest.fixture
def windowed(folder, monkeypatch):
    """windowed(*counters, name="epoch", cache=) -> the notes of two epochs, and the metrics of the second, of 2 s."""

    def measure(*counters, name="epoch", reason=None, **keys):
        readings = iter(counters)
        monkeypatch.setattr(instruments, "read_counters", lambda disk: next(readings))
        found = Disk(("sda1",), "ssd", "ext4", reason), {"medium": "ssd"}
        monkeypatch.setattr(instruments, "storage_of", lambda folder, root: found)
        source = DataSource(job_of(**keys), str(folder), print)
        assert source.metadata == {"medium": "ssd"}
        notes = [source.prepare(epoch) for epoch in range(2)]
        opened_ns, closed_ns = 5 * SECOND, 7 * SECOND
        for at_ns in (opened_ns, closed_ns):
            monkeypatch.setattr(instruments.time, "monotonic_ns", lambda at_ns=at_ns: at_ns)
            source.mark()
        return notes, source.window(name, opened_ns, closed_ns)

    return measure


@pytest.mark.parametrize(
    ("counters", "name", "reads"),
    [
        ((ReadCounters(100, 4000), ReadCounters(120, 10000)), "epoch",
         {"read_bytes": 6000, "read_iops": 10.0, "read_bytes_per_s": 3000.0}),
        ((ReadCounters(100, 4000), ReadCounters(120, 10000)), "val", {"read_bytes": 6000}),
        *((counters, "epoch", {}) for counters in ((None, None), (FEW, None), (None, FEW), (MANY, FEW))),
    ],
)  # fmt: skip
def test_reads_are_differences_of_the_counters_of_a_disk_that_stayed_connected(windowed, counters, name, reads):
    cached = {"page_cache_residency_before": 1, "page_cache_residency_after": 1} if name == "epoch" else {}
    assert windowed(*counters, name=name, cache="keep")[1] == {**reads, **cached}, "the files were just written"


def test_cold_dataset_is_not_cached_and_uncounted_reads_have_a_single_note(windowed):
    notes, metrics = windowed(None, None, cache="cold_each_epoch", reason="tmpfs is in memory")
    assert metrics == {"page_cache_residency_before": 0, "page_cache_residency_after": 0}
    assert notes == [["disk reads are not counted: tmpfs is in memory"], []]


@pytest.mark.parametrize(("cache", "epochs"), [("keep", []), ("warm", []), ("cold", [0]), ("cold_each_epoch", [0, 1])])
def test_caches_are_dropped_last_and_only_for_a_cold_cache(folder, monkeypatch, cache, epochs):
    done = []
    opened = DataSource(job_of(cache=cache, drop_caches=True), str(folder), print)
    monkeypatch.setattr(instruments, "drop_caches", lambda: done.append("dropped"))
    fraction = opened._residency.fraction
    monkeypatch.setattr(opened._residency, "fraction", lambda: done.append("measured") or fraction())
    for epoch in range(2):
        opened.prepare(epoch)
        assert done == ["measured", "dropped"][: 2 if epoch in epochs else 1]
        done.clear()


def test_samples_in_memory_have_no_files_and_a_script_has_the_configured_ones(folder):
    script, file = {"command": ["train.py"]}, str(folder / "train/cat/0.png")
    cases = [
        ({"synthetic_batches": True}, str(folder), None, {"medium": "synthetic"}),
        ({"dataset": {"layout": "tensors"}}, None, None, {"medium": "synthetic"}),
        ({"dataset": {"layout": "memory"}}, str(folder), None, {"medium": "memory"}),
        ({}, None, None, {"medium": "memory"}),
        ({"measure": script}, None, None, {"reason": instruments.NO_DATA}),
        ({"measure": {**script, "data": file}, "cache": "cold"}, None, 0.0, None),
    ]
    for keys, prepared, residency, metadata in cases:
        source = DataSource(job_of(**keys), prepared, print)
        source.prepare(0)
        source.mark()
        source.mark()
        metrics = source.window("epoch", 0, SECOND)
        assert metrics.get("page_cache_residency_after") == residency
        assert bool(source.files) == (metadata is None)
        assert source.files or (source.metadata, metrics) == (metadata, {})


@pytest.fixture
def cooled(tmp_path, monkeypatch, terminal):
    """cooled([60], below_c, most_s) -> metadata and notes; sensors cool by 1 degree per second, until `lost_s`."""

    def cool(degrees, below_c, most_s=600, lost_s=1000):
        now_s, plan, result = 0.0, SimpleNamespace(gpus=[], run=run_info(), describe=lambda **_: None), RunResult(0, [])

        def sleep(seconds):
            nonlocal now_s
            now_s += seconds
            for number, start in enumerate(degrees):
                zone = f"sys/class/thermal/thermal_zone{number}/"
                put(tmp_path, {f"{zone}type": "thermal", f"{zone}temp": f"{1000 * (start - now_s):.0f}\n"})
                if now_s >= lost_s:
                    (tmp_path / zone / "temp").unlink()

        sleep(0)
        monkeypatch.setattr(instruments, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
        plan.job = job_of(sweep={"cool_below_c": below_c, "cool_wait_s": most_s}, machine={"root": str(tmp_path)})
        cool_down(plan, result, terminal)
        return plan.run.rest, result.notes

    return cool


def test_run_waits_until_all_sensors_are_below_the_limit_or_has_a_note(cooled, terminal):
    why = "no temperature sensor, as in a virtual machine"
    assert cooled([], 50) == ({"waited_s": 0, "reason": why}, [f"sweep.cool_below_c=50 has no effect: {why}."])
    assert cooled([60], 61) == ({"waited_s": 0, "temperature_c": 60}, [])
    assert terminal.console.file.getvalue() == ""
    assert cooled([45, 63], 50) == ({"waited_s": 14, "temperature_c": 49}, [])
    metadata, (note,) = cooled([90, 45], 50, most_s=20)
    assert metadata == {"waited_s": 20, "temperature_c": 70}
    assert note.startswith("the run began at 70 C, after 20 s of waiting for less than sweep.cool_below_c=50; raise it")
    metadata, (note,) = cooled([90, 45], 50, lost_s=1)
    assert (metadata["waited_s"], "temperature_c" in metadata) == (1, False)
    assert note.startswith("sweep.cool_below_c=50 has no effect: ")


def test_contradictory_energies_while_nothing_trains_are_a_note_on_idle_power():
    joules = {"cpu0": iter([0.0, 1.0]), "core0": iter([0.0, 3.0])}
    counters = {name: Instrument(Domain("counter", 1e-4, name), values.__next__) for name, values in joules.items()}
    checks = [CrossCheck(("core0",), "at most", ("cpu0",))]
    meter = EnergyMeter(counters=counters, total=["cpu0"], covers="CPU", cross_checks=checks)
    result = RunResult(0, [])
    idle = measure_idle_power(meter, 0.02, result, Mock())
    assert idle.power_w > 0
    assert result.notes == ["idle power: core0 measured 3 J, at most cpu0 expected, 1 J"]


def test_uncertainty_of_idle_power_is_that_of_its_energy_per_second(monkeypatch, terminal):
    used = WindowEnergy({}, {"energy_j": 500.0, "energy_uncertainty_j": 5.0, "power_mean_w": 50.0}, [], {})
    monkeypatch.setattr(instruments, "measure_idle", lambda meter, seconds: used)
    meter = EnergyMeter(total=(), covers=None)
    assert measure_idle_power(meter, 10.0, RunResult(0, []), terminal) == IdlePower(50.0, 0.5)
    monkeypatch.setattr(instruments, "measure_idle", lambda meter, seconds: used._replace(metrics={}))
    assert measure_idle_power(meter, 10.0, RunResult(0, []), terminal) is None
