"""A sweep's report is one run of MLflow, however often it is made."""

import pytest

from epochmeter.tracking import views
from epochmeter.tracking.publish import publish
from epochmeter.tracking.report_artifacts import log_report
from epochmeter.tracking.views import REPORT_TAG

MLFLOW = {"name": "mlflow", "experiment": "epochmeter", "tensorboard": False}


@pytest.fixture(autouse=True)
def here(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)


@pytest.fixture
def files(tmp_path):
    """files(name, ...) -> files of these names below one folder, each holding its name."""

    def written(*names):
        paths = [tmp_path / "sweep" / name for name in names]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(path.name)
        return paths

    return written


def reports(store):
    return store.client.search_runs([store.experiment_id], views.REPORT_FILTER)


def artifacts(store, run_id, folder=None):
    listed = store.client.list_artifacts(run_id, folder)
    return {entry.path for entry in listed if not entry.is_dir}.union(
        *(artifacts(store, run_id, entry.path) for entry in listed if entry.is_dir)
    )


def test_files_keep_their_paths_and_the_link_opens_the_first(store, files):
    link = log_report("a sweep", files("report.html", "report.csv", "report/energy.png"), MLFLOW)
    (run,) = reports(store)
    assert artifacts(store, run.info.run_id) == {"report.html", "report.csv", "report/energy.png"}
    assert f"/runs/{run.info.run_id}/artifacts/report.html?" in link
    assert (run.info.status, run.info.run_name) == ("FINISHED", "report of a sweep")


def test_run_page_links_the_files_and_shows_the_first_picture(store, files):
    log_report("a sweep", files("report.html", "report/energy & time.png", "report/epochs.png"), MLFLOW)
    (run,) = reports(store)
    page = f"#/experiments/{store.experiment_id}/runs/{run.info.run_id}/artifacts/report.html?workflowType="
    picture = f"get-artifact?path=report%2Fenergy+%26+time.png&run_uuid={run.info.run_id}"
    links, shown = run.data.tags[views.NOTE_TAG].split("\n\n")
    assert (links.startswith(f"[report.html]({page}"), shown) == (True, f"![]({picture})")


def test_new_report_replaces_the_old_one(store, files, tmp_path):
    first = log_report("a sweep", files("report.html", "report/old.png"), MLFLOW)
    (html,) = files("report.html")
    html.write_text("newer")
    assert log_report("a sweep", [html, *files("report/new.png")], MLFLOW) == first
    (run,) = reports(store)
    assert artifacts(store, run.info.run_id) == {"report.html", "report/new.png"}
    assert (tmp_path / "mlruns").exists()
    got = store.client.download_artifacts(run.info.run_id, "report.html")
    with open(got) as file:
        assert file.read() == "newer"


@pytest.mark.parametrize("other", ["another", "it's <b>'quoted'</b>", 'a "name"', "a `tick`"])
def test_each_sweep_has_its_own_report_with_any_name(store, files, other):
    for sweep in ("a sweep", other, other):
        log_report(sweep, files("report.html"), MLFLOW)
    assert sorted(run.data.tags[REPORT_TAG] for run in reports(store)) == sorted(["a sweep", other])


def test_report_is_in_no_view_of_runs(store, files, make_record):
    log_report("a sweep", files("report.html"), MLFLOW)
    published = publish(make_record(), store)
    shown = store.client.search_runs([store.experiment_id], views.RUN_FILTER)
    assert [run.info.run_id for run in shown] == [published.run_id]


def test_tracking_none_logs_nothing(store, files):
    assert log_report("a sweep", files("report.html"), {**MLFLOW, "name": "none"}) is None
    assert log_report("a sweep", [], MLFLOW) is None
    assert reports(store) == []


@pytest.mark.system
def test_server_that_is_down_is_an_error_with_the_folder(files, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    paths = files("report.html")
    with pytest.raises(RuntimeError, match=f"cannot publish the report .*are in {paths[0].parent}"):
        log_report("a sweep", paths, MLFLOW)
