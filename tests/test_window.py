from array import array
from types import SimpleNamespace

import pytest

from trainmeter import window
from trainmeter.power.meter import Absent, Counter, Counters, Domain
from trainmeter.record import Record
from trainmeter.window import Border, border, closed

SECOND = 1_000_000_000
OPENED = {"window": "epoch", "epoch": 3, "steps": 2}
PARTS = {"e2e_s": 4.0, "fetch_stall_s": 1.0, "clock_residual_s": -0.003, "steps": 2, "samples": 20}
MEASURED = {
    "parts": PARTS,
    "loss": 0.7,
    "accuracy": 0.8,
    "opened_ns": 100 * SECOND,
    "closed_ns": 104 * SECOND,
}


def meter(*domains, source="counter", read=lambda: 0.0):
    return Counters({name: Counter(Domain(source, 0.1, name), read) for name in domains}, covers="all that is scripted")


def at(seconds, **joules):
    return Border(round(seconds * SECOND), joules)


@pytest.fixture
def record(tmp_path):
    """A record whose last two steps took 1 s and 3 s, after one of another epoch that took 50 s."""
    record = Record(tmp_path)
    record.append_steps(array("f", [0, 0, 0, 50]))
    record.append_steps(array("f", [0, 0, 0, 1, 1, 1, 1, 1]))
    return record


@pytest.fixture
def metrics(record):
    """metrics(before, after, meter) -> the metrics of an epoch between these borders."""
    return lambda before, after, meter: closed(OPENED, MEASURED, before, after, meter, record).line["metrics"]


def test_a_line_holds_the_workers_times_and_the_borders_times_apart(record):
    found = closed(OPENED, MEASURED, at(99.99, gpu0=10), at(104.01, gpu0=30), meter("gpu0"), record).line
    assert (found["window"], found["epoch"]) == ("epoch", 3)
    assert (found["opened_ns"], found["closed_ns"]) == (100 * SECOND, 104 * SECOND)
    assert found["energy"] == {"opened_ns": 99.99 * SECOND, "closed_ns": 104.01 * SECOND, "joules": {"gpu0": 20}}


def test_the_parts_are_metrics_under_the_windows_name(metrics):
    found = metrics(at(99.99), at(104.01), Absent("none"))
    assert {name: found[f"epoch/{name}"] for name in PARTS} == PARTS
    assert found["epoch/train_loss"] == 0.7
    assert found["epoch/train_accuracy"] == 0.8
    assert all(name.startswith("epoch/") for name in found)


def test_throughput_is_samples_by_end_to_end_time(metrics):
    assert metrics(at(99.99), at(104.01), Absent("none"))["epoch/samples_per_s"] == 20 / 4


def test_energy_is_what_the_counters_differ_by_of_each_domain_and_in_all(metrics):
    found = metrics(at(99.99, cpu0=100, dram0=7), at(104.01, cpu0=130, dram0=9), meter("cpu0", "dram0"))
    assert found["epoch/energy_j"] == 32
    assert (found["epoch/energy_cpu0_j"], found["epoch/energy_dram0_j"]) == (30, 2)
    assert found["epoch/energy_per_sample_j"] == 32 / 20


def test_mean_power_divides_by_the_energy_window_and_not_by_the_time_window(metrics):
    assert metrics(at(99.99, gpu0=0), at(104.02, gpu0=40), meter("gpu0"))["epoch/power_mean_w"] == pytest.approx(
        40 / 4.03
    )


def test_where_nothing_meters_no_metric_speaks_of_energy(metrics):
    found = metrics(at(99.99), at(104.01), Absent("no meter"))
    assert not [name for name in found if "energy" in name or "power" in name]


def test_an_estimate_is_no_energy_and_makes_no_power(metrics):
    found = metrics(at(99.99, cpu=1), at(104.01, cpu=5), meter("cpu", source="estimated"))
    assert [name for name in found if "energy" in name or "power" in name] == ["epoch/estimated_energy_j"]
    assert found["epoch/estimated_energy_j"] == 4


def test_a_total_that_lacks_a_domain_is_absent_and_the_other_domain_remains(record):
    found = closed(OPENED, MEASURED, at(99.99, gpu0=1, gpu1=1), at(104.01, gpu0=3), meter("gpu0", "gpu1"), record).line
    assert [name for name in found["metrics"] if "energy" in name or "power" in name] == ["epoch/energy_gpu0_j"]
    assert found["energy"]["joules"] == {"gpu0": 2}


@pytest.mark.parametrize("after", [5, 2], ids=["stood still", "ran backwards"])
def test_a_counter_that_tells_nothing_leaves_no_joules_in_the_record(record, after):
    found = closed(OPENED, MEASURED, at(99.99, gpu0=5), at(104.01, gpu0=after), meter("gpu0"), record).line
    assert found["energy"]["joules"] == {}
    assert "epoch/energy_j" not in found["metrics"]


def test_percentiles_are_of_this_epochs_own_steps(metrics):
    found = metrics(at(99.99), at(104.01), Absent("none"))
    assert (found["epoch/step_p50_s"], found["epoch/step_p99_s"]) == (1, 3)


def test_an_evaluation_says_what_it_cost_and_what_it_found_alone(record):
    opened = {"window": "val", "epoch": 3, "steps": 2}
    found = closed(opened, MEASURED, at(99.99, gpu0=10), at(104.01, gpu0=30), meter("gpu0"), record).line
    assert found["metrics"] == {"val/e2e_s": 4.0, "val/loss": 0.7, "val/accuracy": 0.8, "val/energy_j": 20}


def test_an_evaluations_estimate_is_kept_as_one(record):
    opened = {"window": "val", "epoch": 3, "steps": 2}
    found = closed(opened, MEASURED, at(99.99, cpu=1), at(104.01, cpu=2), meter("cpu", source="estimated"), record).line
    assert found["metrics"].keys() == {"val/e2e_s", "val/loss", "val/accuracy", "val/estimated_energy_j"}


def test_a_border_is_stamped_with_the_middle_of_its_reading(monkeypatch):
    clock = SimpleNamespace(now_ns=1000)
    monkeypatch.setattr(window, "time", SimpleNamespace(monotonic_ns=lambda: clock.now_ns))

    def slow_read():
        clock.now_ns += 600
        return 7.0

    assert border(meter("gpu0", read=slow_read)) == Border(1300, {"gpu0": 7.0})


def test_counters_read_long_after_a_window_leave_it_without_energy_and_say_so(record):
    late = closed(OPENED, MEASURED, at(99.99, gpu0=10), at(704, gpu0=30), meter("gpu0"), record)
    assert not [name for name in late.line["metrics"] if "energy" in name or "power" in name]
    assert late.notes == ["epoch window 3: no energy, since 604.010 s passed between the counters' readings around it."]


def test_a_training_that_diverged_has_no_loss_and_says_so(record):
    diverged = closed(OPENED, {**MEASURED, "loss": float("nan")}, at(99.99), at(104.01), Absent("none"), record)
    assert "epoch/train_loss" not in diverged.line["metrics"]
    assert diverged.line["metrics"]["epoch/train_accuracy"] == 0.8
    assert diverged.notes == ["epoch window 3: train_loss was nan, and is left out."]


def test_clocks_that_disagree_by_more_than_a_thousandth_are_told(record):
    parted = {**MEASURED, "parts": {**PARTS, "clock_residual_s": -0.02}}
    assert closed(OPENED, MEASURED, at(99.99), at(104.01), Absent("none"), record).notes == []
    told = closed(OPENED, parted, at(99.99), at(104.01), Absent("none"), record).notes
    assert told == ["epoch window 3: its parts miss 0.50% of its end-to-end time."]
