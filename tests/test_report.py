"""The command `report.py`."""

import errno
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from rich.console import Console
from sweeps import rows, trained, write

from epochmeter.commands import report as entry
from epochmeter.commands.train import print_sweep
from epochmeter.config.suggestions import entry_keys
from epochmeter.config.versions import DEFAULTS
from epochmeter.console.console import UI_HINT
from epochmeter.report.charts import vega
from epochmeter.results.run_result import RunResult
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.process_identity import this_process

ROOT = Path(__file__).parents[1]
SWEEP = "2026-11-20_12-00-00-1a2b3c4d"


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """report("sweep=a", ...) -> exit code or error, and output of the command, without starting it or MLflow."""
    monkeypatch.setattr(entry, "MULTIRUN", tmp_path / "multirun")
    monkeypatch.setattr("gc.disable", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it for its process
    monkeypatch.setenv("COLUMNS", "80")

    def run(*overrides):
        with initialize_config_dir(str(ROOT / "conf"), **DEFAULTS):
            config = compose("report", overrides=["tracking=none", *overrides])
        try:
            code = entry.task(config) or 0
        except SystemExit as end:
            code = end.code
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def texts_only(monkeypatch):
    """Reports without a page and charts, which take longer than the rest."""
    monkeypatch.setattr(vega, "find_spec", lambda name: None)


def test_report_is_of_the_newest_sweep_and_an_error_without_runs(report, tmp_path, sources):
    assert "python src/train.py -m experiment=stalls" in report()[0]
    for folder in ("src", "conf"):
        shutil.copytree(sources / folder, tmp_path / folder)
    folder = tmp_path / "multirun" / SWEEP
    for each in rows([1.5, 1.6], [3.7, 3.8], [12.0, 12.1]):
        write(folder, each)
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "ascii"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "src/report.py", "tracking=none"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    output = " ".join(done.stdout.split())
    assert "## The answer Only one configuration:" in output, "the others are references"
    assert "Not ranked: 1 configuration" in output
    assert "tracking=none" in output
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "report.csv", "report.md", "answer.json", "stalls.json", "stalls.md"} <= names
    assert read_json(folder / "answer.json")["choices"][0]["runs"] == [4, 5]
    assert "fetch-bound" in done.stdout


def test_exit_code_is_that_of_the_gate(report, texts_only, tmp_path):
    for name, factor in {"before": 1.0, "after": 1.1}.items():
        for number in range(3):
            write(tmp_path / "multirun" / name, trained(number, 100.0 / factor + number / 10, repeat=number))
    codes = {bound: report("sweep=after", "against=before", f"gate.time={bound}")[0] for bound in (1.05, 1.1, 1.2)}
    assert codes == {1.05: 2, 1.1: 3, 1.2: 0}
    assert "report.baseline" in report("sweep=after", "gate.time=1.1")[0]


@pytest.mark.parametrize(
    ("run", "of_report"),
    [
        ("run=multirun/sweep/0", "sweep=multirun/sweep 'where={run: 0}'"),
        ("run=a b/0", """'sweep='"'"'a b'"'"'' 'where={run: 0}'"""),
        ("run=sweep", "sweep=sweep"),
        ("run=0", "sweep=0"),
    ],
)
def test_run_without_a_view_is_refused_with_the_keys_of_its_report(report, run, of_report):
    error, _ = report(run)
    assert error.startswith(f"error: `{run}` needs a view of a run\n")
    assert error.endswith(f"; for a report: `{of_report}`")


@pytest.mark.parametrize("view", ["trace", "card"])
def test_run_may_be_a_number(report, view):
    assert "the run `0` is not found" in report("run=0", f"view={view}")[0]


def test_card_of_a_run_is_written_to_its_folder_and_other_views_keys_are_refused(report, tmp_path):
    of = trained(0, 100.0, total={"energy_j": 3.6e6, "energy_uncertainty_j": 3.6e5})
    energy = {"source": "counter", "covers": "GPUs used", "domains": ["gpu0"], "reason": None}
    record = write(tmp_path / "multirun" / SWEEP, of, energy=energy)
    code, output = report("view=card", f"run={SWEEP}", "card.training_type=fine-tuning", "footprint.intensity=FRA")
    assert code == 0
    assert (record.folder / "model_card.md").exists()
    assert "fine-tuning" in output
    assert "against" in report("view=card", f"run={SWEEP}", "against=x")[0]
    assert "training_type" in str(report("view=card", f"run={SWEEP}", "card.training_type=other")[0])


def test_no_key_has_the_name_of_a_config_group():
    _, keys = entry_keys("report")
    assert [key for key in keys if key != "hydra" and (ROOT / "conf" / key).is_dir()] == []


def test_where_and_out_select_the_runs_and_the_folder(report, texts_only, tmp_path):
    for name, study in (("2026-11-20_12-00-00-aa", "lumi/resnet152_cifar100"), ("2026-11-21_12-00-00-bb", "smoke")):
        for number, batch in enumerate([8, 16, 32]):
            run = trained(number, 100.0 * batch, batch=batch, typed={"experiment": study})
            write(tmp_path / "multirun" / name, run)
    code, output = report("sweep='*'", "where={experiment: lumi/resnet152_cifar100}")
    (answer,) = (tmp_path / "multirun/reports").glob("*/answer.json")
    assert (code, read_json(answer)["choices"][0]["runs"]) == (0, [2])
    code, output = report("where={model: resnet152, batch: [8, 16]}", f"out={tmp_path}/again")
    assert (code, "Fastest so far: batch 16: 0.625 s" in " ".join(output.split())) == (0, True)
    assert len((tmp_path / "again/report.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("report.eta=2", "report.eta"),
        ("report.baseline=3", "give {key: value}, defaults"),
        (f"out={ROOT}/conf/report.yaml", "cannot write the report to"),
        ("include=[rehearsal]", "give one of rehearsals"),
        ("where={bach: 8}", "do you mean batch"),
        ("where=batch", "give a mapping"),
        (f"run={SWEEP}/0", f"for a report: `sweep={SWEEP} 'where={{run: 0}}'`"),
        ("source=nowhere.csv", "give one of records, mlflow"),
    ],
)
def test_invalid_option_is_an_error(report, texts_only, tmp_path, override, message):
    write(tmp_path / "multirun" / SWEEP, trained(0, 100.0))
    error, _ = report(override)
    assert message in error


@pytest.mark.parametrize("path", ["multirun/of-another-user", None])
def test_file_that_cannot_be_read_or_printed_to_is_an_error(report, monkeypatch, path):
    def refuse(*_):
        raise OSError(errno.EACCES, "the cause", path)

    monkeypatch.setattr("epochmeter.report.runs.load.load_sweep", refuse)
    assert re.fullmatch(rf"error: cannot .*{path or 'print'}.*: the cause\n  hint: .*", report()[0])


@pytest.mark.parametrize("override", ["sweep=[]", "sweep=", "sweep={}", "sweep=true", "report=null", "gate=5"])
def test_value_of_another_type_is_refused_before_anything_is_read(report, tmp_path, override):
    write(tmp_path / "multirun" / SWEEP, trained(0, 100.0))
    error, output = report(override)
    assert re.fullmatch(r"error: `\w+=.*` is not valid\n  hint: give .*", error)
    assert output == ""


def test_sweep_without_usable_runs_has_a_page_of_failures_and_is_an_error(report, tmp_path):
    folder = tmp_path / "multirun" / SWEEP
    failed = write(folder, trained(0, 100.0), state="failed").folder / "summary.json"
    write_json(failed, {**read_json(failed), "failure": {"message": "train.py:100: no memory"}})
    write(folder, trained(1, 100.0)).folder.joinpath("job.json").write_text("{")
    error, output = report()
    assert error.startswith("error: no run is left to report")
    assert "train.py:100: no memory" in output
    assert "| 1 | - | its record cannot be read: Invalid JSON" in output
    assert 'id="failures"' in (folder / "report.html").read_text()
    assert report("include=[failures]")[0] == 0


def test_sweep_whose_first_run_is_running_is_reported_later(report, texts_only, tmp_path):
    record = write(tmp_path / "multirun" / SWEEP, trained(0, 100.0))
    for name in ("summary.json", "completed.json"):
        (record.folder / name).unlink()
    record.describe(record.job(), {**record.run(), **this_process()._asdict()})
    error, output = report()
    assert error.startswith("error: no run has completed yet\n  hint: ")
    assert error.count("\n") == 1
    assert (output, [path.name for path in record.folder.parent.iterdir()]) == ("", ["0"])


def test_trace_of_a_run_is_printed_and_written_as_a_page_and_for_perfetto(report, tmp_path, monkeypatch):
    record = write(tmp_path / "multirun/sweep", trained(0, 100.0))
    record.describe(record.job(), {**record.run(), "clock": {"wall_s": 1e9, "monotonic_ns": 0}})
    folder = record.folder
    shutil.copy(ROOT / "tests/data/traces/mi250_minitoy_train_ROCm6_2_kineto.json.gz", folder / "trace.json.gz")
    code, output = report("run=sweep/0", "view=trace")
    assert (code, "The GPU ran kernels in" in output) == (0, True)
    assert 'data-name="trace_modules"' in (folder / "trace.html").read_text()
    assert "is not found" in report("run=sweep/9", "view=trace")[0]
    monkeypatch.setattr("epochmeter.report.output.perfetto.open_in_perfetto", lambda path, _: opened.append(path))
    opened = []
    assert (report("run=sweep/0", "view=perfetto")[0], opened) == (0, [folder / "perfetto.json.gz"])
    assert opened[0].stat().st_size


def test_runs_of_a_running_process_are_listed_without_advice_on_epochs(report, tmp_path, texts_only):
    for number, energy in enumerate([{"run/energy_j": 600.0, "run/energy_uncertainty_j": 6.0}, {}]):
        record = write(tmp_path / "multirun/sweep", trained(number, 100.0))
        record.describe({**record.job(), "measure": {"command": ["train.py"], "pid": 70 + number}}, record.run())
        metrics = {"total/epochs": 0, "run/wall_s": 65.0, "run/window_s": 60.0, **energy}
        write_json(record.folder / "summary.json", {**record.summary(), "metrics": metrics})
    code, output = report()
    assert code == 0
    assert "Process 70 (run 0) was measured for 60.0 s: 600 J ± 1.0 %." in output.replace("\N{NO-BREAK SPACE}", " ")
    assert "Process 71 (run 1) was measured for 60.0 s. " in output.replace("\N{NO-BREAK SPACE}", " ")
    assert "train more epochs" not in output
    answer = read_json(tmp_path / "multirun/sweep/answer.json")
    assert [use["pid"] for use in answer["processes"]] == [70, 71]


def test_two_traces_are_compared_and_written_as_a_page_text_and_numbers(report, tmp_path):
    trace = ROOT / "tests/data/traces/mi250_minitoy_train_ROCm6_2_kineto.json.gz"
    for sweep in "ab":
        folder = write(tmp_path / "multirun" / sweep, trained(0, 100.0)).folder
        shutil.copy(trace, folder / "trace.json.gz")
    code, output = report("run=b/0", "against=a/0", "view=trace")
    assert (code, "b/0 (after) compared with a/0 (before)" in output) == (0, True)
    numbers = read_json(folder / "trace_changes.json")
    assert (numbers["before"], numbers["after"], numbers["steps"]) == ("a/0", "b/0", [2, 2])
    assert {change["verdict"] for change in numbers["operators"]["changes"]} <= {"no difference", "inconclusive"}
    assert all((folder / f"trace_changes.{suffix}").exists() for suffix in ("html", "md"))
    code, output = report(f"run={trace}", f"against={trace}", "view=trace")
    (reports,) = (tmp_path / "multirun/reports").iterdir()
    assert (code, f"Written to {reports}" in output) == (0, True)
    for wrong in (("view=perfetto", "against=a/0"), ("view=trace", "against=[a/0,b/0]")):
        assert report("run=b/0", *wrong)[0].startswith("error: `against=` with `view=` is one other trace")


@pytest.mark.parametrize(
    ("recorded", "is_linked", "chosen", "is_untracked"),
    [
        (["none", "none"], False, "mlflow", True),
        (["none", "mlflow"], False, "mlflow", False),
        (["none", "none"], True, "mlflow", False),  # published since then
        (["none", "none"], False, "server", False),
        ([], False, "mlflow", False),
    ],
)
def test_report_of_untracked_runs_is_no_entry_of_the_database(recorded, is_linked, chosen, is_untracked):
    link = "http://here" if is_linked else None
    runs = [SimpleNamespace(link=link, job={"tracking": {"name": name}}) for name in recorded]
    assert entry.are_untracked(SimpleNamespace(runs=runs), {"name": chosen}) == is_untracked


@pytest.mark.parametrize(
    ("address", "lines"),
    [
        (None, ["Not shown in MLflow: tracking=none."]),
        ("http://127.0.0.1:5000/#/experiments/1", ["http://127.0.0.1:5000/#/experiments/1", UI_HINT]),
        ("https://mlflow.example.org/#/experiments/1", ["https://mlflow.example.org/#/experiments/1"]),
    ],
)
def test_written_files_and_their_address_are_printed(tmp_path, address, lines):
    paper = StringIO()
    written = [tmp_path / name for name in ("report.html", "report/a.png", "report/a.svg", "report/b.png")]
    entry.show_files(written, tmp_path, lambda: address, Console(file=paper, width=80, highlight=False))
    first, *others = paper.getvalue().splitlines()
    assert first == f"Written to {tmp_path}: report.html, 2 pictures as PNG and SVG in report/"
    assert others == lines


def test_late_mlflow_is_a_warning_that_names_the_address_and_the_files(tmp_path):
    def late(limit_s, *_):
        raise TimeoutError(f"no answer within {limit_s:g} s")

    tracking, paper = {"name": "server", "experiment": "own", "uri": "http://127.0.0.1:9"}, StringIO()
    log = partial(entry.log_in_process, SimpleNamespace(call=late), "title", [tmp_path / "report.html"], tracking, "")
    assert entry.show_files([], tmp_path, log, Console(file=paper, width=200)) is None
    warning, hint = paper.getvalue().splitlines()[1:]
    assert warning == "warning: cannot publish the report to MLflow at http://127.0.0.1:9: no answer within 120 s"
    assert f"its files are in {tmp_path};" in hint


@pytest.mark.parametrize(("count", "is_answered"), [(2, True), (1, False)])
def test_sweep_ends_with_its_answer(tmp_path, capsys, count, is_answered):
    runs = [trained(n, 100.0 + 90 * n, batch=64 * (1 + n)) for n in range(count)]
    print_sweep([RunResult(run.number, [], of_sweep=count > 1, folder=write(tmp_path, run).folder) for run in runs])
    assert ("Answer:  Fastest so far: batch 128" in capsys.readouterr().out) is is_answered
