"""The serialized state of a view in MLflow: an internal format, of version 3.17."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

Chart = dict[str, Any]


def scatter(x: str, y: str) -> Chart:
    """Return a scatter plot of two metrics."""
    return {"type": "SCATTER", "xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}


def parallel(params: list[str], metrics: list[str]) -> Chart:
    """Return parallel coordinates."""
    return {"type": "PARALLEL", "selectedParams": params, "selectedMetrics": metrics}


def bar(metric: str) -> Chart:
    """Return a bar chart of a metric."""
    return {"type": "BAR", "metricKey": metric}


def line(metric: str) -> Chart:
    """Return a curve of a metric over steps."""
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
    """Return the state of the experiment's page.

    Args:
        query: Filter of runs.
        columns: Columns of the run list.
        sections: Charts by section.
        groups: Params and tags, such as (`param`, `device`), by which runs are averaged.
    """
    sections = sections or {}
    keys = [{"mode": mode, "groupByData": name} for mode, name in groups]
    flags = {"deleted": False, "isGenerated": False}
    section = {**flags, "display": True, "isReordered": True, "cardHeight": 280}
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
            {**flags, **chart, "runsCountToCompare": 20, "uuid": f"{name} {index}", "metricSectionId": name}
            for name, shown in sections.items()
            for index, chart in enumerate(shown)
        ],
    }


def pack_view(name: str, page: dict[str, Any]) -> str:
    """Return a view as stored in its tag."""
    state = base64.b64encode(zlib.compress(json.dumps(page).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{state}"})
