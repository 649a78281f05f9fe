"""Saved views fit the runs, and errors in saving them do not affect a run."""

import base64
import json
import re
import zlib
from urllib.parse import parse_qs, urlsplit

import pytest

from epochmeter.results.metrics import METRICS
from epochmeter.tracking import views
from epochmeter.tracking.publish import RECORD_ID, SWEEPS, Published


def unpack(view: str) -> dict:
    state = json.loads(view)["state"].removeprefix("deflate;")
    return json.loads(zlib.decompress(base64.b64decode(state)))


def metrics_of(page: dict) -> set[str]:
    charts = page["compareRunCharts"]
    keys = {chart[axis]["key"] for chart in charts for axis in ("xaxis", "yaxis") if axis in chart}
    keys |= {chart["metricKey"] for chart in charts if "metricKey" in chart}
    return keys.union(*(chart.get("selectedMetrics", ()) for chart in charts))


def tags_of(store):
    return store.client.get_experiment(store.experiment_id).tags


def test_newest_sweeps_have_their_own_views(store, monkeypatch):
    monkeypatch.setattr(views, "SWEEPS_KEPT", 2)
    names = [f"2026-11-20_12-00-00.{count}-1a2b3c4d" for count in range(8, 13)]
    for name in names:
        views.save_views(store, sweep=name)
    tags = tags_of(store)
    saved = [tag for tag in tags if tag.startswith(views.VIEW_TAG_PREFIX + views.SWEEP_VIEW_PREFIX)]
    assert sorted(saved) == sorted(f"{views.VIEW_TAG_PREFIX}{views.SWEEP_VIEW_PREFIX}{name}" for name in names[2:])
    views.save_views(store, sweep=names[2])  # an older one that was resumed
    assert saved[0] in tags_of(store)
    key = parse_qs(views.results_link(store, names[-1]).partition("?")[2])["viewStateShareKey"][0]
    query = unpack(tags[views.VIEW_TAG_PREFIX + key])["searchFilter"]
    assert query.endswith(f"tags.`epochmeter.sweeps` LIKE '%{names[-1]}%'")


def test_energy_is_drawn_against_time_as_soon_as_a_completed_run_of_the_view_has_it(store):
    def run(metric, status, sweep):
        tags = {RECORD_ID: "1", SWEEPS: sweep}
        run_id = store.client.create_run(store.experiment_id, tags=tags).info.run_id
        store.client.log_metric(run_id, metric, 0.0)
        store.client.set_terminated(run_id, status)

    for runs, of_all, of_sweep in (
        ([], [], []),
        ([(views.ENERGY, "FAILED", "mine")], [], []),
        ([(views.ESTIMATE, "FINISHED", "mine")], [views.ESTIMATE], [views.ESTIMATE]),
        ([(views.ENERGY, "FINISHED", "other")], [views.ENERGY, views.ESTIMATE], [views.ESTIMATE]),
    ):
        for values in runs:
            run(*values)
        views.save_views(store, "mine")
        for key, energies in ((views.ENERGY_AND_TIME, of_all), (f"{views.SWEEP_VIEW_PREFIX}mine", of_sweep)):
            page = unpack(tags_of(store)[views.VIEW_TAG_PREFIX + key])
            drawn = [chart["yaxis"]["key"] for chart in page["compareRunCharts"] if chart["type"] == "SCATTER"]
            assert drawn == [*energies, "steady/e2e_s"]
            columns = [section["columns"] for section in page["compareRunSections"]]
            assert columns == [3 if energies else 1, 1, 3, 3], "a section is as wide as its charts"


def test_axes_are_the_parameters_that_differ_and_one_that_some_runs_lack_has_a_chart_of_its_own(store):
    def run(**params):
        run_id = store.client.create_run(store.experiment_id, tags={RECORD_ID: "1", SWEEPS: "mine"}).info.run_id
        for name, value in {"device": "cpu", "model.name": f"m{params['batch']}", **params}.items():
            store.client.log_param(run_id, name, value)
        store.client.set_terminated(run_id)

    def axes():
        views.save_views(store, "mine")
        page = unpack(tags_of(store)[f"{views.VIEW_TAG_PREFIX}{views.SWEEP_VIEW_PREFIX}mine"])
        charts = page["compareRunCharts"]
        return [chart["selectedParams"] for chart in charts if chart["type"] == "PARALLEL"], page["selectedColumns"]

    run(batch=8, epochs=2)
    assert axes()[0] == [["device", "batch", "workers"]], "with one run none differs"
    run(batch=16, epochs=2)
    assert axes()[0] == [["batch", "model.name"]]
    run(batch=16, epochs=4, power_limit=100)
    params, columns = axes()
    assert params == [["batch", "epochs", "model.name"], ["batch", "epochs", "model.name", "power_limit"]]
    assert columns[:3] == ["params.`batch`", "params.`power_limit`", "params.`epochs`"]
    assert len(columns) == len(set(columns))


def test_views_show_existing_metrics_and_are_saved_once_without_an_error(store, monkeypatch):
    views.save_views(store)
    tags = tags_of(store)
    assert set(re.findall("`(\\w+/\\w+)`", tags[views.NOTE_TAG])) <= set(METRICS)
    for key, view in views.views(None, views.find_runs(store, None)).items():
        assert tags[views.VIEW_TAG_PREFIX + key] == view
        assert {metric.replace("steady/", "epoch/") for metric in metrics_of(unpack(view))} <= set(METRICS)
    monkeypatch.setattr(type(store.client), "set_experiment_tag", lambda *_: pytest.fail("written again"))
    views.save_views(store)
    assert tags_of(store) == tags
    monkeypatch.undo()
    store.client.set_experiment_tag(store.experiment_id, views.NOTE_TAG, "mine")
    views.save_views(store)
    assert tags_of(store)[views.NOTE_TAG] == "mine"
    store.client.delete_experiment(store.experiment_id)
    views.save_views(store, "new")


@pytest.mark.parametrize(
    ("uri", "base"), [("http://tracker:80/", "http://tracker:80"), ("sqlite:////x.db", "http://127.0.0.1:5000")]
)
def test_links_open_in_the_server_of_the_runs(uri, base):
    published = Published("abc", "7", uri)
    assert views.run_link(published).startswith(f"{base}/#/experiments/7/runs/abc?")
    query = parse_qs(urlsplit(urlsplit(views.results_link(published)).fragment).query)
    assert query["viewStateShareKey"] == [views.ENERGY_AND_TIME]
    assert query["workflowType"] == ["machine_learning"]


def test_runs_are_searched_for_again_only_after_another_process_has_saved_views(store, monkeypatch):
    searches, find_runs = [], views.find_runs
    monkeypatch.setattr(views, "find_runs", lambda *args: searches.append(args) or find_runs(*args))
    mine = views.save_views(store, "mine")
    assert views.save_views(store, "mine", mine) == mine
    assert len(searches) == 1
    run_id = store.client.create_run(store.experiment_id, tags={RECORD_ID: "1", SWEEPS: "other"}).info.run_id
    store.client.log_metric(run_id, views.ENERGY, 1.0)
    store.client.set_terminated(run_id)
    views.save_views(store, "other")
    now = views.save_views(store, "mine", mine)
    assert len(searches) == 3
    assert views.ENERGY in metrics_of(unpack(now.texts[views.ENERGY_AND_TIME]))
