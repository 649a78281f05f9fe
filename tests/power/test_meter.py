from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from trainmeter.power.meter import (
    SOURCES,
    Absent,
    Counter,
    Counters,
    Domain,
    open_meter,
    spent,
    unmetered,
    window_energy,
)

CONF = Path(__file__).parents[2] / "conf/meter"


def counters(source: str = "counter", **read) -> Counters:
    return Counters({name: Counter(Domain(source, 0.1, name), at) for name, at in read.items()}, covers="all")


def test_a_window_is_a_subtraction():
    assert spent({"cpu0": 100.0, "dram0": 7.0}, {"cpu0": 130.0, "dram0": 7.5}) == {"cpu0": 30.0, "dram0": 0.5}


@pytest.mark.parametrize("after", [{}, {"cpu0": 100.0}, {"cpu0": 3.0}], ids=["unread", "stood still", "reset"])
def test_a_counter_that_tells_nothing_gives_no_energy_and_never_0(after):
    meter = counters(cpu0=float)
    assert window_energy({"cpu0": 100.0}, after, meter, 1) == {}
    assert [reason.partition(",")[0] for reason in unmetered({"cpu0": 100.0}, after, meter, 1)] == ["no energy of cpu0"]


def test_where_one_domain_is_missing_the_others_remain_and_the_total_does_not():
    meter = counters(gpu0=float, gpu1=float)
    assert window_energy({"gpu0": 1.0, "gpu1": 1.0}, {"gpu0": 3.0}, meter, 1) == {"energy_gpu0_j": 2.0}


@pytest.mark.parametrize("source", ["counter", "estimated"])
def test_a_window_that_lasts_less_than_ten_ticks_of_its_counter_has_no_energy_and_says_so(source):
    meter = counters(source, gpu0=float)  # it ticks every 0.1 s
    before, after = {"gpu0": 1.0}, {"gpu0": 3.0}
    assert window_energy(before, after, meter, 0.08) == {}
    assert unmetered(before, after, meter, 0.08) == [
        "0.08 s is too short for gpu0's counter, which ticks every 0.1 s: energy takes 10 ticks."
    ]
    assert 2.0 in window_energy(before, after, meter, 1.0).values()
    assert unmetered(before, after, meter, 1.0) == []


def test_a_window_too_short_for_one_counter_has_the_energy_of_the_others_and_no_total():
    domains = {"cpu0": Domain("counter", 0.001, "CPU package"), "gpu0": Domain("counter", 0.1, "GPU board")}
    meter = Counters({name: Counter(domain, float) for name, domain in domains.items()}, covers="all")
    assert window_energy({"cpu0": 1, "gpu0": 1}, {"cpu0": 3, "gpu0": 9}, meter, 0.5) == {"energy_cpu0_j": 2}


def test_a_run_of_short_windows_has_its_total_from_its_first_reading_to_its_last():
    meter = counters(gpu0=float)
    readings = [{"gpu0": joules} for joules in (100.0, 100.0, 140.0, 140.0, 180.0)]  # one every 0.4 s
    assert [window_energy(before, after, meter, 0.4) for before, after in pairwise(readings)] == [{}] * 4
    assert window_energy(readings[0], readings[-1], meter, 1.6)["energy_j"] == 80


def test_an_estimate_is_never_mixed_with_measurements():
    meter = counters(source="estimated", cpu=float)
    assert window_energy({"cpu": 1.0}, {"cpu": 3.0}, meter, 1) == {"estimated_energy_j": 2.0}


def test_a_sum_is_as_good_as_its_worst_part():
    parts = {source: Counter(Domain(source, 0.1, source), float) for source in SOURCES}
    assert Counters(parts, covers="all").energy["source"] == "estimated"


def test_a_read_that_fails_is_left_out_and_ends_nothing(caplog):
    def gone() -> float:
        raise OSError("No such device")

    assert counters(cpu0=lambda: 5.0, gpu0=gone).read() == {"cpu0": 5.0}
    assert "The energy of gpu0 cannot be read: No such device" in caplog.text


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configured_meter_opens_on_a_machine_without_sensors(path, machine):
    spec = yaml.safe_load(path.read_text())
    meter = open_meter(spec, gpus=[], root=machine.root)
    reading = meter.read()
    assert spec["name"] == path.stem
    assert path.read_text().startswith("# ")
    assert meter.energy["source"] == "none"
    assert meter.energy["reason"]
    assert window_energy(reading, meter.read(), meter, 1) == {}
    meter.close()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none", "meter=none: the job asks for no energy."),
        ("unread", "This version does not read the power sensors of Jetsons and AMD GPUs yet."),
    ],
)
def test_a_job_that_asks_for_no_energy_and_a_machine_that_is_not_read_differ_in_their_reason(name, reason):
    spec = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    assert open_meter(spec, gpus=[]).energy == {"source": "none", "covers": None, "reason": reason}


def test_the_absent_meter_says_why():
    assert Absent("there is none").energy == {"source": "none", "covers": None, "reason": "there is none"}
