"""Power over time: which runs are drawn, and how many samples become few."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.power import choose_runs, powers
from epochmeter.shared.record import Record

SECOND = 1_000_000_000


def sampled(folder, number, watts):
    run = folder / str(number)
    run.mkdir()
    times_ns = [7 * SECOND + index * SECOND for index in range(len(watts))]
    Record(run).append_power(times_ns, {"total": watts})
    return replace(trained(number, 100.0), folder=run)


def test_sample_times_start_at_the_first_and_many_are_means_of_stretches(tmp_path):
    few, many = powers([sampled(tmp_path, 0, [5.0, 6.0, 7.0]), sampled(tmp_path, 1, [*map(float, range(2400))])])
    assert (few.times_s, few.powers_w, few.mean_of_s) == ([0.0, 1.0, 2.0], [5.0, 6.0, 7.0], 0.0)
    assert (len(many.times_s), many.mean_of_s) == (600, pytest.approx(4.0, rel=0.01))
    assert many.powers_w == pytest.approx(many.times_s, abs=2.1)


@pytest.mark.parametrize("text", ["", "monotonic_ns,total_w\n", "monotonic_ns,total_w\n1,2.0\n", "no,power\n1,2\n",
                                  "monotonic_ns,total_w\none,two\n"])  # fmt: skip
def test_record_without_readable_power_has_none(tmp_path, text):
    row = replace(trained(0, 100.0), folder=tmp_path)
    assert powers([row]) == []
    (tmp_path / "power.csv").write_text(text)
    assert powers([row]) == []


def test_chosen_runs_or_the_first_of_at_most_six_configurations_with_power_are_drawn(tmp_path):
    rows = [trained(99, 100.0), *(sampled(tmp_path, number, [5.0, 6.0]) for number in range(8))]
    rows = [replace(run, job={**run.job, "batch": run.number}) for run in rows]
    first, *_ = found = group_repeats(rows)
    drawn = powers(choose_runs(rows, [], [*found, first]))
    assert [each.run.number for each in drawn] == [0, 1, 2, 3, 4, 5]
    assert [each.run.number for each in powers(choose_runs(rows, [2, 99], found))] == [2]
    error = r"report\.power_of=9: the report has no such run\. It has: 0, 1, 2, 3, 4, 5, 6, 7, 99\."
    with pytest.raises(ValueError, match=error):
        choose_runs(rows, [9], [])
