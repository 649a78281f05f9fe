"""The serialized state of a view in MLflow: an internal format, of version 3.17."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence

Chart = Mapping[str, object]
FLAGS = {"deleted": False, "isGenerated": False}
DEFAULTS = {
    "orderByKey": "attributes.start_time",
    "orderByAsc": False,
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "datasetsFilter": [],
    "modelVersionFilter": "All Runs",
    "columnOrder": [],
    "columnWidths": {},
    "runsHiddenMode": "FIRST_20_RUNS",
    "viewMaximized": False,
    "runListHidden": False,
    "isAccordionReordered": True,
    "useGroupedValuesInCharts": True,
    "hideEmptyCharts": True,
    "groupsExpanded": {},
    "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
}
"""The part of a page's state that is the same in all views."""


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
    axes = {"xAxisKey": "step", "lineSmoothness": 0, "scaleType": "linear", "range": {}}
    return {"type": "LINE", "metricKey": metric, "selectedMetricKeys": [metric], **axes}


def pack_view(
    name: str,
    query: str,
    columns: Sequence[str],
    sections: Mapping[str, Sequence[Chart]] | None = None,
    groups: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a view of the experiment's page as stored in its tag.

    Runs are filtered by `query` and averaged by `groups` of params and tags, such as (`param`, `device`).
    """
    sections = sections or {}
    keys = [{"mode": mode, "groupByData": key} for mode, key in groups]
    page = {
        **DEFAULTS,
        "searchFilter": query,
        "selectedColumns": columns,
        "groupBy": {"aggregateFunction": "average", "groupByKeys": keys} if keys else None,
        "compareRunSections": [
            {**FLAGS, "display": True, "isReordered": True, "cardHeight": 280, "uuid": title, "name": title,
             "columns": min(3, len(charts))}
            for title, charts in sections.items()
        ],
        "compareRunCharts": [
            {**FLAGS, **chart, "runsCountToCompare": 20, "uuid": f"{title} {index}", "metricSectionId": title}
            for title, charts in sections.items()
            for index, chart in enumerate(charts)
        ],
    }  # fmt: skip
    state = base64.b64encode(zlib.compress(json.dumps(page).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{state}"})
