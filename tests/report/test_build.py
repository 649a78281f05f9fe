"""A report as a whole: what it is made of, of what runs."""

from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import row, rows, trained

from epochmeter.report.build import ReportOptions, build_report
from epochmeter.report.runs.run import Sweep
from epochmeter.shared.record import Record


def sweep(*found, unreadable=None):
    return Sweep(Path("multirun/2026-11-20_12-00-00-aa"), found, unreadable or {})


def names(report):
    return [page.name for page in report.pages]


def test_a_sweep_of_stalls_tells_of_them():
    parts = {"data_stall_s": 0.4, "copy_s": 0.1, "compute_s": 4.5, "overhead_s": 0.2}
    told = build_report(sweep(*rows([5.5, 5.6], [6.7, 6.8], [12.0, 12.1], steady=parts)), ReportOptions())
    assert "stalls" in names(told)
    assert told.hints == []
    assert told.charts


def test_of_runs_that_were_made_for_no_analysis_none_is_missed():
    told = build_report(sweep(trained(0, 100.0), trained(1, 110.0, batch=8)), ReportOptions())
    assert not {"stalls", "scaling", "targets"} & set(names(told))
    assert told.hints == []


def test_it_is_told_of_the_runs_that_were_chosen_alone():
    found = [trained(number, 100.0, batch=8 + number) for number in range(4)]
    told = build_report(sweep(*found), ReportOptions(where={"batch": [8, 10]}))
    assert [each.number for each in told.rows] == [0, 2]
    assert told.notes == ["Chosen: 2 of 4 runs: batch 8 or 10."]


def test_the_answer_comes_first_and_after_it_what_changed():
    found = [trained(number, 100.0 + number % 2, batch=8 + number // 2, repeat=number % 2) for number in range(4)]
    slower = [replace(each, sweep="before", metrics={**each.metrics, "steady/e2e_s": 20.0}) for each in found]
    failed = replace(found[0], number=4, state="failed", excluded_because="not completed (failed)", sweep="before")
    told = build_report(
        sweep(*(replace(each, sweep="after") for each in found)), ReportOptions(), sweep(*slower, failed)
    )
    assert names(told) == ["answer", "comparison"]
    assert told.title == "after against before"
    assert told.notes == ["before: Left out: 1 of 5 runs: not completed (failed)."]


def test_a_run_that_both_sweeps_hold_is_no_change_between_them():
    before = [replace(trained(number, 100.0, batch=8 + number), sweep="before") for number in range(2)]
    own = replace(trained(1, 50.0, batch=9), sweep="after")
    reused = replace(before[0], sweep="after", reused="before/0")
    told = build_report(sweep(reused, own), ReportOptions(), sweep(*before))
    (compared,) = [page for page in told.pages if page.name == "comparison"]
    assert {each["before"] / each["after"] for each in compared.values["differences"]} == {0.5}
    assert any("before/0" in note and "sweep.again=true" in note for note in told.notes)
    back = build_report(sweep(*before), ReportOptions(), sweep(reused, own))
    (compared,) = [page for page in back.pages if page.name == "comparison"]
    assert {each["before"] / each["after"] for each in compared.values["differences"]} == {2.0}


def test_what_is_asked_of_the_best_is_told():
    found = [trained(n, 100.0 + n, batch=8 + n, steady={"energy_j": 100.0 - n}) for n in range(3)]
    page = build_report(sweep(*found), ReportOptions(deadline_s=1.0)).pages[0]
    assert any("1 s or less" in sentence for section in page.sections for sentence in section.sentences)
    with pytest.raises(ValueError, match=r"report\.eta=2"):
        build_report(sweep(*found), ReportOptions(eta=2))


def test_target_reached_within_the_warm_up_ranks_the_configurations():
    """One run has no epoch after the warm-up, and no time per epoch."""
    runs = [
        trained(n, 100.0, batch=8 + n, target_accuracy=0.9, steady={"e2e_s": None} if n else {},
                total={"time_to_target_s": 60.0 - n})
        for n in range(2)
    ]  # fmt: skip
    report = build_report(sweep(*runs), ReportOptions())
    assert "Fastest: batch 9: 59.0 s to accuracy of at least 0.9." in report.pages[0].summary
    assert not any("ready batches" in note for note in report.notes)


def test_rehearsals_are_told_below_a_banner_where_there_is_nothing_else():
    rehearsed = row(0, "storage", 1.0, rehearsal=["rehearse=true"])
    told = build_report(sweep(rehearsed), ReportOptions())
    assert told.banner == ["REHEARSAL, no result of what was asked: rehearse=true."]
    told = build_report(sweep(rehearsed, row(1, "storage", 1.0)), ReportOptions())
    assert told.banner == []
    assert told.notes == ["Left out: 1 of 2 runs: a rehearsal (rehearse=true)."]


def test_a_result_is_no_rehearsal_for_one_that_an_analysis_tells_of_beside_it_and_the_answer_leaves_out():
    why = "2 GPUs asked for, 1 there"
    told = build_report(
        sweep(trained(0, 100.0), trained(1, 101.0, strategy="ddp", ranks=2, rehearsal=[why])), ReportOptions()
    )
    assert [row.number for row in told.rows] == [0]
    assert (told.banner, told.notes) == ([], [f"Left out: 1 of 2 runs: a rehearsal ({why})."])
    firsts = {page.name: page.sections[0].sentences for page in told.pages if page.name != "answer"}
    said = [f"REHEARSAL, no result of what was asked (run 1): {why}.", "The rest of the report leaves that out."]
    assert firsts == {"scaling": said, "questions": said}


def test_what_must_be_known_of_two_sweeps_is_said_once_where_it_is_the_same_of_both():
    said = "REHEARSAL, no result of what was asked: rehearse=true."
    before, same = ([row(0, "storage", 1.0, rehearsal=["rehearse=true"], sweep=name)] for name in ("before", "after"))
    told = build_report(sweep(*same), ReportOptions(), sweep(*before))
    assert (told.banner, told.notes) == ([f"Of both: {said}"], [])
    result = [row(0, "storage", 1.0, sweep="after")]
    assert build_report(sweep(*result), ReportOptions(), sweep(*before)).banner == [f"before: {said}"]


def test_hosts_that_differ_are_on_the_page():
    found = [replace(trained(n, 100.0, batch=8 + n), platform={"CPU": cpu}) for n, cpu in enumerate(["Xeon", "EPYC"])]
    assert names(build_report(sweep(*found), ReportOptions()))[-1] == "differences"
    assert "differences" not in names(build_report(sweep(*found[:1]), ReportOptions()))


def test_the_power_of_a_run_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"report\.power_of=7: the report has no such run\. It has: 0\."):
        build_report(sweep(trained(0, 100.0)), ReportOptions(power_of=[7]))


def test_the_power_of_any_run_that_is_told_of_is_drawn(tmp_path):
    """One without an epoch after its warm-up, and a rehearsal that an analysis alone tells of."""
    found = [trained(0, 100.0), trained(1, 190.0, strategy="ddp", ranks=2, rehearsal=["2 GPUs asked for, 1 there"]),
             trained(2, 100.0, steady={"e2e_s": None}, batch=8)]  # fmt: skip
    for each in found:
        (tmp_path / str(each.number)).mkdir()
        Record(tmp_path / str(each.number)).append_power([0, 10**9], {"total": [5.0, 6.0]})
    rows = [replace(each, folder=tmp_path / str(each.number)) for each in found]
    told = build_report(sweep(*rows), ReportOptions(power_of=[2, 1]))
    (chart,) = [chart for chart in told.charts if chart.name == "power"]
    assert [*dict.fromkeys(row["panel"] for row in chart.spec["datasets"]["values"])] == ["run 1", "run 2"]
    assert not any("not drawn" in note for note in told.notes)


def test_runs_that_cannot_be_read_alone_are_told_of_as_such():
    told = build_report(sweep(unreadable={"0": "half of it"}), ReportOptions())
    assert (told.rows, told.charts) == ([], [])
    assert told.notes == ["Left out: 1 of 1 runs, whose records cannot be read: 0 (half of it)."]


def test_disturbed_runs_are_named():
    shared = {"gpu_shared": "process 7 (python) also computes on gpu0: 3.0 GiB, 45% utilization"}
    found = [replace(trained(number, 100.0), disturbed=shared if number else {}) for number in range(3)]
    assert build_report(sweep(*found), ReportOptions()).notes == [
        f"Runs 1, 2: another process used the GPU ({shared['gpu_shared']})."
    ]
