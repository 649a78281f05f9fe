"""The parts of a report: its runs, pages, charts, banner and notes."""

from dataclasses import replace
from pathlib import Path

from sweeps import ddp, reaching, row, rows, trained

from epochmeter.report.analyses.best import Criteria
from epochmeter.report.build import build_report
from epochmeter.report.render import page_markdown, page_part
from epochmeter.report.runs.run import Sweep


def sweep(*runs, unreadable=None):
    return Sweep(Path("multirun/2026-11-20_12-00-00-aa"), runs, unreadable or {})


def names(report):
    return [page.name for page in report.pages]


def test_stall_sweep_has_a_stall_page():
    parts = {"data_stall_s": 0.4, "copy_s": 0.1, "compute_s": 4.5, "overhead_s": 0.2}
    report = build_report(sweep(*rows([5.5, 5.6], [6.7, 6.8], [12.0, 12.1], steady=parts)))
    assert ("stalls" in names(report), bool(report.charts)) == (True, True)
    rehearsed = rows([5.5], [6.7], [12.0], rehearsal=["device=nano"])
    assert "stalls" not in names(build_report(sweep(*rehearsed)))
    assert "stalls" in names(build_report(sweep(*rehearsed), include=["rehearsals"]))


def test_report_has_only_the_selected_runs():
    runs = [trained(number, 100.0, batch=8 + number) for number in range(4)]
    report = build_report(sweep(*runs), where={"batch": [8, 10]})
    assert [run.number for run in report.rows] == [0, 2]
    assert report.notes == ["Chosen: 2 of 4 runs: batch 8 or 10."]


def repeated(name=""):
    """Two configurations of two repeats."""
    runs = [trained(number, 100.0 + number % 2, batch=8 + number // 2, repeat=number % 2) for number in range(4)]
    return [replace(run, sweep=name) for run in runs]


def test_answer_comes_before_the_comparison():
    slower = [replace(run, metrics={**run.metrics, "steady/e2e_s": 20.0}) for run in repeated("before")]
    failed = replace(slower[0], number=4, state="failed")
    report = build_report(sweep(*repeated("after")), sweep(*slower, failed))
    assert names(report) == ["answer", "comparison"]
    assert report.title == "after against before"
    assert report.notes == ["before: Left out: 1 of 5 runs: not completed (failed)."]


def test_gate_compares_with_the_baseline_or_with_another_sweep():
    options = {"criteria": Criteria(baseline={"batch": 8}), "bounds": {"time": 1.2}}
    report = build_report(sweep(*repeated()), **options)
    assert names(report)[:2] == ["answer", "gate"]
    assert [(check["title"], check["verdict"]) for check in report.pages[1].values] == [("batch 9", "passed")]
    report = build_report(sweep(*repeated()), sweep(*repeated("before")), **options)
    assert names(report)[:3] == ["answer", "comparison", "gate"]
    assert len(report.pages[2].values) == 2
    changed, gate = (page_part(page, "opening") for page in report.pages[1:3])
    assert ("1.00 times" in changed, "2 checks" in gate) == (True, True), "the report starts with the change"


def test_run_that_both_sweeps_share_is_not_compared():
    before = [replace(trained(number, 100.0, batch=8 + number), sweep="before") for number in range(2)]
    own = replace(trained(1, 50.0, batch=9), sweep="after")
    after = [replace(before[0], sweep="after", reused="before/0"), own]
    for these, others, ratio in ((after, before, 0.5), (before, after, 2.0)):
        report = build_report(sweep(*these), sweep(*others))
        (compared,) = [page for page in report.pages if page.name == "comparison"]
        assert {run["before"] / run["after"] for run in compared.values["differences"]} == {ratio}
        assert any("before/0" in note and "sweep.again=true" in note for note in report.notes)


def test_target_reached_within_the_warm_up_ranks_the_configurations():
    """One run has no epoch after the warm-up, and no time per epoch."""
    runs = [reaching(n, 60.0 - n, batch=8 + n, steady={"e2e_s": None} if n else {}) for n in range(2)]
    report = build_report(sweep(*runs))
    fastest = report.pages[0].results.choices[0].cost
    assert (fastest.title, fastest.time_s, fastest.target) == ("batch 9", 59.0, (0.9, None, False))
    (targets,) = [page for page in report.pages if page.name == "targets"]
    assert page_part(targets, "opening") == "", "the answer has the best"
    assert "Fastest" not in page_markdown(targets)
    assert report.notes == []


def test_rehearsals_alone_are_reported_below_a_banner_which_two_sweeps_have_once():
    warning = "REHEARSAL, not a result of the requested configuration: rehearse=true."
    before, after = ([row(0, "storage", 1.0, rehearsal=["rehearse=true"], sweep=name)] for name in ("before", "after"))
    result = row(1, "storage", 1.0, sweep="after")
    excluded = "Left out: 1 of 2 runs: rehearsal (rehearse=true)."
    for runs, others, banner, notes in (
        (after, None, [warning], []),
        ([*after, result], None, [], [excluded]),
        (after, sweep(*before), [f"Of both: {warning}"], []),
        ([result], sweep(*before), [f"before: {warning}"], []),
    ):
        report = build_report(sweep(*runs), others)
        assert (report.banner, report.notes) == (banner, notes)


def test_rehearsals_are_in_no_analysis_if_there_are_results():
    why = "2 GPUs asked for, 1 there"
    report = build_report(sweep(trained(0, 100.0), ddp(1, 101.0, rehearsal=[why])))
    assert ([row.number for row in report.rows], names(report)) == ([0], ["answer"])
    assert (report.banner, report.notes) == ([], [f"Left out: 1 of 2 runs: rehearsal ({why})."])


def test_differences_between_hosts_are_noted():
    runs = [replace(trained(n, 100.0, batch=8 + n), platform={"CPU": cpu}) for n, cpu in enumerate(["Xeon", "EPYC"])]
    (note,) = build_report(sweep(*runs)).notes
    assert note.startswith("The runs differ in CPU, ")
    assert build_report(sweep(*runs[:1])).notes == []


def test_power_modes_that_the_runs_set_are_not_noted():
    modes = {"15": "MODE_15W", "MAXN": "MAXN"}
    runs = [replace(trained(number, 100.0, power_limit=limit), platform={"power mode": mode})
            for number, (limit, mode) in enumerate(modes.items())]  # fmt: skip
    assert build_report(sweep(*runs)).notes == []
    assert build_report(sweep(*[replace(run, job=runs[0].job) for run in runs])).notes


def test_unreadable_and_disturbed_runs_are_noted():
    report = build_report(sweep(unreadable={"0": "half of it"}))
    assert (report.rows, report.charts) == ([], [])
    assert report.notes == ["Left out: 1 of 1 runs, whose records cannot be read: 0 (half of it)."]
    shared = {"gpu_shared": "process 7 (python) also computes on gpu0: 3.0 GiB"}
    runs = [replace(trained(number, 100.0), disturbed=shared if number else {}) for number in range(3)]
    notes = build_report(sweep(*runs)).notes
    assert notes == [f"Runs 1, 2: another process used the GPU ({shared['gpu_shared']})."]
