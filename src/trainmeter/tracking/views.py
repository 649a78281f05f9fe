"""Saved views of the experiment's page: MLflow's own first view of runs shows neither a parameter nor a metric.

The form of a view is MLflow's inner affair (as of 3.17): views are put there at best effort, and a run whose views
could not be saved lacks nothing else.
"""

from __future__ import annotations

import base64
import json
import logging
import zlib
from typing import Any
from urllib.parse import urlencode

from trainmeter.tracking.publish import Published
from trainmeter.tracking.store import Store

LOCAL = "http://127.0.0.1:5000"
"""Where `mlflow ui` listens unless told otherwise."""
TAG = "mlflow.sharedViewState."
ENERGY_AND_TIME = "trainmeter-energy-and-time"
BY_DEVICE_AND_LIMIT = "trainmeter-by-device-and-limit"
COLUMNS = [
    *(f"params.`{name}`" for name in ("device", "model", "dataset", "batch", "workers", "power_limit")),
    *(f"metrics.`{name}`" for name in ("total/e2e_s", "total/energy_j", "steady/fetch_stall_s", "val/accuracy")),
    "tags.`trainmeter.rehearsal`",
]
Chart = dict[str, Any]


def link(shown: Published | Store) -> str:
    """The address of the saved view of energy and time, which compares the newest runs."""
    return _address(shown, "runs", {"compareRunsMode": "CHART", "viewStateShareKey": ENERGY_AND_TIME})


def run_link(published: Published) -> str:
    """The address of the run's own page."""
    return _address(published, f"runs/{published.run_id}")


def save(store: Store) -> None:
    """Puts the views into the experiment, where they are not there as they are here."""
    try:
        tags = store.client.get_experiment(store.experiment_id).tags
        for key, view in views(energy_of(store)).items():
            if tags.get(TAG + key) != view:
                store.client.set_experiment_tag(store.experiment_id, TAG + key, view)
    except Exception as error:  # a view is a comfort: no run is harmed for want of one
        logging.getLogger(__name__).info("MLflow's views were not saved: %s", error)


def energy_of(store: Store) -> str | None:
    """The best energy that any run has: measured, or else estimated, or else none."""
    for name in ("energy_j", "estimated_energy_j"):
        if store.client.search_runs([store.experiment_id], f"metrics.`total/{name}` > 0", max_results=1):
            return name
    return None


def views(energy: str | None) -> dict[str, str]:
    """Key -> a view, as MLflow keeps it."""
    return {
        ENERGY_AND_TIME: _packed("Energy and time", _page(charts(energy), groups=[])),
        BY_DEVICE_AND_LIMIT: _packed(
            "By device and power limit", _page(charts(energy), groups=["device", "power_limit"])
        ),
    }


def charts(energy: str | None) -> dict[str, list[Chart]]:
    """Section -> its charts. Where no run has energy, time and what it went into fill the page alone."""
    energies = [f"total/{energy}"] if energy else []
    return {
        "Energy and time": [
            *(scatter("total/e2e_s", name) for name in energies),
            scatter("steady/fetch_stall_s", "steady/e2e_s"),
            bar(energies[0] if energies else "steady/e2e_s"),
        ],
        "What was asked, and what it led to": [
            parallel(["device", "batch", "workers", "power_limit"], ["steady/fetch_stall_s", "steady/e2e_s", *energies])
        ],
        "Where the time goes": [bar(f"steady/{name}") for name in ("e2e_s", "fetch_stall_s", "compute_s")],
        "Epoch by epoch": [
            *(line(f"epoch/{name}") for name in ("e2e_s", "fetch_stall_s", *([energy] if energy else []))),
            line("epoch/train_loss"),
            line("val/accuracy"),
        ],
    }


def scatter(x: str, y: str) -> Chart:
    return {"type": "SCATTER", "xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}


def parallel(params: list[str], metrics: list[str]) -> Chart:
    return {"type": "PARALLEL", "selectedParams": params, "selectedMetrics": metrics}


def bar(metric: str) -> Chart:
    return {"type": "BAR", "metricKey": metric}


def line(metric: str) -> Chart:
    return {
        "type": "LINE",
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "xAxisKey": "step",
        "lineSmoothness": 0,
        "scaleType": "linear",
        "range": {},
    }


def _page(sections: dict[str, list[Chart]], groups: list[str]) -> dict[str, Any]:
    """The whole state of the experiment's page."""
    keys = [{"mode": "param", "groupByData": name} for name in groups]
    chosen = {"deleted": False, "isGenerated": False}
    section = {**chosen, "display": True, "isReordered": True, "cardHeight": 320}
    return {
        # A run that failed stopped early: its totals are no comparison.
        "searchFilter": "attributes.status = 'FINISHED'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": COLUMNS,
        "columnOrder": [],
        "columnWidths": {},
        "runsHiddenMode": "FIRST_20_RUNS",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": {"aggregateFunction": "average", "groupByKeys": keys} if keys else None,
        "groupsExpanded": {},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        "compareRunSections": [
            {**section, "uuid": name, "name": name, "columns": min(3, len(shown))} for name, shown in sections.items()
        ],
        "compareRunCharts": [
            {**chosen, **chart, "runsCountToCompare": 20, "uuid": f"{name} {index}", "metricSectionId": name}
            for name, shown in sections.items()
            for index, chart in enumerate(shown)
        ],
    }


def _packed(name: str, page: dict[str, Any]) -> str:
    state = base64.b64encode(zlib.compress(json.dumps(page).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{state}"})


def _address(shown: Published | Store, page: str, query: dict[str, str] | None = None) -> str:
    base = shown.uri.rstrip("/") if shown.uri.startswith("http") else LOCAL
    # MLflow opens in the mode for language models, which shows no run, unless it is told.
    asked = urlencode({"workflowType": "machine_learning", **(query or {})})
    return f"{base}/#/experiments/{shown.experiment_id}/{page}?{asked}"
