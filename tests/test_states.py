"""The states of a run are the same words in each place that shows them."""

import io
import json
import re
from types import SimpleNamespace
from typing import get_args

import pytest
from project import ROOT
from watched import NOW_S, epochs, write_run

from epochmeter.console import tables
from epochmeter.console.plain import PlainConsole
from epochmeter.report.build import build_report
from epochmeter.report.output.report import print_report
from epochmeter.report.runs.filter import select
from epochmeter.report.runs.frames import load_runs
from epochmeter.report.runs.load import read_sweep
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import STATES
from epochmeter.tracking.run_export import MLFLOW_STATUS
from epochmeter.watch import server, terminal, watcher
from epochmeter.watch.openmetrics import to_openmetrics
from epochmeter.watch.snapshot import ACTIVE, BY_INTEREST, State
from epochmeter.watch.watcher import Watcher

DEAD = {"start_ticks": "0"}
"""An earlier process with this process's ID."""
ENDS = ("completed", "failed", "killed")
MLFLOW = {
    "planned": "SCHEDULED", "running": "RUNNING", "completed": "FINISHED", "failed": "FAILED", "killed": "KILLED",
}  # fmt: skip


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(watcher, "time", SimpleNamespace(time=lambda: NOW_S))


def write_state(folder, state):
    """Write a run in a state, next to a completed one, so that the folder is a sweep."""
    write_run(folder / "0", epochs(3), summary={"state": "completed"})
    if state == "planned":
        (folder / "1").mkdir()
        return folder / "1"
    summary = {"state": state, "failure": {"message": "why"} if state == "failed" else None}
    process = DEAD if state in ENDS else {}
    return write_run(folder / "1", epochs(3), number=1, summary=summary if state in ENDS else None, **process)


@pytest.mark.parametrize("state", STATES)
def test_every_place_has_the_word_of_a_state(tmp_path, state):
    folder = write_state(tmp_path / "sweep", state)
    assert RunFolder(folder).state == state
    assert MLFLOW_STATUS[state] == MLFLOW[state]
    shown = "training" if state == "running" else state
    if state != "planned":
        sweep = read_sweep(folder.parent)
        (run,) = (run for run in sweep.runs if run.number == 1)
        assert (run.state, str(run)) == (state, f"<Run sweep/1 {state}>")
        assert [*load_runs(folder.parent).to_pandas()["run.state"]] == ["completed", state]
        selection = select(sweep, {"state": state, "run": 1}, ["failures"])
        assert [own.number for own in (*selection.ended, *selection.excluded)] == [1]
        print_report(build_report(sweep), PlainConsole(file=(file := io.StringIO()), width=100))
        assert state in ("completed", "running", "failed") or state in file.getvalue()
        view = Watcher(folder).read()
        assert (view.state, view.active[0].state) == (shown, shown)
        assert f'epochmeter_run_state{{run="1",epochmeter_run_state="{shown}"}} 1.0' in to_openmetrics(view)
        result = RunResult(1, [], state=state)
        assert (tables.state_name(result), tables.sweep_table([result]).row_count) == (state, 1)
    else:
        (folder.parent / "points.json").write_text(json.dumps({"points": [["a=1"], ["a=2"]]}))
    snapshot = Watcher(folder.parent).read()
    assert [row.state for row in snapshot.runs] == ["completed", shown]
    drawn = "\n".join("".join(text for text, _ in line) for line in terminal.draw(snapshot, 100))
    assert re.search(rf"^1 .*\b{shown}\b", drawn, re.MULTILINE)
    assert json.loads(server.to_json(snapshot, ""))["snapshot"]["runs"][1]["state"] == shown
    assert f'epochmeter_runs{{state="{shown}"}}' in to_openmetrics(snapshot)


def test_a_summary_with_the_state_of_another_version_is_shown_as_its_process_is(tmp_path):
    """The record is read as one without an end, and its metrics are kept."""
    for process, state, shown in (({}, "running", "training"), (DEAD, "failed", "failed")):
        folder = tmp_path / state / "0"
        summary = {"state": "paused", "metrics": {"steady/e2e_s": 8.0}}
        write_run(folder, epochs(3), summary=summary, **process)
        (run,) = read_sweep(folder.parent).runs
        assert (RunFolder(folder).state, run.state, run.metrics["steady/e2e_s"]) == (state, state, 8.0)
        view = Watcher(folder).read().active[0]
        assert (view.state, view.metrics["steady/e2e_s"]) == (shown, 8.0)
        result = RunResult(0, [], state="paused")
        assert tables.sweep_table([result]).row_count == 1


def test_states_of_the_live_view_have_a_color_a_rank_and_a_row_in_the_docs():
    states = {*get_args(State)}
    assert states == {*terminal.COLORS} == {*BY_INTEREST} == {*STATES, *ACTIVE, "unreadable"} - {"running"}
    page = (ROOT / "docs/watching.md").read_text().partition("## States")[2]
    listed = re.findall(r"^\| (?!state|-)([a-z, ]+) \|", page, re.MULTILINE)
    assert {state for cell in listed for state in cell.split(", ")} == states
    css = (ROOT / "src/epochmeter/watch/templates/page.css").read_text()
    assert {*re.findall(r"\.state\.(\w+)", css)} | {"planned"} == states
    assert json.loads(server.metric_table())["active"] == [*ACTIVE]
    (filtered,) = re.findall(r"`state` \((.*?)\)", (ROOT / "docs/reports.md").read_text())
    assert {*re.findall(r"`(\w+)`", filtered)} == {*STATES} - {"planned"}
