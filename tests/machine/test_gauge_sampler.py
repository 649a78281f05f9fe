import os
import time
from contextlib import contextmanager

import boards
import pytest
from controls import Board

from epochmeter.machine.gauge_sampler import READ_LIMIT_S, Gauges, Unavailable


@contextmanager
def gauges(root, gpus=()):
    opened = Gauges(gpus=gpus, root=root)
    yield opened
    opened.close()


def window(gauges, *inside, before=lambda: None, after=lambda: None):
    """The metrics of a window with one sample before it, one after each change of the machine, and one after it."""
    return gauges.window(*borders(gauges, *inside, before=before, after=after))


def borders(gauges, *inside, before=lambda: None, after=lambda: None):
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


def stat(busy, idle, steal=0):
    """/proc/stat with the given busy, idle and stolen ticks of all cores together."""
    return {"proc/stat": f"cpu  {busy - 30} 10 15 {idle - 5} 5 2 3 {steal} 77 0\nintr 12345 0 0\n"}


def meminfo(available):
    return {"proc/meminfo": f"MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  {available} kB\n"}


def zone(number, kind, degrees):
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": f"{kind}\n", f"{folder}/temp": f"{degrees}\n"}


LOAD = "sys/devices/platform/17000000.gpu/load"


def test_cpu_utilization_is_exact_between_the_borders(tree):
    root = tree(**stat(busy=1000, idle=9000))
    with gauges(root) as opened:
        assert window(opened, after=lambda: tree(**stat(busy=1060, idle=9020, steal=20))) == {"cpu_utilization": 0.6}


def traffic(**interfaces):
    """/proc/net/dev with the bytes that each interface has received and sent."""
    rows = (f"{name}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n" for name, (received, sent) in interfaces.items())
    return {"proc/net/dev": "Inter-|   Receive\n face |bytes\n" + "".join(rows)}


@pytest.mark.parametrize(("physical", "expected"), [((), (30, 5)), (("eth0",), (10, 2))])
def test_network_traffic_is_exact_and_excludes_loopback_and_bridges_over_physical_interfaces(tree, physical, expected):
    devices = {f"sys/class/net/{name}/device/vendor": "" for name in physical}
    root = tree(**devices, **traffic(lo=(0, 0), eth0=(100, 50), br0=(100, 50)))
    with gauges(root) as opened:
        metrics = window(opened, after=lambda: tree(**traffic(lo=(99, 99), eth0=(110, 52), br0=(120, 53))))
        assert metrics == dict(zip(("network_received_bytes", "network_sent_bytes"), expected, strict=True))
        assert window(opened, after=lambda: tree(**traffic(lo=(99, 99), eth0=(9, 9)))) == {}, "one was removed"


def test_gpu_utilization_is_the_mean_of_the_valid_samples_in_the_window(tree):
    loads = [lambda value=value: tree(**{LOAD: f"{value}\n"}) for value in (1000, 200, 600, 1000)]
    with gauges(tree(**{LOAD: "0\n"})) as opened:
        metrics = window(opened, *loads[1:3], before=loads[0], after=loads[3])
        assert metrics == {"gpu_utilization": pytest.approx(0.4)}
        assert window(opened) == {}, "there is no sample within"
        (tree() / LOAD).unlink()
        assert window(opened, lambda: None) == {}, "the read failed"
        assert window(opened, lambda: tree(**{LOAD: "1300\n"}), loads[2]) == {"gpu_utilization": 0.6}, "130 %"


def test_hanging_instrument_does_not_delay_a_border(tree):
    root = tree(**zone(0, "CPU-therm", 40_000))
    temperature = root / "sys/class/thermal/thermal_zone0/temp"
    with gauges(root) as opened:
        opened.mark()
        temperature.unlink()
        os.mkfifo(temperature)  # opening it waits for one who writes
        begun_s = time.monotonic()
        assert window(opened, lambda: None, lambda: None) == {"temperature_max_c": 40}
        assert time.monotonic() - begun_s < 2 * READ_LIMIT_S, "one border waits, the others know"
        opened.close()
        os.close(os.open(temperature, os.O_RDWR))  # lets the thread go


@pytest.mark.parametrize(
    "load",
    [
        "sys/devices/gpu.0/load",
        "sys/devices/platform/gpu.0/load",
        "sys/devices/platform/17000000.ga10b/load",
        "sys/devices/platform/bus@0/17000000.gpu/load",
    ],
)
def test_gpu_load_of_a_board_is_found_in_every_kernel(tree, load):
    with gauges(tree(**{load: "730\n"})) as opened:
        assert window(opened, lambda: None) == {"gpu_utilization": 0.73}
        assert opened.sources() == [("gpu_utilization", f"/{load}")]


@pytest.mark.parametrize(("name", "layout"), boards.LAYOUTS)
def test_every_board_has_memory_temperature_and_clock(tmp_path, name, layout):
    boards.write(tmp_path, name, layout)
    with gauges(tmp_path) as opened:
        measured = {"ram_peak_bytes": 1_802_000 * 1024, "temperature_max_c": 46.5, "gpu_clock_mean_hz": 612e6}
        assert window(opened, lambda: None) == measured


@pytest.mark.parametrize("gpu", ["GPU-00a1b2c3d4e5f607", "0000:03:00.0"])
def test_amd_gpu_is_found_by_uuid_or_pci_address(tmp_path, gpu):
    board = Board(tmp_path)
    for slot, unique_id, busy in [("0000:03:00.0", "00a1b2c3d4e5f607", 40), ("0000:43:00.0", "ff", 99)]:
        heat = {"temp1_input": 1000 * (busy + 20), "temp2_input": 1000 * (busy + 25), "freq1_input": 1_700_000_000}
        board.with_amdgpu(slot, unique_id=unique_id, busy=busy, **heat)
    with gauges(tmp_path, [gpu]) as opened:
        measured = {"gpu_utilization": 0.4, "gpu_clock_mean_hz": 1.7e9, "temperature_max_c": 65}
        assert window(opened, lambda: None) == {**measured, "gpu_dram_active_fraction": 0.2}
        assert {source for _, source in opened.sources()} == {"amdgpu"}


def throttle_counts(first, second):
    folder = "sys/devices/system/cpu/cpu"
    cores = {0: first, 1: first, 2: second}
    return {
        **{f"{folder}{core}/thermal_throttle/package_throttle_count": f"{count}\n" for core, count in cores.items()},
        **{f"{folder}{core}/topology/physical_package_id": f"{core // 2}\n" for core in cores},
    }


def over_currents(count):
    return {"sys/class/hwmon/hwmon4/oc1_event_cnt": "0\n", "sys/class/hwmon/hwmon4/oc3_event_cnt": f"{count}\n"}


def cooling(**states):
    written = {}
    for number, (kind, state) in enumerate(states.items()):
        folder = f"sys/class/thermal/cooling_device{number}"
        written |= {f"{folder}/type": f"{kind.replace('_', '-')}\n", f"{folder}/cur_state": f"{state}\n"}
    return written


def slowed(gauges, *inside, **around):
    return gauges.throttled(*borders(gauges, *inside, **around))


def fractions(gauges, *inside):
    return {name: value for name, value in window(gauges, *inside).items() if name.endswith("_fraction")}


def test_throttling_counters_that_increase_are_reported(tree):
    with gauges(tree(**throttle_counts(7, 0), **over_currents(5))) as opened:
        assert slowed(opened, lambda: None) == []
        assert slowed(opened, before=lambda: tree(**throttle_counts(8, 0))) == [], "it was before the window"
        changes = [lambda: tree(**throttle_counts(9, 0)), lambda: tree(**over_currents(6))]
        assert slowed(opened, *changes, after=lambda: tree(**throttle_counts(12, 0))) == [
            "CPU package 0 thermal throttling in 2 of 3 samples",
            "board over-current throttling (oc3) in 1 of 3 samples",
        ]


def test_throttled_fraction_is_that_of_the_samples(tree):
    with gauges(tree(**throttle_counts(7, 0), **over_currents(5))) as opened:
        changes = [lambda: tree(**throttle_counts(9, 0)), lambda: tree(**over_currents(6)), lambda: None]
        assert fractions(opened, *changes) == {"thermal_throttled_fraction": 0.25, "power_capped_fraction": 0.25}
    with gauges(tree(**throttle_counts(7, 0)), ["GPU-00a1b2c3d4e5f607"]) as opened:
        hot = lambda: tree(**throttle_counts(9, 0))  # noqa: E731
        assert "thermal_throttled_fraction" not in fractions(opened, hot), "the CPU's heat is not the GPU's"
        assert slowed(opened, lambda: tree(**throttle_counts(12, 0)))


def test_cooling_devices_report_throttling_but_fans_do_not(tree):
    calm, hot = cooling(cpu_throttle_alert=0, pwm_fan=3), cooling(cpu_throttle_alert=1, pwm_fan=3)
    with gauges(tree(**calm)) as opened:
        assert slowed(opened, lambda: tree(**hot), after=lambda: tree(**calm)) == [
            "cpu-throttle-alert thermal throttling in 1 of 2 samples"
        ]


def test_unavailable_quantity_has_a_reason(tree):
    with gauges(tree(**stat(1, 1), **zone(0, "CPU-therm", -256_000))) as opened:
        assert dict(opened.sources()).keys() == {"cpu_utilization"}
        missing = {absent.quantity: absent for absent in opened.unavailable()}
    assert sorted(missing) == [
        "gpu_clock_mean_hz", "gpu_utilization", "network_bytes", "ram_peak_bytes", "temperature_max_c", "throttling",
    ]  # fmt: skip
    assert missing["gpu_utilization"] == Unavailable("gpu_utilization", "no GPU in use reports its utilization", "")
    assert "meminfo" in missing["ram_peak_bytes"].why
    assert "of -256 C" in missing["temperature_max_c"].why
    assert "physical machine" in missing["temperature_max_c"].remedy


def test_peaks_include_the_borders(tree):
    with gauges(tree(**meminfo(400), **zone(0, "CPU-therm", 40_000))) as opened:
        after = {**meminfo(500), **zone(0, "CPU-therm", 61_500)}
        metrics = window(opened, before=lambda: tree(**meminfo(300)), after=lambda: tree(**after))
    assert metrics == {"ram_peak_bytes": 700 * 1024, "temperature_max_c": 61.5}


def test_old_samples_are_discarded_except_the_last(tree):
    with gauges(tree(**meminfo(100))) as opened:
        first_ns, _ = borders(opened)
        second = borders(opened, before=lambda: tree(**meminfo(300)), after=lambda: tree(**meminfo(400)))
        assert opened.window(first_ns, second[1]) == {"ram_peak_bytes": 900 * 1024}
        opened.discard_before(second[0])
        assert opened.window(first_ns, second[1]) == {"ram_peak_bytes": 700 * 1024}
        assert opened.window(*second) == {"ram_peak_bytes": 700 * 1024}, "the mark before it is still there"


def nvidia_window(monkeypatch, *gpus, stub):
    """Metrics, throttling and unavailable quantities of a window with NVIDIA GPUs."""
    monkeypatch.setenv("STUB", stub)
    with gauges("/nowhere", gpus) as opened:
        moments = borders(opened, lambda: None)
        missing = {absent.quantity: absent.why for absent in opened.unavailable()}
        return opened.window(*moments), opened.throttled(*moments), missing


NVIDIA = {"gpu_utilization": 0.87, "gpu_clock_mean_hz": 1410e6, "temperature_max_c": 61}
CAPPED, HOT = "gpu1 power-capped in 2 of 2 samples", "gpu1 thermal throttling in 2 of 2 samples"


@pytest.mark.parametrize(
    ("gpus", "stub", "fractions", "throttled"),
    [
        (["GPU-aaaa", "bbbb"], "", (0, 0), []),
        (["GPU-bbbb"], "throttled", (1, 1), [CAPPED, HOT]),
        (["GPU-bbbb"], "capped", (1, 0), [CAPPED]),
    ],
)
def test_nvidia_gpus_have_utilization_clock_and_throttling(nvml, monkeypatch, gpus, stub, fractions, throttled):
    metrics, texts, _ = nvidia_window(monkeypatch, *gpus, stub=stub)
    names = ("power_capped_fraction", "thermal_throttled_fraction")
    assert (metrics, texts) == ({**NVIDIA, **dict(zip(names, fractions, strict=True))}, throttled)


@pytest.mark.parametrize(
    ("gpu", "stub", "why"),
    [
        ("GPU-aaaa", "unsupported", "of gpu0: Not Supported"),
        ("GPU-aaaa", "silent", "nvmlInit of this machine: Driver Not Loaded"),
        ("GPU-cccc", "", "of GPU-cccc: Not Found"),
    ],
)
def test_quantities_without_nvml_are_missing_with_the_reason(nvml, monkeypatch, gpu, stub, why):
    metrics, _, missing = nvidia_window(monkeypatch, gpu, stub=stub)
    assert metrics == {}
    assert all(missing[quantity].endswith(why) for quantity in ("gpu_utilization", "gpu_clock_mean_hz"))
