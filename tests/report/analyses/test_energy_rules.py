"""Energy by the rules of the edge tutorial, from power samples with known values."""

from dataclasses import replace

import pytest
from golden import assert_golden
from sweeps import costing, write

from epochmeter.report.analyses import energy_rules
from epochmeter.report.runs.load import load_run
from epochmeter.shared.record import POWER

SECOND = 10**9
STUDY = {"experiment": "edge/lenet_mnist"}


def sampled(sweep, number, columns="monotonic_ns,VDD_IN_w,total_w", *, rows=None, source="sampled"):
    """Return a run of the study with three epochs of 2.5 s: 4 W, and 8 W in the second half of each second.

    Samples are 0.1 s apart; the first epoch is the warm-up.
    """
    steady = {"energy_j": 15.0, "power_mean_w": 6.0, "steps": 25.0, "e2e_s": 2.5}
    of = costing(number, 2.5, 15.0, steady=steady, typed=STUDY)
    record = write(sweep, of, energy={"source": source, "covers": "module", "domains": ["VDD_IN"]})
    for epoch in range(3):
        opened_ns = (1 + 5 * epoch) * SECOND // 2
        borders = {"opened_ns": opened_ns, "closed_ns": opened_ns + 5 * SECOND // 2, "warmup": epoch == 0}
        record.append({"window": "epoch", "epoch": epoch, "metrics": {"epoch/energy_j": 15.0}, **borders})
    if rows is None:
        rows = [f"{n * SECOND // 10},1,{8 if n % 10 >= 5 else 4}" for n in range(90)]
    (record.folder / POWER).write_text("\n".join([columns, *rows, ""]))
    return load_run(record.folder)


def test_readings_per_second_and_per_step_are_summed_times_a_second(tmp_path):
    (energy,) = energy_rules.analyze([sampled(tmp_path, 0)]).runs
    # Readings of 4 W, at 3, 4 and 5 s in the second epoch, and at 6 and 7 s in the third.
    assert energy.per_second_j == pytest.approx((3 * 4 + 2 * 4) / 2)
    assert (energy.energy_j, energy.per_step_j, energy.step_s) == (15.0, 6.0 * 25, 0.1)


@pytest.mark.parametrize(
    "samples",
    [
        {"columns": "monotonic_ns,VDD_IN_w"},
        {"rows": ["5000000000,1,4", "1000000000,1,4"]},
        {"rows": ["damaged"]},
        {"rows": []},
        {"rows": ["3500000000,1,7"]},
        {"source": "counter"},
    ],
    ids=["no total", "two boots", "damaged", "empty", "none in an epoch", "no samples"],
)
def test_without_samples_of_the_power_the_rule_of_the_text_has_no_energy(tmp_path, samples):
    (energy,) = energy_rules.analyze([sampled(tmp_path, 0, **samples)]).runs
    assert (energy.per_second_j, energy.per_step_j) == (None, 150.0)


def test_lines_without_a_reading_or_that_are_incomplete_are_passed_over(tmp_path):
    rows = [
        "500000000,1,",
        "3000000000,1,",
        "3500000000,1,7",
        "4100000000,1,9",
        "4600000000,1,5",
        "6600000000,1,3",
        "6700000000,1",
    ]
    (energy,) = energy_rules.analyze([sampled(tmp_path, 0, rows=rows)]).runs
    assert energy.per_second_j == (7 + 5 + 3) / 2


def test_runs_of_boards_count_and_those_without_energy_or_of_other_studies_do_not(tmp_path):
    run = sampled(tmp_path, 0)
    board = replace(run, experiment=None, platform={"board": "NVIDIA Jetson Nano"})
    assert energy_rules.analyze([board]).runs
    assert energy_rules.analyze([replace(run, experiment=None)]) is None
    without = {name: value for name, value in run.metrics.items() if name != "steady/energy_j"}
    assert energy_rules.analyze([replace(run, metrics=without)]) is None
    assert energy_rules.analyze([]) is None


def test_runs_of_a_large_sweep_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(energy_rules, "MAX_RUNS", 2)
    runs = [sampled(tmp_path, number) for number in range(3)]
    result = energy_rules.analyze(runs)
    assert ([energy.number for energy in result.runs], result.others) == ([0, 1], 1)
    assert_golden("energy_rules", result)
