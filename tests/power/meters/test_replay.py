import math
import time
from array import array
from contextlib import closing

import pytest

from epochmeter.power.meters import replay
from epochmeter.power.meters.replay import at, load, open_replay

HEAD = "monotonic_ns,VDD_IN_w,VDD_SOC_w,total_w\n"
BEGUN_NS = 7_000_000_000


@pytest.fixture
def recording(tmp_path):
    """Writes a power.csv of (seconds, watts of VDD_IN, watts of VDD_SOC), each as text; gives its path."""

    def written(*rows: tuple[float, str, str], head: str = HEAD) -> str:
        lines = [f"{BEGUN_NS + round(at_s * 1e9)},{whole},{part},{whole}\n" for at_s, whole, part in rows]
        (tmp_path / "power.csv").write_text(head + "".join(lines))
        return str(tmp_path / "power.csv")

    return written


def opened(file: str | None, **how):
    return closing(open_replay(gpus=[], root="/", file=file, period_s=0.005, **how))


def test_a_recording_is_played_at_the_power_that_it_had(recording):
    with opened(recording((0, "10", "2"), (60, "10", "2"))) as meter:
        meter.read()
        powers = meter.drain(time.monotonic_ns())
        assert set(powers.total_w) == {10.0}
        assert set(powers.watts["VDD_SOC"]) == {2.0}
        assert meter.energy["source"] == "sampled"
        assert meter.energy["covers"] == "recording of VDD_IN"


def test_between_two_samples_power_lies_on_a_straight_line_and_after_the_last_it_begins_anew(monkeypatch):
    times_s, watts = array("d", [0.0, 1.0, 4.0]), array("d", [10.0, 20.0, 5.0])
    seen = []
    for now_s in (100.0, 100.5, 102.5, 104.0, 108.5):
        monkeypatch.setattr(replay.time, "monotonic", lambda now_s=now_s: now_s)
        seen.append(at(times_s, watts, 100.0))
    assert seen == [10.0, 15.0, 12.5, 10.0, 15.0]


def test_where_the_recording_has_no_reading_there_is_none():
    now_s = time.monotonic()
    with pytest.raises(OSError, match=r"the recording has no reading at 0\.\d+ s"):
        at(array("d", [0.0, 60.0]), array("d", [10.0, math.nan]), now_s)


def test_a_recording_is_its_columns_since_its_beginning_and_what_was_unread_is_no_zero(recording):
    times_s, watts = load(recording((0, "10", "2"), (0.5, "11", ""), (1, "12", "3")))
    assert list(times_s) == pytest.approx([0, 0.5, 1])
    assert list(watts) == ["VDD_IN", "VDD_SOC"]
    assert list(watts["VDD_IN"]) == [10, 11, 12]
    assert math.isnan(watts["VDD_SOC"][1])


def test_the_total_is_what_the_table_names(recording):
    file = recording((0, "10", "2"), (60, "10", "2"))
    with opened(file, rails={"total": ["VDD_IN", "VDD_SOC"]}) as meter:
        assert meter.total({"VDD_IN": 10.0, "VDD_SOC": 2.0}) == 12.0
    with opened(file, rails={"total": ["VIN"]}) as meter:
        assert "has no VIN to make the total of: it has VDD_IN, VDD_SOC." in meter.energy["reason"]


def test_a_meter_without_a_file_says_how_to_name_one():
    with opened(None) as meter:
        assert meter.energy["reason"] == "meter=replay plays a recording: name it by meter.file=multirun/.../power.csv"


@pytest.mark.parametrize(
    ("head", "second", "reason"),
    [
        ("a,b,c,d\n", "11", "whose first column is monotonic_ns"),
        (HEAD, None, "at least two samples"),
        (HEAD, "eleven", "could not convert string to float: 'eleven'"),
    ],
)
def test_a_file_that_no_run_left_is_no_meter_and_says_why(recording, head, second, reason):
    file = recording((0, "10", "2"), *([(1, second, "2")] if second else []), head=head)
    with opened(file) as meter:
        assert meter.energy["source"] == "none"
        assert meter.energy["reason"].startswith(f"meter.file={file} cannot be played: ")
        assert reason in meter.energy["reason"]


def test_a_file_that_is_not_there_is_no_meter(tmp_path):
    with opened(str(tmp_path / "gone.csv")) as meter:
        assert "No such file" in meter.energy["reason"]
