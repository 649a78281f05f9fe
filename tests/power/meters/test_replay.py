import math
from array import array
from contextlib import closing

import pytest

from epochmeter.power.meters import replay
from epochmeter.power.meters.replay import load_recording, open_replay, watts_at

HEAD = "monotonic_ns,VDD_IN_w,VDD_SOC_w,total_w\n"
BEGUN_NS = 7_000_000_000


@pytest.fixture
def recording(tmp_path):
    """recording((seconds, watts of VDD_IN, watts of VDD_SOC), ...): write a power.csv and return its path."""

    def written(*rows: tuple[float, str, str], head: str = HEAD) -> str:
        lines = [f"{BEGUN_NS + round(at_s * 1e9)},{module},{soc},{module}\n" for at_s, module, soc in rows]
        (tmp_path / "power.csv").write_text(head + "".join(lines))
        return str(tmp_path / "power.csv")

    return written


def opened(file: str | None, **how):
    return closing(open_replay(gpus=[], root="/", file=file, period_s=0.005, **how))


def test_replay_interpolates_and_repeats_and_has_no_power_in_a_gap(monkeypatch):
    times_s, watts = array("d", [0.0, 1.0, 4.0]), array("d", [10.0, 20.0, 5.0])
    powers_w = []
    for now_s in (100.0, 100.5, 102.5, 104.0, 108.5):
        monkeypatch.setattr(replay.time, "monotonic", lambda now_s=now_s: now_s)
        powers_w.append(watts_at(times_s, watts, 100.0))
    assert powers_w == [10.0, 15.0, 12.5, 10.0, 15.0]
    with pytest.raises(OSError, match=r"the recording has no reading at 0\.50 s"):
        watts_at(times_s, array("d", [10.0, math.nan, 5.0]), 108.0)


def test_loaded_recording_has_nan_for_missing_readings(recording):
    times_s, watts = load_recording(recording((0, "10", "2"), (0.5, "11", ""), (1, "12", "3")))
    assert list(times_s) == pytest.approx([0, 0.5, 1])
    assert list(watts) == ["VDD_IN", "VDD_SOC"]
    assert list(watts["VDD_IN"]) == [10, 11, 12]
    assert math.isnan(watts["VDD_SOC"][1])


def test_total_is_that_of_the_rail_table(recording):
    file = recording((0, "10", "2"), (60, "10", "2"))
    with opened(file, rails={"total": ["VDD_IN", "VDD_SOC"]}) as meter:
        assert meter.total({"VDD_IN": 10.0, "VDD_SOC": 2.0}) == 12.0
    with opened(file, rails={"total": ["VIN"]}) as meter:
        assert "names VIN for the total, but there is only VDD_IN, VDD_SOC." in meter.energy["reason"]


@pytest.mark.parametrize(
    ("head", "second", "reason"),
    [
        ("a,b,c,d\n", "11", "column monotonic_ns"),
        ("monotonic_ns,total_w\n", "11", "no power of a domain"),
        (HEAD, None, "at least two samples"),
        (HEAD, "eleven", "could not convert string to float: 'eleven'"),
        (HEAD, "1" * 200_000, "field larger than field limit"),
    ],
)
def test_file_that_is_not_a_recording_is_refused_with_the_reason(recording, head, second, reason):
    file = recording((0, "10", "2"), *([(1, second, "2")] if second else []), head=head)
    with opened(file) as meter:
        assert meter.energy["source"] == "none"
        assert file in meter.energy["reason"]
        assert reason in meter.energy["reason"]
