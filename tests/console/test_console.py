"""Output at the end of a run and of a sweep, in a terminal of 80 columns."""

import io
import re
import signal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from default_jobs import job_of

from epochmeter.console import console
from epochmeter.console.console import Terminal
from epochmeter.console.run_end import print_run
from epochmeter.console.sweep_end import print_sweep
from epochmeter.results.measured_run import Gain
from epochmeter.results.next_steps import NextStep
from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import Points
from epochmeter.shared.problem import InputError, Place, Problem, problem_of
from epochmeter.shared.record import WORKER_LOG

ROW = {"e2e_s": 12.3456, "data_stall_s": 3.2109, "copy_s": 0.5, "compute_s": 8.0, "overhead_s": 0.6347}
LEARNED = {"train_loss": 0.51234, "train_accuracy": 0.91234}
REHEARSAL = "REHEARSAL, not a result of the requested configuration: device=nano requested, this machine is device=cpu."


@pytest.fixture
def lines(terminal):
    """lines() -> the printed lines."""
    return lambda: [line.rstrip() for line in terminal.console.file.getvalue().splitlines()]


@pytest.fixture
def rows(lines):
    """rows() -> the same, with one space between the cells of a table."""
    return lambda: [" ".join(line.split()) for line in lines()]


def named(section, values):
    values = {**values, "data_stall_fraction": values["data_stall_s"] / values["e2e_s"]}
    return {f"{section}/{name}": value for name, value in values.items()}


def epoch(number, **metrics):
    return {"window": "epoch", "epoch": number, "metrics": named("epoch", {**ROW, **LEARNED, **metrics})}


def val(number, accuracy):
    return {"window": "val", "epoch": number, "metrics": {"val/e2e_s": 0.25, "val/accuracy": accuracy}}


def steady(**metrics):
    return named("steady", {**ROW, **LEARNED, **metrics})


def finish(terminal, windows, result=None):
    print_run(terminal, windows, job_of(warmup_epochs=1), result or RunResult(0, []))


def test_epoch_table_counts_from_one_and_ends_with_mean_seconds_and_percent(terminal, rows):
    windows = [epoch(0, energy_j=100.04), val(0, 0.5), epoch(1, energy_j=123.456), val(1, 0.75), epoch(2, energy_j=0.0)]
    finish(terminal, windows, RunResult(0, [], metrics=steady(energy_j=123.456), bottleneck="compute"))
    assert [row for row in rows() if row] == [
        "time data copy compute overhead energy train train val",
        "epoch s stall s s s s J loss acc % acc %",
        "1 (warm-up) 12.346 3.211 0.500 8.000 0.635 100.0 0.5123 91.2 50.0",
        "2 12.346 3.211 0.500 8.000 0.635 123.5 0.5123 91.2 75.0",
        "3 12.346 3.211 0.500 8.000 0.635 0.0 0.5123 91.2 -",
        "mean 2-3 12.346 3.211 0.500 8.000 0.635 123.5",
        "± (95 %) 0.000 0.000 0.000 0.000 0.000",
        "% of time 100 26 4.1 65 5.1",
        "Evaluation: mean of 2: 0.250 s.",
        "Bottleneck: compute-bound. Epoch time: compute 65 %, data stalls 26 %.",
    ]


def test_means_have_the_interval_of_their_epochs_and_the_uncertainty_of_the_energy(terminal, lines):
    """Times 10 and 12 s: 12.706 x 1.414 / sqrt(2) = 12.706, so that no decimals hold. One epoch has no interval."""
    windows = [epoch(0), *(epoch(number, e2e_s=e2e_s, energy_j=90.0) for number, e2e_s in ((1, 10.0), (2, 12.0)))]
    finish(terminal, windows, RunResult(0, [], metrics=steady(e2e_s=11.0, energy_j=90.0, energy_uncertainty_j=4.5)))
    (row,) = (line.split() for line in lines() if line.startswith("±"))
    assert row == ["±", "(95", "%)", "13", *["0.000"] * 4, "4.5"]
    assert [line.split()[2] for line in lines() if line.startswith("mean")] == ["11"]
    assert max(map(len, lines())) <= 80
    finish(terminal, windows[:2], RunResult(0, [], metrics=steady(energy_j=90.0)))
    assert len([line for line in lines() if line.startswith("±")]) == 1


STEPS = [
    NextStep("start_workers", "Load in parallel.", "setting", "workers=2", "why", Gain(0.3, 0.25, 0.354)),
    NextStep("compile", "Compile.", "code", "model = torch.compile(model)  # [a]", "why"),
    NextStep("trace", "Look.", "command", f"python src/report.py run={'x' * 80} view=trace", "why", Gain(0.08)),
]


def test_last_lines_are_the_bottleneck_the_next_steps_to_paste_and_the_folder(terminal, lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = RunResult(0, [], metrics=steady(), bottleneck="compute", folder=tmp_path / "0", notes=["a note"])
    result.no_energy, result.next_steps = Problem("No counter"), STEPS
    finish(terminal, [epoch(0), epoch(1)], result)
    printed = lines()
    assert printed[printed.index("note: a note") :] == [
        "note: a note",
        "warning: energy was not measured: No counter",
        "Bottleneck: compute-bound. Epoch time: compute 65 %, data stalls 26 %.",
        "Next steps, in this order:",
        "1. Load in parallel. It saves at most 30 % (25 to 35 %) of the epoch's time.",
        "   set: workers=2",
        "2. Compile.",
        "   in the script: model = torch.compile(model)  # [a]",
        "3. Look. It saves at most 8.0 % of the epoch's time.",
        f"   run: python src/report.py run={'x' * 80} view=trace",
        "",
        "Results: 0",
    ]
    result.of_sweep = True
    finish(terminal, [epoch(0), epoch(1)], result)
    assert lines()[-1].startswith("Bottleneck: "), "the end of a sweep has the rest"


def test_epoch_table_has_a_title_and_a_mean_epoch_for_each_of_several_trainings(terminal, rows):
    windows = [{**epoch(number), "training": number // 2} for number in range(5)]
    for first in (2, 4):
        windows[first]["warmup"] = True
    finish(terminal, windows, RunResult(0, [], trainings=[steady(), steady(e2e_s=9.0), {}]))
    assert [" ".join(row.split()[:3]) for row in rows() if row][2:] == [
        *("training 1 of", "1 (warm-up) 12.346", "2 12.346 3.211", "mean 2 12.346", "% of time"),
        *("training 2 of", "3 (warm-up) 12.346", "4 12.346 3.211", "mean 4 9.000", "% of time"),
        *("training 3 of", "5 (warm-up) 12.346"),
    ]


def test_rows_are_not_wrapped_if_the_loss_of_evaluations_has_no_column(terminal, rows):
    short = {"e2e_s": 1.5, "copy_s": 0.0, "data_stall_s": 0.5, "compute_s": 0.9, "overhead_s": 0.1}
    evaluation = val(0, 0.5)
    evaluation["metrics"]["val/loss"] = 0.25
    windows = [epoch(0, **short), evaluation, epoch(1, **short), {**evaluation, "epoch": 1}]
    finish(terminal, windows, RunResult(0, [], metrics=steady(**short), bottleneck="compute"))
    assert [row.split()[:2] for row in rows()[2:4]] == [["1", "(warm-up)"], ["2", "1.500"]]


def test_missing_energy_has_no_column_but_a_warning_unless_it_was_requested(terminal, rows):
    finish(
        terminal,
        [epoch(0)],
        RunResult(0, [], no_energy=Problem("No CPU counter here", "give meter.tdp_w for an estimate")),
    )
    assert "energy" not in rows()[0]
    assert rows()[2] == "1 (warm-up) 12.346 3.211 0.500 8.000 0.635 0.5123 91.2"
    assert rows()[-2:] == [
        "warning: energy was not measured: No CPU counter here",
        "hint: give meter.tdp_w for an estimate",
    ]
    finish(terminal, [], RunResult(0, [], no_energy=Problem("no energy is requested"), requested_meter="none"))
    assert rows()[-1] == "Energy was not measured (meter=none)."


@pytest.mark.parametrize("energy", ["energy_j", "estimated_energy_j"])
def test_no_number_is_cut_however_narrow_the_terminal(terminal, lines, energy):
    slow = {**dict.fromkeys(ROW, 3601.234), energy: 98765.4}
    windows = [epoch(0, **slow), val(0, 0.1234), epoch(10, **slow), val(10, 0.5678)]
    finish(terminal, windows, RunResult(0, [], metrics=steady(**slow)))
    assert "…" not in "\n".join(lines())
    rows = [line.split() for line in lines() if "3601.234" in line]
    assert [row.count("3601.234") for row in rows] == [len(ROW)] * 3
    assert [row.count("98765.4") for row in rows] == [1, 1, 1]
    assert [row[-1] for row in rows[:2]] == ["12.3", "56.8"]
    quick = [epoch(0, energy_j=1234.5), val(0, 0.1234), epoch(10, energy_j=1234.5), val(10, 0.5678)]
    before = len(lines())
    finish(terminal, quick, RunResult(0, [], metrics=steady(energy_j=1234.5)))
    assert max(map(len, lines()[before:])) <= 80


def test_rehearsal_begins_and_ends_with_its_reasons_its_folder_and_links(terminal, lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reasons = ["device=nano requested, this machine is device=cpu"]
    folder, links = tmp_path / "multirun/0", {"run_link": "http://127.0.0.1:5000/#/1", "compare_link": "all"}
    terminal.run_started("nano lenet digits", folder, reasons, ["a warning"], forecast="ETA: 12:00")
    finish(terminal, [], RunResult(0, [], rehearsal=reasons, folder=folder, **links))
    shown = ["Results: multirun/0", "View:    make ui, then http://127.0.0.1:5000/#/1", "Compare: all"]
    begin = [REHEARSAL, "nano lenet digits  ->  multirun/0", "ETA: 12:00", "warning: a warning"]
    assert lines() == [*begin, "", *shown, REHEARSAL]


def test_sweep_with_a_target_or_an_estimate_has_columns_for_them(terminal, rows):
    target = {"total/time_to_target_s": 2.359, "total/estimated_energy_to_target_j": 153.1}
    reached = RunResult(0, ["batch=8"], metrics={**steady(estimated_energy_j=55.6), **target})
    print_sweep(terminal, [reached, RunResult(1, ["batch=16"], metrics=steady())])
    cells = [row.split() for row in rows() if row and row[0] in "01"]
    assert [row[-3:] for row in cells] == [["55.6", "2.359", "153.1"], ["-", "-", "-"]]


def test_sweep_has_varied_keys_states_means_failures_and_common_messages_once(terminal, rows, lines):
    same = {"no_energy": Problem("no sensor"), "compare_link": "http://all", "rehearsal": ["device=nano requested"]}
    failure = Problem(f"no [red] [/] {'x' * 300}. Twice.", "use less memory")
    print_sweep(terminal, [
        RunResult(0, ["batch=8", "epochs=2"], metrics=steady(energy_j=10.0, samples_per_s=480.4), **same),
        RunResult(1, ["batch=16", "epochs=2"], metrics=steady(samples_per_s=480.6), earlier=True, **same),
        *(RunResult(number, [f"batch={number}", "epochs=2"], state="failed", failure=failure) for number in (2, 3)),
        RunResult(4, ["batch=4", "epochs=2"], state="killed", failure=Problem("stopped by Ctrl-C", code="stopped")),
    ])  # fmt: skip
    assert [row for row in rows() if row][:7] == [
        "time data stall compute samples energy",
        "run batch state s stall s % s /s J",
        "0 8 completed (rehearsal) 12.346 3.211 26.0 8.000 480 10.0",
        "1 16 skipped (rehearsal) 12.346 3.211 26.0 8.000 481 -",
        "2 2 failed - - - - - -",
        "3 3 failed - - - - - -",
        "4 4 killed - - - - - -",
    ]
    printed = lines()
    assert printed[9].startswith("skipped: ")
    assert printed[10:13] == [
        f"error: runs 2, 3 failed: no [red] [/] {'x' * 300}. Twice.", "  hint: use less memory",
        "error: run 4 killed: stopped by Ctrl-C",
    ]  # fmt: skip
    assert "run the same command again" in printed[13]
    text = "\n".join(printed)
    assert [text.count(once) for once in ("no sensor", "http://all", "device=nano requested")] == [1, 1, 1]
    assert printed[-1].startswith("REHEARSAL")


def test_runs_of_a_sweep_announce_missing_energy_once(capsys, monkeypatch):
    monkeypatch.setattr(console, "_already_printed", set())
    for terminal in (Terminal(), Terminal()):
        terminal.no_energy("No sensor.")
    assert capsys.readouterr().out == "Energy will not be measured: No sensor.\n"


def test_bottleneck_names_an_oversubscribed_processor_if_an_epoch_of_the_mean_had_one(terminal, rows):
    for flagged, text in ((0, "Bottleneck: compute-bound."), (1, "Bottleneck: compute-bound, on an oversubscribed ")):
        windows = [epoch(0), epoch(1)]
        windows[flagged]["flags"] = {"oversubscribed": f"epoch {flagged + 1}: x"}
        finish(terminal, windows, RunResult(0, [], metrics=steady(), bottleneck="compute"))
        assert [row.startswith(text) for row in rows() if row.startswith("Bottleneck")][-1:] == [True]


def test_run_of_a_sweep_has_one_line_and_warnings_of_all_runs_are_printed_once(capsys, monkeypatch):
    monkeypatch.setattr(console, "_already_printed", set())
    for number in (0, 1):
        terminal = Terminal()
        terminal.sweep_run_started(f"[{number + 1}/2] run {number}: batch={8 + number}", ["no limit"], ["a warning"])
        result = RunResult(number, [], of_sweep=True, metrics=steady(), bottleneck="compute", notes=["a note"])
        finish(terminal, [epoch(0), epoch(1)], result)
    assert capsys.readouterr().out.splitlines() == [
        "REHEARSAL, not a result of the requested configuration: no limit.",
        "warning: a warning",
        *(f"[{number + 1}/2] run {number}: batch={8 + number}: 12.3 s per epoch, compute-bound" for number in (0, 1)),
    ]


def test_epochs_of_a_sweep_s_run_are_printed_once_per_minute_with_its_place(watch, capsys):
    terminal = Terminal()
    terminal.sweep_run_started("[2/6] run 1: batch=8", [], [])
    for number in range(5):
        terminal.window_opened("epoch", number, 5, steps=4)
        watch.now_s += 25.0
        terminal.window_measured(epoch(number), 5)
    printed = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["[2/6] epoch 3/5"]


def test_wrapped_lines_keep_numbers_with_their_units(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "24")
    Terminal().info("Data stalls: prep stall 26 % (fetch stall 3 %), as 12 batches show.")
    printed = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert printed.splitlines() == ["Data stalls: prep stall", "26 % (fetch stall 3 %),", "as 12 batches show."]


def test_wrapped_hints_keep_commands_in_a_line_even_if_it_is_too_long(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "24")
    Terminal().info("  hint: measure them again with `sweep.again=true batch=16` later")
    printed = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert printed.splitlines() == ["  hint: measure them", "again with", "`sweep.again=true batch=16`", "later"]


def test_stopped_run_of_a_sweep_is_named_at_its_end_only(terminal, lines):
    stopped = RunResult(
        0, ["batch=8"], of_sweep=True, state="killed", failure=Problem("stopped by Ctrl-C", code="stopped")
    )
    finish(terminal, [], stopped)
    assert lines() == []
    print_sweep(terminal, [stopped])
    assert "\n".join(lines()).count("Ctrl-C") == 1


@pytest.mark.parametrize(("state", "resumes"), [("killed", True), ("failed", False)])
def test_ended_sweep_names_runs_not_started_and_resumes_unless_all_failed(terminal, lines, state, resumes):
    ended = [RunResult(number, [], state=state, failure=Problem("why", "now")) for number in (0, 1, 2)]
    print_sweep(terminal, ended, points=Points([[f"batch={batch}"] for batch in range(8)], completed=frozenset({2, 7})))
    text = "\n".join(lines())
    assert "\nNot started: 4 of 8 runs." in text
    assert (text.count("hint: now"), "To resume" in text) == (1, resumes)


def test_hint_of_a_failed_run_is_at_the_sweep_s_end_and_of_a_refused_one_at_once(terminal, lines, capsys):
    error = InputError(Problem("why", "now"), Problem("too", "then"))
    terminal.failed(RunResult(0, [], of_sweep=True, state="failed", failure=problem_of(error)))
    terminal.refused(error)
    assert lines() == ["error: why; too"]
    assert capsys.readouterr().err.splitlines() == ["error: why", "  hint: now", "error: too", "  hint: then"]


def test_emoji_codes_and_markup_in_a_text_are_printed_unchanged(capsys):
    Terminal().info("train.py:100: no key [red]")
    assert capsys.readouterr().out == "train.py:100: no key [red]\n"


def test_failure_has_its_hint_and_one_of_other_code_its_traceback(terminal, lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finish(terminal, [], RunResult(0, [], state="failed", failure=Problem("no device", "name one")))
    users = Problem("Bad labels. They were those of last year.\nhint: none", where=Place(file=WORKER_LOG))
    terminal.failed(RunResult(0, [], state="failed", folder=tmp_path / "0", failure=users))
    assert lines() == [
        *("error: no device", "  hint: name one"),
        *("error: Bad labels. They were those of last year.", "hint: none", "Traceback: 0/worker.log"),
    ]


@pytest.fixture
def watched(monkeypatch, capsys):
    """A terminal that a person watches, and watched.seen() -> what was drawn in it since."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    terminal.seen = lambda: capsys.readouterr().out
    return terminal


def test_progress_line_has_the_loss_if_requested_and_a_stage_is_erased(watched):
    watched.window_opened("epoch", 0, 6, 90)
    watched.progress(45, 2.30259)
    drawn = watched.seen()
    assert ("epoch 1/6 training" in drawn, "loss 2.3026" in drawn) == (True, True)
    watched.window_opened("val", 0, 6, 12)
    watched.progress(6)
    drawn = watched.seen()
    watched.window_closed()
    assert ("epoch 1/6 evaluating" in drawn, "step 6/12" in drawn, "loss" in drawn) == (True, True, False)
    watched.stage("Preparing")
    watched.end_stage()
    drawn = watched.seen()
    assert "Preparing" in drawn
    assert drawn.endswith("\x1b[2K")


def test_loss_of_a_step_is_a_line_of_its_own_with_its_place(terminal, lines):
    terminal.loss(100, 9.9)  # before the first epoch
    terminal.window_opened("epoch", 1, 6, 3125)
    terminal.loss(100, 1.23456)
    terminal.window_closed()
    assert [line for line in lines() if "loss" in line] == ["epoch 2/6, step 100/3125: loss 1.2346"]


@pytest.fixture
def watch(monkeypatch):
    """A scripted clock."""
    watch = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr("epochmeter.console.console.time.monotonic", lambda: watch.now_s)
    return watch


def train(watch, epochs, seconds, first_s=None, begin=0, **forecast):
    """Print epochs that take so long, with as much time between them, in a terminal of its own; return its text."""
    terminal, out = Terminal(), io.StringIO()
    terminal.console.file = out
    for number in range(begin, epochs):
        terminal.window_opened("epoch", number, epochs, steps=4)
        watch.now_s += first_s if number == begin and first_s else seconds
        terminal.progress(4)
        terminal.window_closed()
        line = epoch(number, e2e_s=seconds, energy_j=340.0)
        terminal.window_measured({**line, "metrics": {**line["metrics"], **forecast}}, epochs)
        terminal.window_opened("val", number, epochs, steps=2)
        watch.now_s += seconds
        terminal.progress(2)
        terminal.window_closed()
        terminal.window_measured(val(number, 0.5), epochs)
    return out.getvalue()


FORECAST = {
    "forecast/e2e_s": 3661.0, "forecast/e2e_uncertainty_s": 65.4,
    "forecast/energy_j": 7200.4, "forecast/energy_uncertainty_j": 12.34,
}  # fmt: skip
FORECAST_TEXT = "forecast total 61.0 ± 1.1 min, 7.200 ± 0.012 kJ"


@pytest.mark.parametrize(("width", "shown"), [(120, FORECAST_TEXT), (100, "forecast total 61.0 ± 1.1 min"), (80, "")])
def test_forecast_in_the_progress_line_leaves_room_for_elapsed_and_remaining_time(watched, width, shown):
    watched.console.width = width
    watched.window_opened("epoch", 9, 10, 361)
    watched.forecast(FORECAST)
    seen = watched.seen()
    assert (shown in seen, "J" in seen, "forecast" in seen, "…" in seen) == (True, width == 120, bool(shown), False)
    watched.window_closed()


def test_a_file_has_one_line_per_epoch_with_the_forecast_of_the_run(watch):
    numbers = "time 30.000 s, stall 10.7 %, energy 340.0 J, train loss 0.5123, train acc 91.2 %"
    assert train(watch, 4, seconds=30.0, first_s=200.0, **FORECAST).splitlines() == [
        f"epoch 1/4: {numbers}; {FORECAST_TEXT}",
        f"epoch 2/4: {numbers}; 2 min 0 s left; {FORECAST_TEXT}",
        f"epoch 3/4: {numbers}; 1 min 0 s left; {FORECAST_TEXT}",
        f"epoch 4/4: {numbers}",
    ]
    resumed = train(watch, 7, seconds=30.0, begin=4).splitlines()
    assert resumed[1].endswith("; 1 min 0 s left")
    short = train(watch, 10, seconds=0.2).splitlines()
    assert [line[:7] for line in short] == ["epoch 3", "epoch 6", "epoch 9"], "at most one line per second"


def test_reader_of_the_output_that_ends_stops_the_run_as_by_sigpipe(monkeypatch):
    monkeypatch.setattr("rich.console.os.dup2", lambda *_: None)
    watched = Terminal()
    watched.console.file = Mock(spec=io.StringIO, write=Mock(side_effect=BrokenPipeError))
    with pytest.raises(SystemExit) as stop:
        watched.info("epoch 1")
    assert stop.value.code == 128 + signal.SIGPIPE
