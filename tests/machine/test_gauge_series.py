"""Rows of gauges, from kernel files with known counters."""

from contextlib import suppress

import pytest

from epochmeter.machine.gauge_series import GaugeSeries
from epochmeter.machine.gauges import core_ticks

SECOND = 1_000_000_000
DISK = "sys/class/block/sda1/stat"


def ticks(*busy_and_idle):
    """/proc/stat with the busy and idle ticks of all cores, and of each."""
    cores = (f"cpu{'' if core == 0 else core - 1} {b} 0 0 {i} 0 0 0 0 0 0" for core, (b, i) in enumerate(busy_and_idle))
    return {"proc/stat": "\n".join([*cores, "intr 12345 0 0"])}


def disk(reads=0, sectors=0, read_ms=0, writes=0, written=0, write_ms=0, busy_ms=0, queued_ms=0):
    counts = (reads, 0, sectors, read_ms, writes, 0, written, write_ms, 3, busy_ms, queued_ms, 0, 0, 0, 0, 0, 0)
    return {DISK: " ".join(map(str, counts))}


IDLE = {**ticks((0, 0), (0, 0), (0, 0)), **disk()}
RATES = {
    "cpu_utilization": 0.25, "cpu0_utilization": 0.0, "cpu1_utilization": 0.5,
    "disk_reads_per_s": 40.0, "disk_read_bytes_per_s": 512 * 1000, "disk_read_await_s": 0.002,
    "disk_writes_per_s": 5.0, "disk_written_bytes_per_s": 512 * 100, "disk_write_await_s": 0.01,
    "disk_queue_requests": 1.5, "disk_utilization": 0.75,
    "network_received_bytes_per_s": 500.0, "network_sent_bytes_per_s": 50.0,
}  # fmt: skip


@pytest.fixture
def rows(tree):
    """rows((seconds, files, network), ...) -> the rows of samples at these times, with these kernel files."""

    def sampled(*samples, devices=("sda1",)):
        series = GaugeSeries(tree(), 1.0, devices)
        for seconds, files, network in samples:
            counters = {"network": network} if network else {}
            with suppress(OSError, ValueError):
                counters |= core_ticks(tree(**files) / "proc/stat")
            series.add(round(seconds * SECOND), {"ram_used_bytes": 5.0}, counters, None)
        return [{**dict.fromkeys(series.columns), **row} for row in series.drain()]

    return sampled


def test_counters_are_rates_since_the_previous_row_and_unknown_in_the_first(rows):
    busy = {**ticks((100, 300), (0, 200), (100, 100)), **disk(80, 2000, 160, 10, 200, 100, 1500, 3000)}
    first, second = rows((10, IDLE, (100, 10)), (12, busy, (1100, 110)))
    assert first == {"monotonic_ns": 10 * SECOND, **dict.fromkeys(RATES), "ram_used_bytes": 5.0}
    assert second == pytest.approx({"monotonic_ns": 12 * SECOND, **RATES, "ram_used_bytes": 5.0})


def test_several_disks_are_summed_and_counters_that_start_again_are_unknown(rows):
    files = [disk(), disk(reads=30, busy_ms=500), disk(reads=1)]
    _, both, removed = rows(*((at_s, of_disk, ()) for at_s, of_disk in enumerate(files)), devices=("sda1", "sda1"))
    assert (both["disk_reads_per_s"], both["disk_utilization"], removed["disk_reads_per_s"]) == (60.0, 0.5, None)


def test_nothing_read_is_never_a_zero(rows):
    gone = {**IDLE, DISK: "", "proc/stat": "cpu 1"}
    _, idle, broken, back = rows((1, IDLE, (5, 5)), (2, IDLE, (5, 5)), (3, gone, ()), (4, IDLE, (4, 5)))
    assert (idle["disk_reads_per_s"], idle["disk_read_await_s"]) == (0.0, None), "no request was completed"
    assert {name for name, cell in broken.items() if cell is not None} == {"monotonic_ns", "ram_used_bytes"}
    assert {back[name] for name in RATES} == {None}, "the row before is unknown"
    assert rows((1, {"proc/stat": "cpu 1"}, ()), devices=())[0].keys() == {"monotonic_ns", "ram_used_bytes"}


def test_rows_follow_at_the_mean_period_and_throttling_of_all_samples_counts(tree):
    series = GaugeSeries(tree(), 1.0)
    slowed = {0.7: ["gpu0 power-capped"], 1.1: ["a, b"], 1.6: [], 2.2: []}
    for seconds in (0.1, 0.7, 1.1, 1.6, 2.2, 3.15, 4.2):
        series.add(round(seconds * SECOND), {}, {}, slowed.get(seconds))
    cells = [(row["monotonic_ns"] / SECOND, row.get("throttling")) for row in series.drain()]
    assert cells == [(0.1, None), (1.1, "gpu0 power-capped; a  b"), (2.2, "none"), (3.15, None), (4.2, None)]
    assert series.drain() == []
