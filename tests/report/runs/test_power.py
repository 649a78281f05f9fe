"""Power over time: which runs are drawn, and how many samples become few."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.power import chosen, missing_power_note, power, powers
from epochmeter.shared.record import Record

SECOND = 1_000_000_000


def sampled(folder, number, watts):
    run = folder / str(number)
    run.mkdir()
    times_ns = [7 * SECOND + index * SECOND for index in range(len(watts))]
    Record(run).append_power(times_ns, {"total": watts})
    return replace(trained(number, 100.0), folder=run)


def test_sample_times_start_at_the_first(tmp_path):
    told = power(sampled(tmp_path, 0, [5.0, 6.0, 7.0]))
    assert (told.times_s, told.powers_w, told.mean_of_s) == ([0.0, 1.0, 2.0], [5.0, 6.0, 7.0], 0.0)


def test_many_samples_are_means_of_stretches(tmp_path):
    told = power(sampled(tmp_path, 0, [float(index) for index in range(2400)]))
    assert len(told.times_s) == 600
    assert told.mean_of_s == pytest.approx(4.0, rel=0.01)
    assert told.powers_w == pytest.approx(told.times_s, abs=2.1)


@pytest.mark.parametrize("text", ["", "monotonic_ns,total_w\n", "monotonic_ns,total_w\n1,2.0\n", "no,power\n1,2\n",
                                  "monotonic_ns,total_w\none,two\n"])  # fmt: skip
def test_record_without_readable_power_has_none(tmp_path, text):
    row = replace(trained(0, 100.0), folder=tmp_path)
    assert power(row) is None
    (tmp_path / "power.csv").write_text(text)
    assert power(row) is None


def test_requested_runs_or_first_runs_of_the_best(tmp_path):
    rows = [trained(0, 100.0), trained(1, 101.0, repeat=1), trained(2, 90.0, batch=8)]
    found = group_repeats(rows)
    assert [row.number for row in chosen(rows, [1, 2])] == [1, 2]
    assert [row.number for row in chosen(rows, [], [found[1], found[0], found[1]])] == [2, 0]
    assert chosen(rows) == []


def test_runs_without_a_folder_or_power_are_passed_over_and_no_more_than_six_are_drawn(tmp_path):
    rows = [trained(99, 100.0), *(sampled(tmp_path, number, [5.0, 6.0]) for number in range(8))]
    told = powers(rows)
    assert [each.row.number for each in told] == [0, 1, 2, 3, 4, 5]
    assert missing_power_note(rows[1:], told) == [
        "Power over time is not drawn of runs 6, 7: no more than 6 are drawn."
    ]
    assert missing_power_note(rows[:2], powers(rows[:2])) == [
        "Power over time is not drawn of run 99: no record here has sampled power of it."
    ]
    assert missing_power_note(rows[1:7], told) == []
