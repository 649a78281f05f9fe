import os
import threading
import time
from contextlib import closing
from pathlib import Path

import boards
import pytest
from cases import case, cases
from controls import Board

from epochmeter.machine import gauge_sampler
from epochmeter.machine.gauge_sampler import READ_LIMIT_S, Gauges
from epochmeter.machine.gauge_series import GaugeSeries


def gauges(root, gpus=()):
    return closing(Gauges(gpus=gpus, root=root, series=GaugeSeries(Path(root), 1.0)))


def first_row(gauges):
    """The cells with a reading of the first row of the time series, without the time."""
    row = gauges.series.drain()[0]
    return {name: cell for name, cell in row.items() if name != "monotonic_ns" and cell is not None}


def borders(gauges, *inside, before=lambda: None, after=lambda: None):
    """A window with one sample before it, one after each change of the machine, and one after it."""
    before()
    gauges.mark()
    opened_ns = time.monotonic_ns()
    for change in inside:
        change()
        gauges.mark()
    closed_ns = time.monotonic_ns()
    after()
    gauges.mark()
    return opened_ns, closed_ns


def window(gauges, *inside, **around):
    return gauges.window(*borders(gauges, *inside, **around))


def slowed(gauges, *inside, **around):
    return gauges.throttled(*borders(gauges, *inside, **around))


def stat(busy, idle, steal=0):
    """/proc/stat with the given busy, idle and stolen ticks of all cores together."""
    return {"proc/stat": f"cpu  {busy - 30} 10 15 {idle - 5} 5 2 3 {steal} 77 0\nintr 12345 0 0\n"}


def meminfo(available):
    return {"proc/meminfo": f"MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  {available} kB\n"}


def zone(number, kind, degrees):
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": f"{kind}\n", f"{folder}/temp": f"{degrees}\n"}


def traffic(**interfaces):
    """/proc/net/dev with the bytes that each interface has received and sent."""
    rows = (f"{name}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n" for name, (received, sent) in interfaces.items())
    return {"proc/net/dev": "Inter-|   Receive\n face |bytes\n" + "".join(rows)}


LOADS = ("gpu.0", "platform/gpu.0", "platform/17000000.ga10b", "platform/bus@0/17000000.gpu")
LOAD = f"sys/devices/{LOADS[2]}/load"
BYTES = "network_received_bytes", "network_sent_bytes"
BRIDGED = traffic(lo=(0, 0), eth0=(100, 50), br0=(100, 50)), traffic(lo=(99, 99), eth0=(110, 52), br0=(120, 53))


@pytest.mark.parametrize(
    ("before", "after", "metrics"),
    [
        (stat(busy=1000, idle=9000), stat(busy=1060, idle=9020, steal=20), {"cpu_utilization": 0.6}),
        (*BRIDGED, dict(zip(BYTES, (30, 5), strict=True))),
        ({"sys/class/net/eth0/device/vendor": "", **BRIDGED[0]}, BRIDGED[1], dict(zip(BYTES, (10, 2), strict=True))),
        (BRIDGED[0], traffic(lo=(99, 99), eth0=(9, 9)), {}),
    ],
    ids=["CPU", "all interfaces but loopback", "no bridges over physical ones", "an interface was removed"],
)
def test_cpu_utilization_and_network_traffic_are_exact_between_the_borders(tree, before, after, metrics):
    with gauges(tree(**before)) as opened:
        assert window(opened, after=lambda: tree(**after)) == metrics


def test_gpu_utilization_is_the_mean_of_the_valid_samples_in_the_window(tree):
    loads = [lambda value=value: tree(**{LOAD: f"{value}\n"}) for value in (1000, 200, 600, 1000)]
    with gauges(tree(**{LOAD: "0\n"})) as opened:
        metrics = window(opened, *loads[1:3], before=loads[0], after=loads[3])
        assert metrics == {"gpu_utilization": pytest.approx(0.4)}
        assert window(opened) == {}, "there is no sample within"
        (tree() / LOAD).unlink()
        assert window(opened, lambda: None) == {}, "the read failed"
        assert window(opened, lambda: tree(**{LOAD: "1300\n"}), loads[2]) == {"gpu_utilization": 0.6}, "130 %"


def test_hanging_instrument_does_not_delay_a_border(tree, monkeypatch):
    monkeypatch.setattr(gauge_sampler, "MAX_DISTANCE_S", 60.0)  # the machine may pause between two borders
    root = tree(**zone(0, "CPU-therm", 40_000))
    temperature = root / "sys/class/thermal/thermal_zone0/temp"
    with gauges(root) as opened:
        opened.mark()
        temperature.unlink()
        os.mkfifo(temperature)  # opening it waits for one who writes
        limits_s, wait_for = [], opened._thread._round_done.wait_for

        def note(condition, limit_s):
            limits_s.append((threading.current_thread(), limit_s))
            return wait_for(condition, limit_s)

        monkeypatch.setattr(opened._thread._round_done, "wait_for", note)
        assert window(opened, lambda: None, lambda: None) == {"temperature_max_c": 40}
        of_borders = [limit_s for thread, limit_s in limits_s if thread is threading.current_thread()]
        assert of_borders == [READ_LIMIT_S, 0, 0, 0], "one border waits, the others know"
        opened.close()
        os.close(os.open(temperature, os.O_RDWR))  # lets the thread go


@pytest.mark.parametrize("load", LOADS)
def test_gpu_load_of_a_board_is_found_in_every_kernel(tree, load):
    with gauges(tree(**{f"sys/devices/{load}/load": "730\n"})) as opened:
        assert window(opened, lambda: None) == {"gpu_utilization": 0.73}
        assert opened.sources() == [("gpu_utilization", f"/sys/devices/{load}/load")]


@pytest.mark.parametrize(("name", "layout"), boards.LAYOUTS)
def test_every_board_has_memory_temperature_and_clock(tmp_path, name, layout):
    boards.write(tmp_path, name, layout)
    with gauges(tmp_path) as opened:
        measured = {"ram_peak_bytes": 1_802_000 * 1024, "temperature_max_c": 46.5, "gpu_clock_mean_hz": 612e6}
        assert window(opened, lambda: None) == measured
        temperatures = {"CPU_therm_temperature_c": 46.5, "GPU_therm_temperature_c": 44.0}
        assert first_row(opened) == {"ram_used_bytes": 1_802_000 * 1024, "gpu0_clock_hz": 612e6, **temperatures}


def test_amd_gpu_is_found_by_uuid_or_pci_address(tmp_path):
    board = Board(tmp_path)
    for slot, unique_id, busy in [("0000:03:00.0", "00a1b2c3d4e5f607", 40), ("0000:43:00.0", "ff", 99)]:
        heat = {"temp1_input": 1000 * busy, "temp2_input": 1000 * busy + 5000, "freq1_input": 1_700_000_000}
        board.with_amdgpu(slot, unique_id=unique_id, busy=busy, **heat)
    for gpu in ("GPU-00a1b2c3d4e5f607", "0000:03:00.0"):
        with gauges(tmp_path, [gpu]) as opened:
            measured = {"gpu_utilization": 0.4, "gpu_clock_mean_hz": 1.7e9, "temperature_max_c": 45}
            assert window(opened, lambda: None) == {**measured, "gpu_dram_active_fraction": 0.2}
            assert {source for _, source in opened.sources()} == {"amdgpu"}
    with gauges(tmp_path, ["GPU-00a1b2c3d4e5f607", "GPU-ff"]) as opened:
        opened.mark()
        assert first_row(opened) == {
            "gpu0_utilization": 0.4, "gpu0_clock_hz": 1.7e9, "gpu0_temperature_c": 40, "gpu0_2_temperature_c": 45,
            "gpu1_utilization": 0.99, "gpu1_clock_hz": 1.7e9, "gpu1_temperature_c": 99, "gpu1_2_temperature_c": 104,
        }  # fmt: skip


def throttling(first=0, second=0, over_currents=0, alert=0):
    """Counters of two CPU packages and of the board, and two cooling devices, of which the second is a fan."""
    files = {"hwmon/hwmon4/oc1_event_cnt": 0, "hwmon/hwmon4/oc3_event_cnt": over_currents}
    for number, (kind, state) in enumerate((("cpu-throttle-alert", alert), ("pwm-fan", first))):
        files |= {f"thermal/cooling_device{number}/type": kind, f"thermal/cooling_device{number}/cur_state": state}
    written = {f"sys/class/{name}": f"{value}\n" for name, value in files.items()}
    for core, count in enumerate((first, first, second)):
        folder = f"sys/devices/system/cpu/cpu{core}"
        written[f"{folder}/thermal_throttle/package_throttle_count"] = f"{count}\n"
        written[f"{folder}/topology/physical_package_id"] = f"{core // 2}\n"
    return written


def test_throttling_counters_that_increase_are_reported_and_counted_by_samples(tree):
    with gauges(tree(**throttling(7, 0, 5))) as opened:
        assert slowed(opened, lambda: None) == []
        assert slowed(opened, before=lambda: tree(**throttling(8, 0, 5))) == [], "it was before the window"
        changes = [lambda: tree(**throttling(9, 0, 5, 1)), lambda: tree(**throttling(9, 0, 6)), lambda: None]
        moments = borders(opened, *changes, after=lambda: tree(**throttling(12, 0, 6)))
        assert opened.throttled(*moments) == [
            "CPU package 0 thermal throttling in 2 of 4 samples",
            "board over-current throttling (oc3) in 1 of 4 samples",
            "cpu-throttle-alert thermal throttling in 1 of 4 samples",
        ]
        assert opened.window(*moments) == {"thermal_throttled_fraction": 0.5, "power_capped_fraction": 0.25}
    with gauges(tree(**throttling(12, 0, 6)), ["GPU-00a1b2c3d4e5f607"]) as opened:
        moments = borders(opened, lambda: tree(**throttling(13, 0, 6)))
        assert opened.window(*moments) == {"power_capped_fraction": 0}, "the CPU's heat is not the GPU's"
        assert opened.throttled(*moments) != []


@pytest.mark.parametrize("degrees", [-256, 127])
def test_unavailable_quantity_has_a_reason(tree, degrees):
    with gauges(tree(**stat(1, 1), **zone(0, "CPU-therm", 1000 * degrees))) as opened:
        assert dict(opened.sources()).keys() == {"cpu_utilization"}
        missing = opened.unavailable()
    assert sorted(missing) == [
        "gpu_clock_mean_hz", "gpu_utilization", "network_bytes", "ram_peak_bytes", "temperature_max_c", "throttling",
    ]  # fmt: skip
    assert missing["gpu_utilization"] == ("no GPU in use reports its utilization", "")
    why, remedy = missing["ram_peak_bytes"]
    assert ("meminfo" in why, remedy) == (True, "mount /proc")
    why, remedy = missing["temperature_max_c"]
    assert (f"value of {degrees}" in why, remedy) == (True, ""), "a driver is loaded"
    with gauges(tree() / "empty") as opened:
        assert "modprobe coretemp" in opened.unavailable()["temperature_max_c"][1]


def test_peaks_include_the_borders_and_old_samples_are_discarded_except_the_last(tree):
    with gauges(tree(**meminfo(400), **zone(0, "CPU-therm", 40_000))) as opened:
        first = borders(opened, before=lambda: tree(**meminfo(100)))
        hot = {**meminfo(400), **zone(0, "CPU-therm", 61_500)}
        second = borders(opened, before=lambda: tree(**meminfo(300)), after=lambda: tree(**hot))
        assert opened.window(*second) == {"ram_peak_bytes": 700 * 1024, "temperature_max_c": 61.5}
        assert opened.window(first[0], second[1])["ram_peak_bytes"] == 900 * 1024
        opened.discard_before(second[0])
        assert opened.window(first[0], second[1])["ram_peak_bytes"] == 700 * 1024, "the mark before it is still there"


def test_samples_keep_no_counters_of_cores(tree):
    """An epoch of a day has 170,000 samples, and a machine may have 128 cores."""
    cores = "".join(f"cpu{core} 10 0 0 90 0 0 0 0 0 0\n" for core in range(128))
    with gauges(tree(**{"proc/stat": f"cpu  1000 0 0 9000 0 0 0 0 0 0\n{cores}"})) as opened:
        opened.mark()
        opened.mark()
        *_, before, last = opened._samples
        assert [[*counters] for counters in last.readings["cpu_utilization"]] == [["cpu"]]
        assert last.sources is before.sources
        assert "cpu127_utilization" in opened.series.drain()[0]


NVIDIA = {"gpu_utilization": 0.87, "gpu_clock_mean_hz": 1410e6, "temperature_max_c": 61}
CELLS = {"gpu1_utilization": 0.87, "gpu1_clock_hz": 1410e6, "gpu1_memory_used_bytes": 3e9, "gpu1_temperature_c": 61}
UNTHROTTLED = {"power_capped_fraction": 0, "thermal_throttled_fraction": 0}
CAPPED, HOT = "gpu1 power-capped", "gpu1 thermal throttling"


@cases(
    case(gpus=["GPU-aaaa", "bbbb"], stub="", metrics={**NVIDIA, **UNTHROTTLED}, throttled=[], why=None),
    case(
        gpus=["GPU-bbbb"],
        stub="throttled",
        metrics={**NVIDIA, **dict.fromkeys(UNTHROTTLED, 1)},
        throttled=[CAPPED, HOT],
        why=None,
    ),
    case(
        gpus=["GPU-bbbb"],
        stub="capped",
        metrics={**NVIDIA, **UNTHROTTLED, "power_capped_fraction": 1},
        throttled=[CAPPED],
        why=None,
    ),
    case(gpus=["GPU-aaaa"], stub="unsupported", metrics={}, throttled=[], why="of gpu0: Not Supported"),
    case(gpus=["GPU-aaaa"], stub="silent", metrics={}, throttled=[], why="nvmlInit of this machine: Driver Not Loaded"),
    case(gpus=["GPU-cccc"], stub="", metrics={}, throttled=[], why="of GPU-cccc: Not Found"),
)
def test_nvidia_gpus_have_utilization_clock_and_throttling_or_a_reason(
    nvml, monkeypatch, gpus, stub, metrics, throttled, why
):
    monkeypatch.setenv("STUB", stub)
    with gauges("/nowhere", gpus) as opened:
        moments = borders(opened, lambda: None)
        assert opened.window(*moments) == metrics
        assert opened.throttled(*moments) == [f"{text} in 2 of 2 samples" for text in throttled]
        row, missing = first_row(opened), opened.unavailable()
    quantities = {"gpu_utilization", "gpu_clock_mean_hz"}
    if why:
        assert all(missing[quantity][0].endswith(why) for quantity in quantities)
    else:
        assert not quantities & missing.keys()
        assert {**CELLS, "throttling": "; ".join(throttled) or "none"}.items() <= row.items()
