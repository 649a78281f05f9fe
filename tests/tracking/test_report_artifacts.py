"""A sweep's report is one run in MLflow."""

import pytest
from project import put

from epochmeter.tracking import views
from epochmeter.tracking.publish import publish
from epochmeter.tracking.report_artifacts import log_report
from epochmeter.tracking.views import REPORT_TAG

MLFLOW = {"name": "mlflow", "experiment": "epochmeter", "tensorboard": False}


@pytest.fixture(autouse=True)
def _uri(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)


@pytest.fixture
def make_files(tmp_path):
    """make_files(name, ...) -> files with these paths below one folder, each containing its name."""
    folder = tmp_path / "sweep"
    return lambda *names: [put(folder, {name: name}) / name for name in names]


def reports(store):
    return store.client.search_runs([store.experiment_id], views.REPORT_FILTER)


def test_reports_of_a_sweep_are_one_run_with_the_files_of_the_last_one(store, make_files):
    first = log_report("a sweep", make_files("report.html", "report/old.png", "old.csv"), MLFLOW)
    files = make_files("report.html", "report.csv", "report/energy & time.png")
    link = log_report("a sweep", files, MLFLOW, "Fastest: batch 16.\n\nMore.")
    assert link == first, "a link to an earlier report shows the last one"
    (run,) = reports(store)
    run_id = run.info.run_id
    listed = [entry.path for name in ("", "report") for entry in store.client.list_artifacts(run_id, name)]
    assert listed == ["report", "report.csv", "report.html", "report/energy & time.png"]
    assert f"/runs/{run_id}/artifacts/report.html?" in link
    assert (run.info.status, run.info.run_name) == ("FINISHED", "report of a sweep")
    *answer, links, picture = run.data.tags[views.NOTE_TAG].split("\n\n")
    assert answer == ["Fastest: batch 16.", "More."]
    page = f"#/experiments/{store.experiment_id}/runs/{run_id}/artifacts/report.html?workflowType="
    assert links.startswith(f"[report.html]({page}")
    assert picture == f"![](get-artifact?path=report%2Fenergy+%26+time.png&run_uuid={run_id})"


def test_of_two_reports_that_were_made_at_once_the_older_is_kept(store, make_files):
    first = log_report("a sweep", make_files("report.html"), MLFLOW)
    tags = {REPORT_TAG: "a sweep"}
    store.client.create_run(store.experiment_id, tags=tags, start_time=2**42)
    assert log_report("a sweep", make_files("report.html"), MLFLOW) == first
    assert len(reports(store)) == 1


def test_sweeps_of_any_name_have_separate_reports_that_are_in_no_view_of_runs(store, make_files, make_record):
    sweeps = ["a sweep", "it's <b>'quoted'</b>", 'a "name"']
    for sweep in (*sweeps, *sweeps):
        log_report(sweep, make_files("report.html"), MLFLOW)
    assert sorted(run.data.tags[REPORT_TAG] for run in reports(store)) == sorted(sweeps)
    published = publish(make_record(), store)
    runs = store.client.search_runs([store.experiment_id], views.RUN_FILTER)
    assert [run.info.run_id for run in runs] == [published.run_id]


def test_nothing_is_logged_without_tracking_and_an_offline_server_is_an_error(store, make_files, monkeypatch):
    paths = make_files("report.html")
    assert log_report("a sweep", paths, {**MLFLOW, "name": "none"}) is None
    assert log_report("a sweep", [], MLFLOW) is None
    assert reports(store) == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(RuntimeError, match=f"(?s)cannot publish the report .*hint: its files are in {paths[0].parent}"):
        log_report("a sweep", paths, MLFLOW)
