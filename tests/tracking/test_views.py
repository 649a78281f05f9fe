"""Views are saved once, suit what the runs have, and never harm a run."""

import base64
import json
import zlib
from urllib.parse import parse_qs, urlsplit

import pytest

from epochmeter.results.metrics import METRICS
from epochmeter.tracking import views
from epochmeter.tracking.description import SECTIONS
from epochmeter.tracking.publish import Published, publish


def unpacked(view: str) -> dict:
    state = json.loads(view)["state"].removeprefix("deflate;")
    return json.loads(zlib.decompress(base64.b64decode(state)))


def shown_metrics(page: dict) -> set[str]:
    keys = set()
    for chart in page["compareRunCharts"]:
        keys |= {chart[axis]["key"] for axis in ("xaxis", "yaxis") if axis in chart}
        keys |= {chart["metricKey"]} if "metricKey" in chart else set()
        keys |= set(chart.get("selectedMetrics", ()))
    return keys


def test_newest_sweeps_have_views_of_their_own_by_sweep_and_rehearsal(store, make_record):
    publish(make_record(), store)
    names = [f"2026-11-{day:02}_12-00-00-1a2b3c4d" for day in range(1, 24)]
    for name in names:
        for _ in views.save_views_steps(store, sweep=name):
            pass
    tags = store.client.get_experiment(store.experiment_id).tags
    there = sorted(tag for tag in tags if tag.startswith(views.VIEW_TAG_PREFIX + views.SWEEP_VIEW_PREFIX))
    assert 40 <= len(there) <= 42
    key = parse_qs(views.results_link(store, names[-1]).partition("?")[2])["viewStateShareKey"][0]
    assert (
        "tags.`epochmeter.sweeps` LIKE '%2026-11-23_12-00-00-1a2b3c4d%'"
        in unpacked(tags[views.VIEW_TAG_PREFIX + key])["searchFilter"]
    )
    assert unpacked(tags[views.VIEW_TAG_PREFIX + key])["searchFilter"].endswith("tags.`epochmeter.rehearsal` = 'false'")


@pytest.mark.parametrize("energy", ["energy_j", "estimated_energy_j", None])
def test_views_show_metrics_that_exist(energy):
    for view in views.views(energy).values():
        names = {name.replace("steady/", "epoch/") for name in shown_metrics(unpacked(view))}
        assert names <= set(METRICS)


def test_where_no_run_has_energy_no_chart_asks_for_it(store, make_record):
    publish(make_record(energy=False), store)
    assert views.best_energy(store) is None
    shown = [name for view in views.views(None).values() for name in shown_metrics(unpacked(view))]
    assert not [name for name in shown if name.endswith("_j")]


def test_one_run_with_energy_brings_the_charts_of_energy(store, make_record):
    publish(make_record(0, energy=False), store)
    publish(make_record(1), store)
    assert views.best_energy(store) == "energy_j"


def test_a_run_that_has_just_begun_brings_the_charts_of_the_energy_it_will_have(store, make_record):
    record = make_record(state=None)
    for source, energy in [("none", None), ("estimated", "estimated_energy_j"), ("counter", "energy_j")]:
        record.describe(record.job(), {**record.run(), "energy": {"source": source, "covers": None, "reason": None}})
        assert views.best_energy(store, record) == energy


@pytest.mark.parametrize("energy", ["energy_j", "estimated_energy_j", None])
def test_the_list_of_runs_shows_the_energy_there_is(energy):
    shown = [name for name in views.columns(energy) if "energy" in name]
    assert shown == ([f"metrics.`total/{energy}`", "tags.`epochmeter.energy_covers`"] if energy else [])


def test_rehearsals_form_groups_of_their_own():
    page = unpacked(views.views("energy_j")[views.BY_DEVICE_AND_LIMIT])
    assert {"mode": "tag", "groupByData": "epochmeter.rehearsal"} in page["groupBy"]["groupByKeys"]


def test_groups_are_of_one_thing_that_energy_is_that_of():
    page = unpacked(views.views("energy_j")[views.BY_DEVICE_AND_LIMIT])
    assert {"mode": "tag", "groupByData": "epochmeter.energy_covers"} in page["groupBy"]["groupByKeys"]


def test_energies_that_cover_different_things_have_a_view_each_and_none_together():
    told = {
        json.loads(view)["name"]: unpacked(view) for view in views.views("energy_j", ["GPUs used", "module"]).values()
    }
    assert not [name for name in shown_metrics(told["Energy and time"]) if "energy" in name]
    for covers in ("GPUs used", "module"):
        page = told[f"Energy and time: {covers}"]
        assert page["searchFilter"].endswith(f"and tags.`epochmeter.energy_covers` = '{covers}'")
        assert "total/energy_j" in shown_metrics(page)
    one = {json.loads(view)["name"]: unpacked(view) for view in views.views("energy_j", ["module"]).values()}
    assert "Energy and time: module" not in one
    assert "total/energy_j" in shown_metrics(one["Energy and time"])


def test_what_energies_cover_is_found_among_the_runs_and_told_with_links(store, make_record):
    publish(make_record(0, energy=False), store)
    publish(make_record(1), store)
    views.save_views(store)
    assert views.energy_scopes(store, "energy_j") == ["gpu0"]
    began = make_record(2, state=None)
    began.describe(began.job(), {**began.run(), "energy": {"source": "counter", "covers": "module", "reason": None}})
    list(views.save_views_steps(store, began))
    tags = store.client.get_experiment(store.experiment_id).tags
    assert views.energy_scopes(store, "energy_j", began) == ["gpu0", "module"]
    assert "cover: [gpu0](#/experiments/" in tags[views.NOTE_TAG], "what we wrote ourselves is brought up to date"
    assert {key for key in tags if views.ENERGY_AND_TIME in key} == {
        views.VIEW_TAG_PREFIX + key
        for key in views.views("energy_j", ["gpu0", "module"])
        if views.ENERGY_AND_TIME in key
    }


def test_parallel_coordinates_show_the_runs_without_a_power_limit_too_and_no_groups():
    both = [views.views("energy_j")[key] for key in (views.ENERGY_AND_TIME, views.BY_DEVICE_AND_LIMIT)]
    every, grouped = (unpacked(view)["compareRunCharts"] for view in both)
    asked = [chart["selectedParams"] for chart in every if chart["type"] == "PARALLEL"]
    assert ["power_limit" in params for params in asked] == [False, True]
    assert "PARALLEL" not in {chart["type"] for chart in grouped}


def test_saving_again_writes_nothing(store, monkeypatch):
    views.save_views(store)
    monkeypatch.setattr(type(store.client), "set_experiment_tag", lambda *_: pytest.fail("written again"))
    views.save_views(store)


def test_saved_views_are_those_of_the_code(store):
    views.save_views(store)
    tags = store.client.get_experiment(store.experiment_id).tags
    for key, view in views.views(None).items():
        assert tags[views.VIEW_TAG_PREFIX + key] == view


def test_a_view_that_cannot_be_saved_is_no_error(store):
    store.client.delete_experiment(store.experiment_id)
    views.save_views(store)


@pytest.mark.parametrize(
    ("uri", "base"), [("http://tracker:80/", "http://tracker:80"), ("sqlite:////x.db", "http://127.0.0.1:5000")]
)
def test_links_open_where_the_runs_are_shown(uri, base):
    published = Published("abc", "7", uri)
    assert views.run_link(published).startswith(f"{base}/#/experiments/7/runs/abc?")
    query = parse_qs(urlsplit(urlsplit(views.results_link(published)).fragment).query)
    assert query["viewStateShareKey"] == [views.ENERGY_AND_TIME]
    assert query["workflowType"] == ["machine_learning"]


def test_the_experiment_says_what_it_holds_and_its_links_are_those_of_the_views(store):
    views.save_views(store)
    told = store.client.get_experiment(store.experiment_id).tags[views.NOTE_TAG]
    assert told.startswith("**Measured training runs")
    assert told.count(f"(#/experiments/{store.experiment_id}/runs?workflowType=machine_learning&") == 3
    for key in (views.ENERGY_AND_TIME, views.BY_DEVICE_AND_LIMIT, views.REPORTS):
        assert f"viewStateShareKey={key})" in told


def test_every_kind_of_metric_is_explained():
    kinds = {name.partition("/")[0] for name in METRICS}
    explained = {names.strip("`/") for kinds in SECTIONS for names in kinds.split()}
    assert kinds <= explained


def test_somebodys_own_description_stands(store):
    store.client.set_experiment_tag(store.experiment_id, views.NOTE_TAG, "Mine.")
    views.save_views(store)
    assert store.client.get_experiment(store.experiment_id).tags[views.NOTE_TAG] == "Mine."
