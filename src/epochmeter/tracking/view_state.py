"""The form of a view, which is MLflow's inner affair: that of 3.17."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

Chart = dict[str, Any]


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


def page(
    query: str,
    columns: list[str],
    sections: dict[str, list[Chart]] | None = None,
    groups: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """The whole state of the experiment's page: which runs it shows, what the list shows of each, and the charts.

    `groups` are the params and tags, as (`param`, `device`), by whose values runs become one, the mean of all.
    """
    sections = sections or {}
    keys = [{"mode": mode, "groupByData": name} for mode, name in groups]
    chosen = {"deleted": False, "isGenerated": False}
    section = {**chosen, "display": True, "isReordered": True, "cardHeight": 280}
    return {
        "searchFilter": query,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
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


def packed(name: str, page: dict[str, Any]) -> str:
    """The view of this name, as the tag holds it."""
    state = base64.b64encode(zlib.compress(json.dumps(page).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{state}"})
