"""Samples of the last minutes, from files that grow."""

import pytest

from epochmeter.watch import appended
from epochmeter.watch.appended import RecentSamples

SECOND = 1_000_000_000


def stamp(row):
    """Return a row whose first cell, in seconds, is in nanoseconds."""
    seconds, _, cells = row.partition(",")
    return f"{round(float(seconds) * SECOND)},{cells}"


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


def test_samples_are_means_per_second_with_the_last_sample_and_without_unread_cells(tmp_path):
    path = tmp_path / "power.csv"
    rows = ["4,,", "5,1,10", "5.1,,30", "7,3,4"]
    append(path, "monotonic_ns,gpu_w,total_w\n" + "".join(f"{stamp(row)}\n" for row in rows) + stamp("8,5"))
    samples = RecentSamples(path)
    power = samples.read(100.0)
    assert (power["total_w"].times_s, power["total_w"].values, power["total_w"].latest) == ([105, 107], [20, 4], 4)
    assert power["gpu_w"].values == [1, 3]
    append(path, ",6\ndamaged\n\xff\n")
    assert samples.read(0.0)["total_w"].latest == 6


def test_samples_of_the_last_minutes_and_since_the_last_reboot_only_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(appended, "HISTORY_S", 3)
    path = tmp_path / "power.csv"
    rows = (f"{second * SECOND},{second},{1 if second < 907 else ''}\n" for second in range(900, 910))
    append(path, "monotonic_ns,total_w,gone_w\n" + "".join(rows))
    samples = RecentSamples(path)
    power = samples.read(0.0)
    assert {name: series.values for name, series in power.items()} == {"total_w": [907, 908, 909]}
    assert samples.read(0.0) is power, "the same objects without new samples"
    append(path, f"{5 * SECOND},2\n{6 * SECOND},4\n")
    assert samples.read(100.0)["total_w"].times_s == [105, 106]


@pytest.mark.parametrize(("cell", "throttling"), [("none", ""), ("gpu0 heat", "gpu0 heat"), (None, None)])
def test_throttling_is_the_last_text_of_its_column(tmp_path, cell, throttling):
    column, value = ("", "") if cell is None else (",throttling", f",{cell}")
    rows = f"{SECOND},0.5{value}\n{2 * SECOND},{value}\n"
    append(tmp_path / "gauges.csv", f"monotonic_ns,cpu_utilization{column}\n{rows}")
    samples = RecentSamples(tmp_path / "gauges.csv")
    assert samples.read(0.0)["cpu_utilization"].values == [0.5], "the second row has none"
    assert samples.throttling == throttling
