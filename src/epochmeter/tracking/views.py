"""Links to MLflow's pages, and saved views of the experiment's page, as its default view shows no parameters.

Views are optional: errors are logged and do not affect the run. Their state is an internal format of MLflow 3.17.
"""

from __future__ import annotations

import base64
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

from epochmeter.config.installation import UI_ADDRESS
from epochmeter.config.secrets import strip_credentials
from epochmeter.shared.record import Record
from epochmeter.tracking.client import Store
from epochmeter.tracking.publish import MEASURED, SWEEPS, Published

VIEW_TAG_PREFIX = "mlflow.sharedViewState."
ENERGY_AND_TIME = "epochmeter-energy-and-time"
REPORTS = "epochmeter-reports"
SWEEP_VIEW_PREFIX = "epochmeter-sweep-"
SWEEPS_KEPT = 20  # number of newest sweeps with a view of their own: the menu lists all views, and each run reads them
REHEARSAL_TAG = "epochmeter.rehearsal"
SCOPE_TAG = "epochmeter.energy_covers"
REPORT_TAG = "epochmeter.report"
"""Tag with the sweep whose report a run contains; such a run has no measurements, and views of runs exclude it."""
ENERGY_BY_SOURCE = {"counter": "energy_j", "sampled": "energy_j", "estimated": "estimated_energy_j"}
"""Energy metric by energy source, the best first."""
RUN_FILTER = f"attributes.status = 'FINISHED' and {MEASURED}"
"""Filter of views of runs: completed and measured. Failed runs stopped early, so their totals are not comparable."""
REPORT_FILTER = f"tags.`{REPORT_TAG}` != ''"
NOTE_TAG = "mlflow.note.content"  # tag with the description of an experiment or a run
FLAGS = {"deleted": False, "isGenerated": False}
PAGE_STATE = {
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
Chart = Mapping[str, object]


def results_link(destination: Published | Store, sweep: str | None = None) -> str:
    """Return the address of the view of energy and time: of a sweep's results, or of the newest runs."""
    view = f"{SWEEP_VIEW_PREFIX}{sweep}" if sweep else ENERGY_AND_TIME
    return f"{_base(destination)}/{_view_page(destination, view)}"


def run_link(published: Published) -> str:
    """Return the address of the run's page."""
    return f"{_base(published)}/{_page(published, f'runs/{published.run_id}')}"


def artifact_link(published: Published, name: str) -> str:
    """Return the address of the page that previews an artifact."""
    return f"{_base(published)}/{artifact_page(published, name)}"


def artifact_page(published: Published, name: str) -> str:
    """Return the same relative to MLflow's address, for links within its pages."""
    return _page(published, f"runs/{published.run_id}/artifacts/{quote(name)}")


def save_views(store: Store, record: Record | None = None, sweep: str | None = None) -> None:
    """Save the views that are missing or outdated, and the experiment's description.

    Args:
        record: The run folder that is published; its run may have just begun.
        sweep: The sweep that gets a view of its own; those of older sweeps are deleted.
    """
    try:
        tags = store.client.get_experiment(store.experiment_id).tags
        for key, view in views(best_energy(store, record), sweep).items():
            if tags.get(VIEW_TAG_PREFIX + key) != view:
                store.client.set_experiment_tag(store.experiment_id, VIEW_TAG_PREFIX + key, view)
        sweep_tags = sorted(tag for tag in tags if tag.startswith(VIEW_TAG_PREFIX + SWEEP_VIEW_PREFIX))
        for tag in sweep_tags[:-SWEEPS_KEPT] if sweep else ():  # the names of sweeps begin with the time
            store.client.delete_experiment_tag(store.experiment_id, tag)
        if not tags.get(NOTE_TAG):
            store.client.set_experiment_tag(store.experiment_id, NOTE_TAG, experiment_note(store))
    except Exception as error:  # views are optional
        logging.getLogger(__name__).info("MLflow's views were not saved: %s", error)


def best_energy(store: Store, record: Record | None = None) -> str | None:
    """Return the best energy metric of any run, or the one expected of the record's; None if there is none."""
    expected = ENERGY_BY_SOURCE.get(record.run()["energy"]["source"]) if record else None
    for name in dict.fromkeys(ENERGY_BY_SOURCE.values()):
        query = f"metrics.`total/{name}` > 0"
        if name == expected or store.client.search_runs([store.experiment_id], query, max_results=1):
            return name
    return None


def experiment_note(store: Store) -> str:
    """Return the description on the experiment's page."""
    paragraphs = [  # one line per paragraph: MLflow keeps line breaks
        "**Measured training runs: where the time of each epoch went, and how many joules it used.**",
        f"See [energy and time]({_view_page(store, ENERGY_AND_TIME)}) of the newest runs, or the "
        f"[reports]({_page(store, 'runs', {'viewStateShareKey': REPORTS})}) of sweeps.",
        "`docs/metrics.md` in the project explains every metric. Values that could not be measured are absent, never "
        "0; the tag `epochmeter.energy_reason` has the reason.",
        "Do not compare energies of different hardware, which `epochmeter.energy_covers` names. A run with "
        "`epochmeter.rehearsal=true` was configured for other hardware than its machine, and is no result.",
    ]
    return "\n\n".join(paragraphs)


def views(energy: str | None, sweep: str | None = None) -> dict[str, str]:
    """Return the views by key, in MLflow's format: of all runs, of reports, and of a sweep."""
    listed, sections = columns(energy), charts(energy)
    saved = {
        ENERGY_AND_TIME: pack_view("Energy and time", RUN_FILTER, listed, sections),
        REPORTS: pack_view("Reports", REPORT_FILTER, [f"tags.`{REPORT_TAG}`"], {}),
    }
    if sweep:
        query = f"{RUN_FILTER} and tags.`{SWEEPS}` LIKE '%{sweep}%'"
        saved[f"{SWEEP_VIEW_PREFIX}{sweep}"] = pack_view(f"Sweep {sweep}", query, listed, sections)
    return saved


def columns(energy: str | None) -> list[str]:
    """Return the columns of the run list."""
    params = ("device", "model", "dataset", "batch", "workers", "power_limit")
    metrics = ("total/e2e_s", *([f"total/{energy}"] if energy else []), "steady/data_stall_s", "val/accuracy")
    return [
        *(f"params.`{name}`" for name in params),
        *(f"metrics.`{name}`" for name in metrics),
        *([f"tags.`{SCOPE_TAG}`"] if energy else []),
        f"tags.`{REHEARSAL_TAG}`",
    ]


def charts(energy: str | None) -> dict[str, list[Chart]]:
    """Return the charts by section; without energy, only time."""
    energies = [f"total/{energy}"] if energy else []
    results = ["steady/data_stall_s", "steady/e2e_s", *energies]
    epoch_metrics = ["e2e_s", "data_stall_s", *([energy] if energy else []), "train_loss"]
    return {
        "Energy and time": [
            *(scatter("total/e2e_s", name) for name in energies),
            scatter("steady/data_stall_s", "steady/e2e_s"),
            bar(energies[0] if energies else "steady/e2e_s"),
        ],
        # MLflow drops runs that lack an axis: a second chart includes the power limit.
        "Configuration and results": [
            {"type": "PARALLEL", "selectedParams": ["device", *axes], "selectedMetrics": results}
            for axes in (["batch", "workers"], ["batch", "power_limit"])
        ],
        "Where the time goes": [bar(f"steady/{name}") for name in ("e2e_s", "data_stall_s", "compute_s")],
        "Epoch by epoch": [*(line(f"epoch/{name}") for name in epoch_metrics), line("val/accuracy")],
    }


def scatter(x: str, y: str) -> Chart:
    """Return a scatter plot of two metrics."""
    return {"type": "SCATTER", "xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}


def bar(metric: str) -> Chart:
    """Return a bar chart of a metric."""
    return {"type": "BAR", "metricKey": metric}


def line(metric: str) -> Chart:
    """Return a curve of a metric over steps."""
    axes = {"xAxisKey": "step", "lineSmoothness": 0, "scaleType": "linear", "range": {}}
    return {"type": "LINE", "metricKey": metric, "selectedMetricKeys": [metric], **axes}


def pack_view(name: str, query: str, columns: Sequence[str], sections: Mapping[str, Sequence[Chart]]) -> str:
    """Return a view of the experiment's page as stored in its tag."""
    page = {
        **PAGE_STATE,
        "searchFilter": query,
        "selectedColumns": columns,
        "groupBy": None,
        "compareRunSections": [
            {**FLAGS, "display": True, "isReordered": True, "cardHeight": 280, "uuid": title, "name": title,
             "columns": min(3, len(drawn))}
            for title, drawn in sections.items()
        ],
        "compareRunCharts": [
            {**FLAGS, **chart, "runsCountToCompare": 20, "uuid": f"{title} {index}", "metricSectionId": title}
            for title, drawn in sections.items()
            for index, chart in enumerate(drawn)
        ],
    }  # fmt: skip
    state = base64.b64encode(zlib.compress(json.dumps(page).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{state}"})


def _base(destination: Published | Store) -> str:
    return strip_credentials(destination.uri.rstrip("/")) if destination.uri.startswith("http") else UI_ADDRESS


def _view_page(destination: Published | Store, view: str) -> str:
    return _page(destination, "runs", {"compareRunsMode": "CHART", "viewStateShareKey": view})


def _page(destination: Published | Store, page: str, query: Mapping[str, str] | None = None) -> str:
    """Return the address of a page relative to MLflow's."""
    # By default MLflow opens in its mode for language models, which shows no runs.
    parameters = urlencode({"workflowType": "machine_learning", **(query or {})})
    return f"#/experiments/{destination.experiment_id}/{page}?{parameters}"
