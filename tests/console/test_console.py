"""What a person reads at the end of a run and of a sweep, in a terminal of 80 columns."""

import io

import pytest
from rich.console import Console

from epochmeter.console.console import Terminal, shown_path
from epochmeter.results.run_result import Outcome

ROW = {"e2e_s": 12.3456, "fetch_stall_s": 3.2109, "copy_s": 0.5, "compute_s": 8.0, "overhead_s": 0.6347}
LEARNED = {"train_loss": 0.51234, "train_accuracy": 0.91234}
REHEARSAL = "REHEARSAL, no result of what was asked: device=nano asked for, this machine is device=cpu."


@pytest.fixture
def terminal():
    terminal = Terminal()
    terminal.console = Console(file=io.StringIO(), width=80, highlight=False)
    return terminal


@pytest.fixture
def lines(terminal):
    """lines() -> what was printed."""
    return lambda: [line.rstrip() for line in terminal.console.file.getvalue().splitlines()]


@pytest.fixture
def rows(lines):
    """rows() -> the same, with one space between the cells of a table."""
    return lambda: [" ".join(line.split()) for line in lines()]


def epoch(number, **metrics):
    named = {f"epoch/{name}": value for name, value in {**ROW, **LEARNED, **metrics}.items()}
    return {"window": "epoch", "epoch": number, "metrics": named}


def val(number, accuracy):
    return {"window": "val", "epoch": number, "metrics": {"val/accuracy": accuracy}}


def steady(**metrics):
    return {f"steady/{name}": value for name, value in {**ROW, **LEARNED, **metrics}.items()}


def concluded(terminal, windows, outcome=None, warmup=1, of_sweep=False):
    job = {"warmup_epochs": warmup, "dataset": {"layout": "files"}}
    terminal.concluded(windows, job, outcome or Outcome(0, []), of_sweep)


def test_the_table_of_a_run_has_the_parts_of_each_epoch_and_their_steady_means(terminal, rows):
    outcome = Outcome(0, [], metrics=steady(energy_j=123.456))
    concluded(terminal, [epoch(0, energy_j=100.04), epoch(1, energy_j=123.456)], outcome)
    assert rows() == [
        "e2e fetch copy compute overhead energy",
        "epoch s stall s s s s J loss accuracy",
        "0 warm-up 12.346 3.211 0.500 8.000 0.635 100.0 0.5123 0.9123",
        "1 12.346 3.211 0.500 8.000 0.635 123.5 0.5123 0.9123",
        "steady 12.346 3.211 0.500 8.000 0.635 123.5 0.5123 0.9123",
        "Bottleneck: compute-bound; 26 % data stall.",
    ]


def test_energy_that_was_not_measured_is_a_dash_and_the_reason_is_told(terminal, rows):
    concluded(terminal, [epoch(0)], Outcome(0, [], no_energy="meter=none: the job asks for no energy."))
    assert rows()[2] == "0 warm-up 12.346 3.211 0.500 8.000 0.635 - 0.5123 0.9123"
    assert rows()[3] == "No measured energy: meter=none: the job asks for no energy."


def test_of_a_task_that_knows_no_right_and_wrong_the_losses_alone_are_shown(terminal, rows):
    numbers = epoch(0)
    del numbers["metrics"]["epoch/train_accuracy"]
    concluded(terminal, [numbers, {"window": "val", "epoch": 0, "metrics": {"val/loss": 0.25}}])
    assert rows()[:3] == [
        "e2e fetch copy compute overhead energy val",
        "epoch s stall s s s s J loss loss",
        "0 warm-up 12.346 3.211 0.500 8.000 0.635 - 0.5123 0.2500",
    ]


def test_an_estimate_has_a_column_of_its_own_and_is_never_shown_as_measured(terminal, rows):
    concluded(terminal, [epoch(0, estimated_energy_j=800.0)])
    assert rows()[0] == "e2e fetch copy compute overhead energy estimated"
    assert rows()[2].endswith("- 0.5123 0.9123 800.0")


def test_the_accuracy_of_each_evaluation_stands_beside_its_epoch(terminal, lines):
    concluded(terminal, [epoch(0), val(0, 0.5), epoch(1), val(1, 0.75)], Outcome(0, [], metrics=steady()))
    assert lines()[0].split()[-1] == "val"
    assert [line.split()[-1] for line in lines()[2:4]] == ["0.5000", "0.7500"]


def test_an_epoch_whose_evaluation_never_came_has_a_dash_for_it(terminal, lines):
    concluded(terminal, [epoch(0), val(0, 0.5), epoch(1)])
    assert [line.split()[-1] for line in lines()[2:4]] == ["0.5000", "-"]


def test_a_run_of_seconds_with_evaluations_fits_80_columns(terminal, lines):
    windows = [epoch(0, energy_j=1234.5), val(0, 0.1234), epoch(10, energy_j=1234.5), val(10, 0.5678)]
    concluded(terminal, windows, Outcome(0, [], metrics=steady(energy_j=1234.5)))
    assert max(map(len, lines())) <= 80


@pytest.mark.parametrize("energy", ["energy_j", "estimated_energy_j"])
def test_no_number_is_cut_however_narrow_the_terminal(terminal, lines, energy):
    slow = {**dict.fromkeys(ROW, 3601.234), energy: 98765.4}
    windows = [epoch(0, **slow), val(0, 0.1234), epoch(10, **slow), val(10, 0.5678)]
    concluded(terminal, windows, Outcome(0, [], metrics=steady(**slow)))
    assert "…" not in "\n".join(lines())
    rows = [line.split() for line in lines() if "3601.234" in line]
    assert [row.count("3601.234") for row in rows] == [len(ROW)] * 3
    assert [row.count("98765.4") for row in rows] == [1, 1, 1]
    assert [row[-1] for row in rows[:2]] == ["0.1234", "0.5678"]


def test_a_long_sentence_is_one_line_that_can_be_copied(terminal, lines):
    why = "x" * 300
    concluded(terminal, [], Outcome(0, [], state="failed", failure=why))
    assert lines() == [f"Failed: {why}"]


def test_brackets_in_what_was_typed_are_shown_as_typed(terminal, lines):
    concluded(terminal, [], Outcome(0, [], state="failed", failure="device.rails=[red] [/] is wrong"))
    assert lines() == ["Failed: device.rails=[red] [/] is wrong"]


def test_a_rehearsal_says_so_in_its_first_line_and_in_its_last(terminal, lines, tmp_path):
    reasons = ["device=nano asked for, this machine is device=cpu"]
    terminal.begun("nano lenet digits", tmp_path, reasons, ["a warning"])
    concluded(terminal, [epoch(0)], Outcome(0, [], rehearsal=reasons, run_link="http://run", compare_link="http://all"))
    assert lines()[0] == lines()[-1] == REHEARSAL
    assert lines()[1] == f"nano lenet digits  ->  {tmp_path}"
    assert lines()[2] == "a warning"


def test_a_true_run_has_no_word_of_rehearsal(terminal, lines, tmp_path):
    terminal.begun("cpu lenet digits", tmp_path, [], [])
    concluded(terminal, [epoch(0)])
    assert "REHEARSAL" not in "\n".join(lines())


def test_a_run_ends_with_the_links_that_open_it(terminal, lines):
    concluded(terminal, [], Outcome(0, [], run_link="http://run", compare_link="http://all"))
    assert [line.split()[-1] for line in lines()[:2]] == ["http://run", "http://all"]


def test_a_run_of_a_sweep_leaves_what_holds_for_all_to_the_sweeps_end(terminal, lines):
    outcome = Outcome(0, [], no_energy="no sensor", compare_link="http://all", rehearsal=["device=nano"])
    concluded(terminal, [], outcome, of_sweep=True)
    assert lines() == []


def test_the_table_of_a_sweep_shows_what_varied_the_states_and_the_means(terminal, rows):
    fine = Outcome(0, ["batch=8", "epochs=2"], metrics=steady(energy_j=10.0, samples_per_s=480.4))
    before = Outcome(1, ["batch=16", "epochs=2"], metrics=steady(samples_per_s=480.6), earlier=True)
    terminal.sweep([fine, before])
    assert [row for row in rows() if row] == [
        "e2e fetch compute energy samples",
        "run batch state s stall s s J /s",
        "0 8 whole 12.346 3.211 8.000 10.0 480",
        "1 16 whole before 12.346 3.211 8.000 - 481",
    ]


def test_each_failure_of_a_sweep_has_its_line_after_the_table(terminal, lines):
    outcomes = [
        Outcome(0, ["batch=8"]),
        Outcome(1, ["batch=16"], state="failed", failure="the worker was killed by SIGKILL"),
        Outcome(2, ["batch=32"], state="killed", failure="stopped by Ctrl-C"),
    ]
    terminal.sweep(outcomes)
    assert [line.split()[2] for line in lines()[-6:-3]] == ["whole", "failed", "killed"]
    assert lines()[-3:-1] == ["run 1 failed: the worker was killed by SIGKILL", "run 2 killed: stopped by Ctrl-C"]
    assert "run the same command again" in lines()[-1]


def test_runs_that_failed_for_the_same_reason_are_one_line(terminal, lines):
    terminal.sweep([Outcome(number, [f"batch={number}"], state="failed", failure="no torch") for number in range(3)])
    assert [line for line in lines() if "no torch" in line] == ["runs 0, 1, 2 failed: no torch"]


def test_a_sweep_tells_once_what_holds_for_all_its_runs(terminal, lines):
    same = {"no_energy": "no sensor", "compare_link": "http://all", "rehearsal": ["device=nano asked for"]}
    terminal.sweep([Outcome(number, [f"batch={number}"], **same) for number in (1, 2, 3)])
    text = "\n".join(lines())
    assert [text.count(once) for once in ("no sensor", "http://all", "device=nano asked for")] == [1, 1, 1]
    assert lines()[-1].startswith("REHEARSAL")


def test_nothing_of_a_sweep_over_many_keys_is_cut(terminal, lines):
    typed = ["batch=128", "power_limit=MODE_30W", "workers=16"]
    outcomes = [Outcome(number, [*typed, f"seed={number}"]) for number in (10, 11)]
    outcomes.append(Outcome(12, ["batch=8", "power_limit=100", "workers=0", "seed=12"], metrics=steady(), earlier=True))
    terminal.sweep(outcomes)
    text = "\n".join(lines())
    assert "…" not in text
    for whole in ("MODE_30W", "power_limit", "workers", "whole before", "12.346", "samples"):
        assert whole in text


def test_a_file_gets_no_progress_line(terminal, lines):
    terminal.opened("epoch", 0, 6, 90)
    terminal.progress(45)
    terminal.closed()
    assert lines() == []


def test_a_path_is_shown_as_one_would_type_it_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "multirun" / "0") == "multirun/0"
    assert shown_path(tmp_path.parent) == str(tmp_path.parent)


def test_where_a_steady_epochs_samples_came_from_is_said_as_far_as_it_is_known(terminal, lines):
    known = {
        "steady/loader_read_s": 0.18,
        "steady/loader_preprocess_s": 0.537,
        "steady/read_bytes": 26_791_936.0,
        "steady/read_bytes_per_s": 68.4e6,
        "steady/cached_share_before": 0.0,
        "steady/cached_share_after": 1.0,
    }
    concluded(terminal, [epoch(0), epoch(1)], Outcome(0, [], metrics=known))
    _, _, said = " ".join(lines()).partition("Data of ")
    assert said.startswith(
        "a steady epoch: 0.180 s reading, 0.537 s preprocessing (in all processes together), 26.8 MB read from its "
        "disk, by whatever process, at 68.4 MB/s, 0% in the page cache before, 100% after."
    )


def test_where_nothing_is_known_of_the_samples_nothing_is_said(terminal, lines):
    concluded(terminal, [epoch(0), epoch(1)], Outcome(0, []))
    assert "Data of" not in " ".join(lines())


@pytest.fixture
def watched(monkeypatch, capsys):
    """A terminal that a person watches, and watched.seen() -> what was drawn in it since."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    terminal.seen = lambda: capsys.readouterr().out
    return terminal


def test_the_loss_stands_beside_the_progress_where_it_is_asked_for(watched):
    watched.opened("epoch", 0, 6, 90)
    watched.progress(45, 2.30259)
    assert "loss 2.3026" in watched.seen()
    watched.opened("val", 0, 6, 12)
    watched.progress(6)
    drawn = watched.seen()
    watched.closed()
    assert "6/12" in drawn
    assert "loss" not in drawn


def test_the_samples_a_second_between_two_steps_are_a_line_of_their_own(terminal, lines):
    known = {"throughput/samples_per_s": 512.345, "throughput/steps": 1000.0}
    concluded(terminal, [{**epoch(0), "partial": True}], Outcome(0, [], metrics=known))
    assert "Throughput of 1000 steps: 512.3 samples/s." in lines()
    assert [line for line in lines() if line.startswith("0 in part")]


def test_a_sweep_has_a_column_for_them_where_any_run_has_them(terminal, rows):
    outcomes = [
        Outcome(number, [f"batch={batch}"], metrics={"throughput/samples_per_s": rate})
        for number, batch, rate in ((0, 8, 10.04), (1, 16, 20.0))
    ]
    terminal.sweep(outcomes)
    assert "0 8 whole - - - - - 10.0" in rows()
    assert "throughput" in " ".join(rows())


def test_a_target_that_was_reached_is_told_with_what_it_took_and_what_reached_it(terminal, lines):
    cost = {"total/epochs_to_target": 1.0, "total/time_to_target_s": 28.5, "total/energy_to_target_j": 130.16}
    windows = [epoch(0), {"window": "val", "epoch": 0, "metrics": {"val/loss": 0.25, "val/accuracy": 0.975}}]
    concluded(terminal, windows, Outcome(0, [], metrics=cost))
    said = "The target was reached after 1 epoch, in 28.500 s and 130.2 J (val/loss 0.2500, val/accuracy 0.9750)."
    assert said in " ".join(lines())


def test_without_evaluation_or_energy_the_target_is_told_by_the_training_alone(terminal, lines):
    cost = {"total/epochs_to_target": 2.0, "total/time_to_target_s": 28.5}
    concluded(terminal, [epoch(0), epoch(1)], Outcome(0, [], metrics=cost))
    said = "after 2 epochs, in 28.500 s (epoch/train_loss 0.5123, epoch/train_accuracy 0.9123)."
    assert said in " ".join(lines())


class Watch:
    """time.monotonic, as a test has it go on."""

    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        monkeypatch.setattr("epochmeter.console.console.time.monotonic", lambda: self.now_s)


@pytest.fixture
def watch(monkeypatch):
    return Watch(monkeypatch)


def train(terminal, watch, epochs, seconds):
    """Epochs that take so long each, with as much again for what is between them."""
    for number in range(epochs):
        terminal.opened("epoch", number, epochs, steps=4)
        watch.now_s += seconds
        terminal.closed()
        terminal.measured(epoch(number, e2e_s=seconds, energy_j=340.0), epochs)
        watch.now_s += seconds


def test_in_a_file_each_epoch_has_a_line_with_the_time_that_is_left(terminal, lines, watch):
    train(terminal, watch, 3, seconds=30.0)
    told = "30.000 s, 3.211 s stalled, 340.0 J, loss 0.5123, accuracy 0.9123"
    assert lines() == [
        f"epoch 0 of 3: {told}; about 1 min left",
        f"epoch 1 of 3: {told}; about 30 s left",
        f"epoch 2 of 3: {told}",
    ]


def test_of_epochs_of_a_blink_there_is_a_line_now_and_then(terminal, lines, watch):
    train(terminal, watch, 10, seconds=0.2)
    assert [line[:7] for line in lines()] == ["epoch 2", "epoch 5", "epoch 8"]


def test_an_evaluation_has_no_line_of_its_own(terminal, lines, watch):
    terminal.opened("val", 0, 3, steps=4)
    watch.now_s += 30
    terminal.measured(val(0, 0.5), 3)
    assert lines() == []


@pytest.mark.parametrize(("dumb", "drawn"), [(False, True), (True, False)])
def test_a_terminal_that_cannot_go_back_has_lines_without_escape_codes(monkeypatch, watch, dumb, drawn):
    monkeypatch.setenv("TERM", "dumb" if dumb else "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    console = Console(file=out, width=80, highlight=False, force_terminal=True)
    monkeypatch.setattr("epochmeter.console.console.Console", lambda **_: console)
    terminal = Terminal()
    train(terminal, watch, 2, seconds=30.0)
    assert ("\x1b[" in out.getvalue()) is drawn
    assert ("epoch 0 of 2: 30.000 s" in out.getvalue()) is not drawn
    assert ("epoch 1 of 2, training; about 1 min left" in out.getvalue()) is drawn


def test_a_run_begins_with_its_name_and_folder_and_what_to_expect_where_that_is_known(terminal, lines, tmp_path):
    terminal.begun("lenet digits cpu", tmp_path / "0", [], [])
    terminal.begun("run 1 (2 of 2): batch=16", tmp_path / "1", [], [], forecast="it takes about 40 s")
    assert lines() == [
        f"lenet digits cpu  ->  {tmp_path / '0'}",
        f"run 1 (2 of 2): batch=16  ->  {tmp_path / '1'}",
        "it takes about 40 s",
    ]
