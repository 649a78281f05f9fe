"""What MLflow shows is read back: every measured run once, and nothing that is made for being asked."""

from dataclasses import replace

import pytest

from epochmeter.report.runs.load import read
from epochmeter.report.runs.sources import of_shown
from epochmeter.results.reuse import write_reference
from epochmeter.shared.atomic_files import write_json
from epochmeter.tracking import load as shown
from epochmeter.tracking import run_export
from epochmeter.tracking.load import load_runs, run_links
from epochmeter.tracking.publish import include_reused, publish
from epochmeter.tracking.report_artifacts import log_report


def test_run_is_read_back_as_published(store, make_record):
    record = make_record(batch=8, limit=100)
    published = publish(record, store)
    (run,) = load_runs(store.uri)
    assert (run["run_id"], run["status"], run["sweep_id"]) == (published.run_id, "FINISHED", "sweep")
    assert (run["params"]["batch"], run["params"]["power_limit"]) == ("8", "100")
    assert record.summary()["metrics"].items() <= run["metrics"].items()
    assert run["tags"]["epochmeter.energy_source"] == "counter"
    assert f"/runs/{published.run_id}" in run["link"]


def test_run_is_read_back_with_sweeps_that_reuse_it(store, make_record, tmp_path):
    record = make_record()
    (folder := tmp_path / "new" / "3").mkdir(parents=True)
    write_reference(folder, record, ["batch=16"])
    include_reused(folder, store)
    (run,) = load_runs(store.uri)
    assert (run["sweep_id"], run["reused_as"]) == ("sweep", [("new", 3)])


ESTIMATE = {"source": "estimated", "covers": "CPU", "reason": "no meter: its load times its TDP"}
FOUR_RANKS = {"training": {"ranks": 4, "torch": "2.9", "python": "3.11"}, "storage": {"medium": "nvme"}}
KINDS = {
    "completed": {"limit": 100, "overrides": ["batch=16", "optimizer.lr=0.01", "+note='a | b'"]},
    "of nothing but what it was by itself": {"overrides": []},
    "on two nodes": FOUR_RANKS,
    "without energy": {"energy": False},
    "estimated": {"energy": ESTIMATE},
    "a rehearsal": {"rehearsal": ["device=nano: this is host vm; and that", "storage=sd"]},
    "of one epoch": {"epochs": 1},
    "failed": {"state": "failed"},
    "killed": {"state": "killed"},
    "cut off": {"state": None, "epochs": 0},
}


@pytest.mark.system
def test_report_from_mlflow_equals_report_from_records(store, make_record):
    for number, asked in enumerate(KINDS.values()):
        record = make_record(number, **asked)
        host = {**record.host(), "cpu": {"model": "Xeon", "cores": 8}, "gpus": [{"model": "H200"}] * 2}
        write_json(record.folder / "host.json", host)
        publish(record, store)
    known = {row.number: row for row in read(record.folder.parent).runs}
    for run in load_runs(store.uri):
        row = of_shown(run)
        assert replace(row, link=None) == known.pop(row.number), list(KINDS)[row.number]
    assert not known, "each of them is there"


def test_facts_of_very_many_epochs_omit_the_epochs(make_record, store, monkeypatch):
    record = make_record(epochs=30)
    told = run_export.unpack(run_export.run_info_tag(record))
    assert list(told["epochs"]) == list(range(30))
    monkeypatch.setattr(run_export, "MAX_TAG", len(run_export.run_info_tag(record)) - 1)
    assert run_export.unpack(run_export.run_info_tag(record)) == {**told, "epochs": {}}
    monkeypatch.setattr(run_export, "MAX_TAG", 20)
    assert run_export.run_info_tag(record) is None
    assert run_export.RUN_INFO_TAG not in run_export.run_tags(record)


def test_invalid_facts_are_none(store, make_record):
    run_id = publish(make_record(), store).run_id
    for text in ("", "no base64!", run_export.pack([]), "AAAA"):
        store.client.set_tag(run_id, run_export.RUN_INFO_TAG, text)
        assert load_runs(store.uri)[0]["facts"] is None


def test_page_links_are_found_by_run_number(store, make_record):
    published = {number: publish(make_record(number), store).run_id for number in (0, 3)}
    found = run_links(["sweep", "another", "o'clock"], uri=store.uri)
    assert found.keys() == {"sweep/0", "sweep/3"}
    assert all(f"/runs/{run_id}" in found[f"sweep/{number}"] for number, run_id in published.items())


def test_missing_values_are_absent(store, make_record):
    publish(make_record(limit=None, energy=False), store)
    (run,) = load_runs(store.uri)
    assert "power_limit" not in run["params"]
    assert not [name for name in run["metrics"] if "energy" in name]


@pytest.mark.parametrize("state", ["failed", "killed"])
def test_failed_run_has_its_status(store, make_record, state):
    publish(make_record(state=state), store)
    assert [run["status"] for run in load_runs(store.uri)] == [state.upper()]


def test_pages_are_joined_in_order_of_start(store, make_record, monkeypatch):
    started = [f"2026-11-20T12:00:0{second}+00:00" for second in (3, 0, 4, 1, 2)]
    for number, when in enumerate(started):
        publish(make_record(number, started=when), store)
    monkeypatch.setattr(shown, "PAGE_SIZE", 2)
    assert [run["tags"]["epochmeter.folder"][-1] for run in load_runs(store.uri)] == ["1", "3", "4", "0", "2"]


def test_unmeasured_and_deleted_runs_are_skipped(store, make_record, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    (tmp_path / "report.html").write_text("<p>")
    log_report("sweep", [tmp_path / "report.html"], {"name": "mlflow", "experiment": "epochmeter"})
    store.client.create_run(store.experiment_id, run_name="somebody else's")
    store.client.delete_run(publish(make_record(0), store).run_id)
    assert load_runs(store.uri) == []
    kept = publish(make_record(1), store)
    assert [run["run_id"] for run in load_runs(store.uri)] == [kept.run_id]


def test_missing_database_is_not_created(tmp_path):
    with pytest.raises(LookupError, match=r"no database at .*mlflow\.db: publish the runs first"):
        load_runs(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert not list(tmp_path.iterdir())


def test_missing_experiment_lists_existing_ones(store):
    with pytest.raises(
        LookupError, match=r"no experiment 'mine'.*set tracking.experiment= to one of Default, epochmeter, template"
    ):
        load_runs(store.uri, "mine")


@pytest.mark.system
def test_server_that_is_down_is_an_error(tmp_path):
    with pytest.raises(Exception, match="9"):
        load_runs("http://127.0.0.1:9")
