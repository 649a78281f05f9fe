"""The parts of a report: its runs, pages, charts, banner and notes."""

from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import ddp, reaching, row, rows, trained

from epochmeter.report.analyses.best import Criteria
from epochmeter.report.build import build_report
from epochmeter.report.output.report import first_sentences
from epochmeter.report.output.table import columns_and_rows
from epochmeter.report.render import page_markdown, page_part
from epochmeter.report.runs.run import Sweep
from epochmeter.shared.problem import Problem

REHEARSAL = "REHEARSAL, not a result of the requested configuration: rehearse=true."


def sweep(*runs, unreadable=None):
    return Sweep(Path("multirun/2026-11-20_12-00-00-aa"), runs, unreadable or {})


def pages(report):
    return {page.name: page for page in report.pages}


def test_stall_sweep_has_a_stall_page_unless_it_is_rehearsed():
    parts = {"data_stall_s": 0.4, "copy_s": 0.1, "compute_s": 4.5, "overhead_s": 0.2}
    report = build_report(sweep(*rows([5.5, 5.6], [6.7, 6.8], [12.0, 12.1], steady=parts)))
    assert ([*pages(report)], bool(report.charts)) == (["stalls", "answer"], True), "the subject comes first"
    rehearsed = sweep(*rows([5.5], [6.7], [12.0], rehearsal=["device=nano"]))
    assert "stalls" not in pages(build_report(rehearsed))
    assert "stalls" in pages(build_report(rehearsed, include=["rehearsals"]))


def test_stall_analysis_ranks_runs_from_storage_and_leaves_advice_to_its_page():
    parts = {"data_stall_s": 9.0, "compute_s": 3.0, "loader_read_s": 1.0, "loader_preprocess_s": 8.0}
    every = rows([5.5], [6.7], [12.0], steady={**parts, "copy_s": 0.0, "overhead_s": 0.0, "loader_decode_s": 0.0})
    for runs, ranked, bottlenecks, keys, notes in (
        (every, [2], {"fetch_stall": 1}, [], ["on synthetic batches", "on a warm page cache"]),
        (every[1:], [1, 2], {"prep_stall": 2}, ["workers", "dataset.layout"], []),
    ):
        report = build_report(sweep(*runs))
        answer = pages(report)["answer"]
        assert [run.number for cost in answer.results.costs for run in cost.configuration.runs] == ranked
        assert answer.values["bottlenecks"] == bottlenecks, "that of the stall analysis, else by the timers"
        assert [suggestion["key"] for suggestion in answer.values["what_next"]] == keys
        assert [(note.startswith("Not ranked: 1 configuration"), expected in note)
                for note, expected in zip(report.notes, notes, strict=True)] == [(True, True)] * len(notes)  # fmt: skip


def test_heading_has_the_workload_and_the_keys_that_differ():
    def heading(*runs):
        return build_report(sweep(*runs)).heading

    run, script = trained(0, 100.0, batch=8), {"measure": {"command": ["/home/me/train.py", "--lr", "0.1"]}}
    assert heading(run) == "resnet152 on jpeg"
    assert heading(run, trained(1, 100.0, batch=16)) == "resnet152 on jpeg: batch"
    assert heading(run, trained(1, 100.0, batch=16, model="resnet50")) == "2 models on jpeg: model x batch"
    many = {"workers": 9, "precision": "bf16", "prefetch": 9}
    assert heading(run, trained(1, 100.0, batch=16, **many)).endswith(": batch x workers x precision x prefetch")
    assert heading(run, trained(1, 100.0, batch=16, **many, compile=True)).endswith(" x 1 more")
    assert heading(trained(0, 100.0, **script)) == "train.py"


def repeated(name=""):
    """Two configurations of two repeats."""
    runs = [trained(number, 100.0 + number % 2, batch=8 + number // 2, repeat=number % 2) for number in range(4)]
    return [replace(run, sweep=name) for run in runs]


def test_comparison_and_gate_come_before_the_answer():
    options = {"criteria": Criteria(baseline={"batch": 8}), "bounds": {"time": 1.2}}
    by_name = pages(build_report(sweep(*repeated()), **options))
    assert [*by_name][:2] == ["gate", "answer"]
    assert [(check["title"], check["verdict"]) for check in by_name["gate"].values] == [("batch 9", "passed")]
    before = repeated("before")
    report = build_report(
        sweep(*repeated("after")), sweep(*before, replace(before[0], number=4, state="failed")), **options
    )
    assert report.title == "after against before"
    assert report.notes == ["before: Left out: 1 of 5 runs: not completed (failed)."]
    by_name = pages(report)
    assert [*by_name][:3] == ["comparison", "gate", "answer"]
    assert len(by_name["gate"].values) == 2
    changed, gate = (page_part(by_name[name], "opening", is_plain=True) for name in ("comparison", "gate"))
    assert ("1.000 times" in changed, "Both checks" in gate) == (True, True), "the report starts with the change"


def test_answer_comparison_and_gate_state_how_many_of_their_runs_were_disturbed():
    before, after = repeated("before"), repeated("after")
    before[:2] = [replace(run, disturbed=SHARED) for run in before[:2]]
    after[0] = replace(after[0], disturbed={"cpu_shared": "epoch 1: load"})
    by_name = pages(build_report(sweep(*after), sweep(*before), bounds={"time": 1.2}))
    both = "3 of 8 runs were disturbed (another process used the GPU; other processes used the processor): "
    one = "1 of 4 runs was disturbed (other processes used the processor): "
    advice = "remove the cause, and measure again with sweep.again=true."
    assert {name: page.warning for name, page in by_name.items()} == {
        "comparison": both + advice, "gate": both + advice, "answer": one + advice,
    }  # fmt: skip
    assert page_markdown(by_name["gate"]).startswith(f"**{both}{advice}**\n\n**Both checks passed.**")
    assert {page.warning for page in build_report(sweep(*repeated())).pages} == {""}


def test_oversubscribed_runs_are_noted_apart_from_disturbed_ones():
    text = "epoch 1: oversubscribed: 2 DataLoader workers + 2 threads on 2 cores"
    runs = [replace(run, oversubscribed=text if number else "") for number, run in enumerate(repeated())]
    runs[0] = replace(runs[0], disturbed=SHARED)
    report = build_report(sweep(*runs))
    numbers = ", ".join(str(run.number) for run in runs[1:])
    assert f"Oversubscribed runs {numbers}: epoch 1: 2 DataLoader workers + 2 threads on 2 cores." in report.notes
    (warning,) = {page.warning for page in report.pages if page.name == "answer"}
    assert warning.startswith("1 of 4 runs was disturbed (another process used the GPU): ")
    assert " 3 of 4 runs were oversubscribed, with more threads ready to run than cores: " in warning


def test_run_that_both_sweeps_share_is_not_compared():
    before = [replace(trained(number, 100.0, batch=8 + number), sweep="before") for number in range(2)]
    own = replace(trained(1, 50.0, batch=9), sweep="after")
    after = [replace(before[0], sweep="after", reused="before/0"), own]
    for these, others, ratio in ((after, before, 0.5), (before, after, 2.0)):
        report = build_report(sweep(*these), sweep(*others))
        differences = pages(report)["comparison"].values["differences"]
        assert {run["before"] / run["after"] for run in differences} == {ratio}
        assert any("before/0" in note and "sweep.again=true" in note for note in report.notes)


def test_target_reached_within_the_warm_up_ranks_the_configurations():
    """One run has no epoch after the warm-up, and no time per epoch."""
    report = build_report(
        sweep(*(reaching(n, 60.0 - n, batch=8 + n, steady={"e2e_s": None} if n else {}) for n in range(2)))
    )
    by_name = pages(report)
    fastest = by_name["answer"].results.choices[0].cost
    assert (fastest.title, fastest.time_s, fastest.target) == ("batch 9", 59.0, (0.9, None, False))
    assert page_part(by_name["targets"], "opening") == "", "the answer has the best"
    assert "Fastest" not in page_markdown(by_name["targets"])
    assert report.notes == []


def test_batch_that_failed_is_not_suggested():
    done, failed = trained(0, 100.0), replace(trained(1, 100.0, batch=128), state="failed")
    suggested = [pages(build_report(sweep(*runs)))["answer"].values["what_next"] for runs in ([done], [done, failed])]
    assert [[suggestion["key"] for suggestion in each] for each in suggested] == [["batch"], []]


def test_rehearsals_are_reported_alone_below_a_banner_of_each_sweep():
    before, after = ([row(0, "storage", 1.0, rehearsal=["rehearse=true"], sweep=name)] for name in ("before", "after"))
    result = row(1, "storage", 1.0, sweep="after")
    excluded = "Left out: 1 of 2 runs: rehearsal (rehearse=true)."
    for runs, others, banner, notes in (
        (after, None, [REHEARSAL], []),
        ([*after, result], None, [], [excluded]),
        (after, sweep(*before), [REHEARSAL, f"before: {REHEARSAL}"], []),
        ([result], sweep(*before), [f"before: {REHEARSAL}"], []),
    ):
        report = build_report(sweep(*runs), others)
        assert (report.banner, report.notes) == (banner, notes)
    report = build_report(sweep(trained(0, 100.0), ddp(1, 101.0, rehearsal=["rehearse=true"])))
    assert ([run.number for run in report.runs], [*pages(report)]) == ([0], ["answer"])


PLATFORMS = [{"CPU": cpu, "power mode": mode} for cpu, mode in (("Xeon", "15W"), ("EPYC", "MAXN"))]
MODES = [replace(trained(n, 9.0, power_limit=limit), platform={"power mode": str(limit)})
         for n, limit in enumerate(("15", "MAXN"))]  # fmt: skip
SHARED = {"gpu_shared": "process 7 (python) also computes on gpu0: 3.0 GiB"}
EPOCHS = [{"epoch/e2e_s": 9.0, **({"epoch/energy_j": 5.0} if number in (1, 3) else {})} for number in range(4)]


def test_chosen_excluded_disturbed_partly_metered_and_different_runs_are_noted():
    for content, options, numbers, notes in (
        (sweep(*(trained(n, 100.0, batch=8 + n) for n in range(4))), {"where": {"batch": [8, 10]}}, [0, 2],
         ["Chosen: 2 of 4 runs: batch 8 or 10."]),
        (sweep(*(replace(trained(n, 9.0, batch=8 + n), platform=own) for n, own in enumerate(PLATFORMS))), {}, [0, 1],
         ["The runs differ in CPU, power mode, which may explain differences between them: see the columns `host.` in "
          "report.csv."]),
        (sweep(*(trained(n, 9.0, steady={"energy_j": joules}, batch=8 + n, epochs=EPOCHS[: 4 - 2 * n])
                 for n, joules in enumerate((5.0, 5.0, None)))), {}, [0, 1, 2],
         ["Mean energies are mean power times mean time, as not all epochs have an energy: run 0 (2 of 3)."]),
        (sweep(*MODES), {}, [0, 1], []),  # the runs set the power modes
        (sweep(unreadable={"0": "half of it"}), {}, [],
         ["Left out: the run, whose record cannot be read: 0 (half of it)."]),
        (sweep(*(replace(trained(n, 100.0), disturbed=SHARED if n else {}) for n in range(3))), {}, [0, 1, 2],
         [f"Disturbed runs 1, 2: {SHARED['gpu_shared']}."]),
        (sweep(*(replace(trained(n, 100.0), disturbed={"cpu_shared": f"epoch {n}: load."}) for n in range(2))), {},
         [0, 1], ["Disturbed runs 0, 1: for example in run 0, epoch 0: load."]),
    ):  # fmt: skip
        report = build_report(content, **options)
        assert ([run.number for run in report.runs], report.notes) == (numbers, notes)


INVALID = {"code": "counters_disagree", "text": "epoch 1: core0 measured 40 J."}


def test_energy_that_does_not_hold_is_noted_with_its_codes_and_is_data_of_the_answer():
    held = [replace(trained(n, 100.0), energy_covers="CPU", energy_valid=True) for n in range(2)]
    doubtful = replace(held[1], energy_valid=False, energy_reasons=[INVALID])
    report = build_report(sweep(held[0], doubtful))
    assert report.notes == ["The energy of run 1 does not hold: counters_disagree (epoch 1: core0 measured 40 J)."]
    for runs, expected in (
        ([held[0], doubtful], (False, [INVALID])),
        (held, (True, [])),
        ([held[0], replace(held[1], energy_valid=None)], (None, [])),
    ):
        choice = pages(build_report(sweep(*runs)))["answer"].results.values["choices"][0]
        assert (choice["energy_valid"], choice["energy_reasons"]) == expected
    absent = replace(doubtful, energy_covers=None, no_energy="no RAPL")
    assert build_report(sweep(held[0], absent)).notes == [], "it has no energy that could be wrong"


def metered(name, *, energy_j=200.0, **facts):
    """A sweep of three repeats with an energy."""
    runs = [trained(n, 100.0 + n, steady={"energy_j": energy_j + n}, repeat=n) for n in range(3)]
    return sweep(*(replace(run, sweep=name, energy_covers="CPU", **{"energy_valid": True, **facts}) for run in runs))


def test_comparison_and_gate_state_that_an_energy_of_either_sweep_does_not_hold():
    changed = {"code": "settings_changed", "text": "NVML changed from 300 W to 200 W."}
    doubtful = {"energy_valid": False, "energy_reasons": [changed]}
    warning = "The energy of {} runs does not hold (settings_changed): remove the cause, and measure again with "
    warning += "sweep.again=true."
    note = "The energy of runs 0, 1, 2 does not hold: settings_changed (run 0: NVML changed from 300 W to 200 W)."
    bounds = {"energy": 1.05}
    for before, after, compared, answer, notes in (
        (doubtful, {}, warning.format("3 of 6"), "", [f"before: {note}"]),
        ({}, doubtful, warning.format("3 of 6"), warning.format("all 3"), [note]),
        ({}, {}, "", "", []),
    ):
        report = build_report(metered("after", energy_j=100.0, **after), metered("before", **before), bounds=bounds)
        by_name = pages(report)
        warnings = [by_name[name].warning for name in ("comparison", "gate", "answer")]
        assert (warnings, report.notes) == ([compared, compared, answer], notes)
        assert [check.verdict for check in by_name["gate"].results] == ["passed"]
    of_time = build_report(metered("after", **doubtful), metered("before"), bounds={"time": 1.2})
    assert (pages(of_time)["gate"].warning, bool(pages(of_time)["comparison"].warning)) == ("", True)
    shared = {**doubtful, "disturbed": SHARED}
    disturbed = pages(build_report(metered("after", **shared), metered("before"), bounds=bounds))["gate"].warning
    assert disturbed.count("measure again") == 1
    assert "The energy of 3 of 6 runs does not hold (settings_changed)." in disturbed


def test_report_begins_with_what_its_runs_have_in_common():
    runs = [replace(trained(n, 9.0, batch=8 + n // 2, repeat=n % 2),
                    platform={"host": "h1", "GPU": "H100", "torch": f"2.{n}"}) for n in range(4)]  # fmt: skip
    script = trained(0, 9.0, measure={"command": ["train.py", "--api_key=hunter2"]})
    for some, about in (
        (runs, "4 runs of 2 configurations: model resnet152, dataset jpeg, device cpu. Machine: h1; H100."),
        (runs[:1], "1 run: model resnet152, dataset jpeg, device cpu. Machine: h1; H100; torch 2.0."),
        ([trained(0, 9.0), ddp(1, model="resnet50")], "2 runs: dataset jpeg, device cpu."),
        ([ddp(0)], "1 run: model resnet152, dataset jpeg, strategy ddp x 2, device cpu."),
        ([script], "1 run: train.py --api_key=***."),
        ([replace(script, state="failed")], "1 run: train.py --api_key=***."),
        ([], ""),
    ):
        assert build_report(sweep(*some)).about == about


def test_estimated_energy_has_its_own_column_and_nothing_is_ranked_by_it():
    def estimated(number, time_s, energy_j, **keys):
        steady = {"e2e_s": time_s, "estimated_energy_j": energy_j, "energy_j": None}
        run = trained(number, 100.0, steady=steady, total={"estimated_energy_j": 3 * energy_j}, **keys)
        reason = "meter=estimate: an estimate, not a measurement."
        return replace(run, energy_covers=None, energy_source="estimated", no_energy=reason)

    runs = [estimated(0, 10.0, 83.9), estimated(1, 12.0, 65.2, batch=32)]
    report = build_report(sweep(*runs), criteria=Criteria(baseline={"batch": 64}), bounds={"energy": 1.05})
    answer, (check,) = pages(report)["answer"].results, pages(report)["gate"].results
    assert ([choice.name for choice in answer.choices], answer.front) == (["fastest"], [])
    assert [run.number for run in report.runs] == [0, 1], "their times are results"
    assert (check.verdict, check.ratio, check.no_energy.reason) == ("undecided", None, runs[0].no_energy)
    assert [chart.name for chart in report.charts if "energy" in chart.name] == []
    columns, cells, _ = columns_and_rows(report.runs)
    assert [name for name in columns if "energy" in name or "power" in name] == ["estimated energy (J)"]
    assert [row[columns.index("estimated energy (J)")] for row in cells] == ["83.9", "65.2"]
    compared = build_report(sweep(*runs), sweep(*(replace(run, sweep="before") for run in runs)))
    assert {entry.metric for entry in pages(compared)["comparison"].results.differences} == {"steady/e2e_s"}


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (["killed"], "the run was not completed: stopped by Ctrl-C"),
        (["killed", "killed"], "both runs were not completed: stopped by Ctrl-C"),
        (["killed", "failed"], "both runs were not completed: stopped by Ctrl-C"),
        (["failed", "failed"], "both runs failed: stopped by Ctrl-C"),
        (["completed", "killed"], "no run was completed with an epoch after the warm-up; 1 run was not completed: s"),
    ],
)
def test_run_that_was_stopped_has_not_failed(states, sentence):
    why = Problem("stopped by Ctrl-C")
    runs = [trained(n, 1.0, steady={"e2e_s": None}) for n in range(len(states))]
    runs = [replace(run, state=state, failure=why) for run, state in zip(runs, states, strict=True)]
    assert f"No answer: {sentence}" in first_sentences(build_report(sweep(*runs)).pages)
