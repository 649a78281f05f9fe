"""Reading published runs back from MLflow."""

import socket
import sqlite3
import time
from dataclasses import replace
from urllib.parse import quote

import pytest

import epochmeter
from epochmeter.report.runs.load import read_sweep
from epochmeter.results.reuse import write_reference
from epochmeter.tracking import load
from epochmeter.tracking.client import EXPERIMENT, REQUEST_TIMEOUT
from epochmeter.tracking.load import download_records, links_in_database, run_links
from epochmeter.tracking.publish import SWEEPS, include_reused, publish
from epochmeter.tracking.report_artifacts import log_report

KINDS = (
    {"limit": 100, "overrides": ["batch=16", "optimizer.lr=0.01", "+note='a | b'"]},
    {"training": {"ranks": 4, "torch": "2.9", "python": "3.11"}, "storage": {"medium": "nvme"}},
    {"energy": False},
    {"rehearsal": ["device=nano: this is host vm; and that", "storage=sd"]},
    {"state": "failed"},
)

NEW = "a sweep's new name"
LONG_S = 600  # longer than any pause of the machine


@pytest.fixture
def download(store, tmp_path):
    """download(*sweeps) -> the folder with their records; without names, of all sweeps."""

    def run(*sweeps):
        download_records(tmp_path / "downloaded", lambda names: sweeps or list(names), uri=store.uri)
        return tmp_path / "downloaded"

    return run


def test_downloaded_records_are_reported_as_the_records(store, make_record, download, capfd):
    for number, keys in enumerate(KINDS):
        publish(record := make_record(number, **keys), store)
    for here, there in zip(read_sweep(record.folder.parent).runs, read_sweep(download() / "sweep").runs, strict=True):
        assert vars(replace(there, folder=here.folder)) == vars(replace(here))
    assert "Downloading artifacts" not in capfd.readouterr().err


def test_published_runs_of_an_experiment_are_data(store, make_record):
    for number in range(2):
        publish(make_record(number), store)
    publish(make_record(0, "of another host", state=None, host="board-7"), store)  # it is running
    runs = epochmeter.load_runs(experiment=EXPERIMENT, uri=store.uri)
    assert list(runs.to_pandas()["run.number"]) == [0, 1]
    assert runs.epochs.to_pandas()["run"].nunique() == 2
    assert runs.steps.to_pandas().empty
    assert len(epochmeter.load_runs("swe*", experiment=EXPERIMENT, uri=store.uri)) == 2
    with pytest.raises(ValueError, match="MLflow has no run"):
        epochmeter.load_runs("other", experiment=EXPERIMENT, uri=store.uri)


def test_reused_run_is_downloaded_once_and_referenced_by_other_sweeps(store, make_record, download, tmp_path):
    record = make_record(batch=8)
    (folder := tmp_path / "multirun" / NEW / "3").mkdir(parents=True)
    write_reference(folder, record, ["batch=8"])
    include_reused(folder, store)
    publish(make_record(1), store)
    downloaded = download(NEW)
    assert [*downloaded.glob("*/*/job.json")] == [downloaded / "sweep/0/job.json"]
    (run,) = read_sweep(downloaded / NEW).runs
    assert (run.number, run.sweep, run.reused, run.keys) == (3, NEW, "sweep/0", {"batch": "8"})


@pytest.mark.parametrize("sweep", ["elsewhere", ".."])
def test_nothing_is_written_outside_of_the_folder_whatever_the_tags(store, make_record, download, tmp_path, sweep):
    run_id = publish(make_record(), store).run_id
    store.client.set_tag(run_id, "epochmeter.sweep_id", str(tmp_path / sweep))
    store.client.set_tag(run_id, SWEEPS, f"own new/3 {quote(str(tmp_path / 'there'), safe='')}/4 ../5")
    before = {*tmp_path.iterdir()}
    assert {path.name for path in download().iterdir()} >= {"new"}
    assert {*tmp_path.iterdir()} == before | {download()}


def test_run_that_was_reused_in_place_of_another_is_downloaded(store, make_record, download, tmp_path):
    (folder := tmp_path / "multirun" / "new" / "3").mkdir(parents=True)
    for number in range(2):  # the folder of the first is gone, but its run in MLflow is not
        write_reference(folder, make_record(number), ["batch=8"])
        include_reused(folder, store)
    (run,) = read_sweep(download("new") / "new").runs
    assert run.reused in ("sweep/0", "sweep/1")


def test_unmeasured_and_deleted_runs_are_skipped(store, make_record, download, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    (tmp_path / "report.html").write_text("<p>")
    log_report("sweep", [tmp_path / "report.html"], {"name": "mlflow", "experiment": "epochmeter"})
    store.client.create_run(store.experiment_id, run_name="of another program")
    store.client.delete_run(publish(make_record(0), store).run_id)
    monkeypatch.setattr(load, "PAGE_SIZE", 1)
    published = {number: publish(make_record(number), store).run_id for number in (1, 2)}
    assert [run.number for run in read_sweep(download() / "sweep").runs] == [*published]
    links = run_links(["sweep", "another", "o'clock"], uri=store.uri)
    assert links.keys() == {"sweep/1", "sweep/2"}
    assert links_in_database(["sweep", "another", "o'clock"], EXPERIMENT, store.uri) == links
    assert all(f"/runs/{run_id}" in links[f"sweep/{number}"] for number, run_id in published.items())


def test_links_are_those_of_runs_and_experiments_that_are_not_deleted(make_record, store):
    published = {number: publish(make_record(number), store).run_id for number in (1, 2)}
    store.client.delete_run(published[1])
    assert [*links_in_database(["sweep"], EXPERIMENT, store.uri)] == ["sweep/2"]
    store.client.delete_experiment(store.experiment_id)
    assert links_in_database(["sweep"], EXPERIMENT, store.uri) == {}


def test_other_stores_have_no_links_without_mlflow(tmp_path):
    sqlite3.connect(tmp_path / "other.db").close()
    for uri in (
        f"sqlite:///{tmp_path}/none.db",
        f"sqlite:///{tmp_path}/other.db",
        "http://127.0.0.1:9",
        "postgresql://x",
    ):
        assert links_in_database(["sweep"], EXPERIMENT, uri) is None
    assert [path.name for path in tmp_path.iterdir()] == ["other.db"]


def test_missing_database_or_experiment_is_an_error_and_not_created(store, tmp_path):
    with pytest.raises(LookupError, match=r"no database at .*mlflow\.db: publish the runs first"):
        download_records(tmp_path, list, uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert not list(tmp_path.iterdir())
    with pytest.raises(LookupError, match=r"set tracking.experiment= to one of Default, epochmeter\."):
        download_records(tmp_path, list, "mine", store.uri)


def test_links_are_not_waited_for_as_long_as_records(monkeypatch):
    from mlflow.exceptions import MlflowException

    monkeypatch.setenv(REQUEST_TIMEOUT, str(LONG_S))  # of an earlier call
    monkeypatch.setattr(load, "LINKS_TIMEOUT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri, started_s = f"http://127.0.0.1:{silent.getsockname()[1]}", time.monotonic()
        with pytest.raises(MlflowException):
            run_links(["sweep"], uri=uri)
        assert 0.9 < time.monotonic() - started_s < LONG_S
