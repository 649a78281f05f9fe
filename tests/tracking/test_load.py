"""Reading published runs back from MLflow."""

from dataclasses import replace

import pytest

from epochmeter.report.runs.load import from_mlflow, read
from epochmeter.results.reuse import write_reference
from epochmeter.shared.atomic_files import write_json
from epochmeter.tracking import load, run_export
from epochmeter.tracking.load import load_runs, run_links
from epochmeter.tracking.publish import include_reused, publish
from epochmeter.tracking.report_artifacts import log_report

ESTIMATE = {"source": "estimated", "covers": "CPU", "reason": "no meter: its load times its TDP"}
FOUR_RANKS = {"training": {"ranks": 4, "torch": "2.9", "python": "3.11"}, "storage": {"medium": "nvme"}}
KINDS = {
    "completed": {"limit": 100, "overrides": ["batch=16", "optimizer.lr=0.01", "+note='a | b'"]},
    "without overrides": {"overrides": []},
    "two nodes": FOUR_RANKS,
    "without energy": {"energy": False},
    "estimated": {"energy": ESTIMATE},
    "rehearsal": {"rehearsal": ["device=nano: this is host vm; and that", "storage=sd"]},
    "one epoch": {"epochs": 1},
    "failed": {"state": "failed"},
    "killed": {"state": "killed"},
    "not ended": {"state": None, "epochs": 0},
}


def test_run_is_read_back_as_published_with_the_sweeps_that_reuse_it(store, make_record, tmp_path):
    record = make_record(batch=8, limit=100)
    (folder := tmp_path / "new" / "3").mkdir(parents=True)
    write_reference(folder, record, ["batch=16"])
    published = include_reused(folder, store)
    (run,) = load_runs(store.uri)
    assert (run["run_id"], run["status"], run["sweep_id"]) == (published.run_id, "FINISHED", "sweep")
    assert run["reused_as"] == [("new", 3)]
    assert record.summary()["metrics"].items() <= run["metrics"].items()
    assert run["tags"]["epochmeter.energy_source"] == "counter"
    assert f"/runs/{published.run_id}" in run["link"]


@pytest.mark.system
def test_report_from_mlflow_equals_report_from_records(store, make_record):
    for number, keys in enumerate(KINDS.values()):
        record = make_record(number, **keys)
        host = {**record.host(), "cpu": {"model": "Xeon", "cores": 8}, "gpus": [{"model": "H200"}] * 2}
        write_json(record.folder / "host.json", host)
        publish(record, store)
    expected = {row.number: row for row in read(record.folder.parent).runs}
    rows = {row.number: replace(row, link=None) for row in map(from_mlflow, load_runs(store.uri))}
    for number, kind in enumerate(KINDS):
        assert rows.get(number) == expected.get(number), kind


def test_metadata_of_very_many_epochs_omits_the_epochs(make_record, monkeypatch):
    record = make_record(epochs=30)
    info = run_export.unpack(run_export.run_info_tag(record))
    assert list(info["epochs"]) == list(range(30))
    monkeypatch.setattr(run_export, "MAX_TAG", len(run_export.run_info_tag(record)) - 1)
    assert run_export.unpack(run_export.run_info_tag(record)) == {**info, "epochs": {}}
    monkeypatch.setattr(run_export, "MAX_TAG", 20)
    assert run_export.run_info_tag(record) is None
    assert run_export.RUN_INFO_TAG not in run_export.run_tags(record)


def test_page_links_are_found_by_run_number(store, make_record):
    published = {number: publish(make_record(number), store).run_id for number in (0, 3)}
    links = run_links(["sweep", "another", "o'clock"], uri=store.uri)
    assert links.keys() == {"sweep/0", "sweep/3"}
    assert all(f"/runs/{run_id}" in links[f"sweep/{number}"] for number, run_id in published.items())


def test_pages_are_joined_in_order_of_start(store, make_record, monkeypatch):
    for number, second in enumerate((2, 0, 1)):
        publish(make_record(number, epochs=1, started=f"2026-11-20T12:00:0{second}+00:00"), store)
    monkeypatch.setattr(load, "PAGE_SIZE", 2)
    assert [run["tags"]["epochmeter.folder"][-1] for run in load_runs(store.uri)] == ["1", "2", "0"]


def test_unmeasured_and_deleted_runs_are_skipped(store, make_record, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    (tmp_path / "report.html").write_text("<p>")
    log_report("sweep", [tmp_path / "report.html"], {"name": "mlflow", "experiment": "epochmeter"})
    store.client.create_run(store.experiment_id, run_name="of another program")
    store.client.delete_run(publish(make_record(0), store).run_id)
    assert load_runs(store.uri) == []
    kept = publish(make_record(1), store)
    assert [run["run_id"] for run in load_runs(store.uri)] == [kept.run_id]


def test_missing_database_or_experiment_is_an_error_and_not_created(store, tmp_path):
    with pytest.raises(LookupError, match=r"no database at .*mlflow\.db: publish the runs first"):
        load_runs(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert not list(tmp_path.iterdir())
    with pytest.raises(LookupError, match=r"set tracking.experiment= to one of Default, epochmeter\."):
        load_runs(store.uri, "mine")
