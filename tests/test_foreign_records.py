"""Metrics, gauges and fields that this version does not know are shown everywhere with what their names state."""

import io
import json
from types import SimpleNamespace

import pytest
from default_jobs import job_of
from watched import JOB, NOW_S, SECOND, epochs, write_run

from epochmeter.console.plain import PlainConsole
from epochmeter.console.run_end import print_run
from epochmeter.console.sweep_end import print_sweep
from epochmeter.report.build import build_report
from epochmeter.report.output import table
from epochmeter.report.output.report import print_report
from epochmeter.report.runs.frames import load_runs
from epochmeter.report.runs.load import read_sweep
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_result import RunResult
from epochmeter.shared.problem import Problem
from epochmeter.shared.record import Record
from epochmeter.tracking import run_export
from epochmeter.watch import server, terminal, watcher
from epochmeter.watch.openmetrics import to_openmetrics
from epochmeter.watch.watcher import Watcher

METRICS = {
    "steady/e2e_s": 8.0, "steady/energy_j": 80.0, "steady/f1": 0.5, "steady/retry_s": 1.5, "std/f1": 0.1,
    "total/gold_g": 2.0, "val/f1": 0.25, "val/loss": None,
}  # fmt: skip
FAILURE = {"message": "a ray", "hint": "a roof", "code": "cosmic", "where": {"planet": "mars"}, "rays": 3}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(watcher, "time", SimpleNamespace(time=lambda: NOW_S))


@pytest.fixture
def make_folder(tmp_path):
    """make_folder("completed") -> the run folder of another version; with None, its run is not over."""

    def make(state):
        lines = epochs(3)
        for line in lines:
            line["metrics"] |= {f"{line['window']}/f1": 0.5, f"{line['window']}/retry_s": 1.5}
            line["rays"] = {"count": [1]}
        summary = {"state": state, "metrics": METRICS, "rays": {"count": 1}}
        summary |= {"failure": FAILURE} if state == "failed" else {}
        folder = tmp_path / "sweep/0"
        write_run(folder, lines, summary=summary if state else None, job={**JOB, "rays": 1}, rays={"count": [1]})
        gauges = f"monotonic_ns,npu0_utilization,npu0_fan_hz,mood\n{4990 * SECOND},0.5,7e6,good\n"
        (folder / "gauges.csv").write_text(gauges)
        (folder / "power.csv").write_text(f"monotonic_ns,total_w\n{4990 * SECOND},50\n")
        return folder

    return make


@pytest.mark.parametrize("state", [None, "completed", "failed"])
def test_live_view_has_unknown_metrics_and_gauges_by_their_names(make_folder, state):
    snapshot = Watcher(make_folder(state)).read()
    drawn = ["".join(text for text, _ in line) for line in terminal.draw(snapshot, 120)]
    (head,) = (line for line in drawn if line.startswith("epoch  "))
    assert head.split()[-3:] == ["f1", "retry", "s"]
    (mean,) = (line for line in drawn if line.startswith("mean 2-3"))
    assert mean.split()[-2:] == ["0.5", "1.5"]
    assert {line[:13].strip(): line[14:].split("  ")[0] for line in drawn if line.startswith("npu")} == {
        "npu0": "50 %",
        "npu0 fan": "7.00 MHz",
    }
    view = json.loads(server.to_json(snapshot, ""))["snapshot"]["active"][0]
    assert view["unlisted"] == [["f1", "f1", ""], ["retry", "retry_s", "s"]]
    panels = {panel["title"]: (panel["unit"], panel["columns"]) for panel in view["panels"]}
    assert panels["Npu0"] == ("%", [["npu0_utilization", "npu0"]])
    assert panels["Npu0 fan"] == ("Hz", [["npu0_fan_hz", "npu0 fan"]])
    samples = to_openmetrics(snapshot)
    assert 'epochmeter_unlisted{run="0",metric="steady/f1"} 0.5' in samples
    assert ('epochmeter_unlisted_gauge{run="0",column="npu0_fan_hz"} 7000000.0' in samples) == (state is None)


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_end_of_a_run_report_and_frames_have_unknown_metrics_by_their_names(make_folder, terminal, state):
    folder = make_folder(state)
    record = Record(folder)
    result = RunResult(0, [], of_sweep=True)
    result.set_from_record(record)
    print_run(terminal, record.windows(), job_of(), result)
    print_sweep(terminal, [result])
    printed = terminal.console.file.getvalue()
    assert "".join(printed.split()).count("f1") >= 3
    runs = load_runs(folder.parent)
    assert runs[0].failure == (Problem("a ray", "a roof", "cosmic") if state == "failed" else None)
    frame = runs.to_pandas()
    assert {name: frame[name][0] for name in ("steady/f1", "val/f1", "total/gold_g", "run.state")} == {
        "steady/f1": 0.5, "val/f1": 0.25, "total/gold_g": 2.0, "run.state": state,
    }  # fmt: skip
    assert [*runs.epochs.to_pandas()["epoch/f1"].dropna()] == [0.5] * 3
    cells = table.columns_and_rows(runs)
    columns = dict(zip(cells.columns, cells.rows[0], strict=True))
    assert {"f1": "0.500", "retry (s)": "1.50", "total gold (g)": "2.00", "val f1": "0.250"}.items() <= columns.items()
    print_report(build_report(read_sweep(folder.parent)), PlainConsole(file=(file := io.StringIO()), width=200))
    assert ("a ray" in file.getvalue()) == (state == "failed")


def test_mlflow_gets_unknown_metrics_and_gauges_under_their_names(make_folder):
    run_folder = RunFolder(make_folder("failed"))
    (first, *_) = run_export.window_scalars(run_folder, run_folder.all_windows)
    assert {"epoch/f1", "epoch/retry_s"} <= {scalar.name for scalar in first}
    assert {"steady/f1", "total/gold_g"} <= {
        scalar.name for scalar in run_export.summary_scalars(run_folder, run_folder.summary)
    }
    curves = {scalar.name for scalar in run_export.curve_scalars(run_folder, run_folder.all_windows)}
    assert curves == {"power/total_w", "system/npu0_utilization", "system/npu0_fan_hz"}, "a text is no number"
    assert run_export.run_tags(run_folder)["epochmeter.failure"] == "cosmic"
