"""Links to MLflow's pages, and saved views of the experiment's page, as its default view shows no parameters.

Views are optional: errors are logged and do not affect the run. Their state is an internal format of MLflow 3.17.
"""

import base64
import json
import logging
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, urlencode

from epochmeter.config.installation import UI_ADDRESS
from epochmeter.config.secrets import strip_credentials
from epochmeter.results.sweep_order import sort_key
from epochmeter.tracking.client import Store
from epochmeter.tracking.publish import MEASURED, SWEEPS, Published

VIEW_TAG_PREFIX = "mlflow.sharedViewState."
ENERGY_AND_TIME = "epochmeter-energy-and-time"
REPORTS = "epochmeter-reports"
SWEEP_VIEW_PREFIX = "epochmeter-sweep-"
SWEEPS_KEPT = 20  # number of newest sweeps with a view of their own: the menu lists all views, and each run reads them
REPORT_TAG = "epochmeter.report"  # tag with the sweep whose report a run contains, which has no measurements
RUN_FILTER = f"attributes.status = 'FINISHED' and {MEASURED}"  # failed runs stopped early: no comparable totals
REPORT_FILTER = f"tags.`{REPORT_TAG}` != ''"
NOTE_TAG = "mlflow.note.content"  # tag with the description of a run or an experiment
DESCRIPTION = """\
Time and energy of training runs, per epoch. Choose "Energy and time" or a sweep in the menu "Views".

Each run is one measured training. Its metrics:

- `epoch/`: one value per epoch, such as `epoch/e2e_s`, `epoch/data_stall_s`, `epoch/compute_s`, `epoch/energy_j`
- `steady/`: means without warm-up epochs, for comparisons; `std/`: their standard deviations
- `total/`: sums over all epochs
- `val/`: evaluations

`python src/report.py` compares the runs with 95 % confidence intervals.
Tags: `epochmeter.energy_covers` is the hardware whose energy was measured, `epochmeter.rehearsal` marks runs on other
hardware than `device` names.
"""
ENERGY, ESTIMATE = "total/energy_j", "total/estimated_energy_j"
SHOWN_RUNS = 20  # number of runs of a view that MLflow shows at first
COMMON_PARAMS = ("device", "model", "dataset", "batch", "workers", "power_limit")
AXES = ("device", "batch", "workers")
"""Parameters that are the axes of a view if none differs between its runs."""
MAX_AXES = 4  # more parameters cannot be told apart
RESULT_COLUMNS = [
    *(f"metrics.`{name}`" for name in ("total/e2e_s", ENERGY, "steady/data_stall_s", "val/accuracy")),
    "tags.`epochmeter.energy_covers`",
    "tags.`epochmeter.rehearsal`",
]
"""Columns of the run list after the parameters. Energies of different hardware are not comparable, and rehearsals are
not results."""
FLAGS = {"deleted": False, "isGenerated": False}
STALLS = ("steady/data_stall_s", "steady/e2e_s")
BARS = ("steady/e2e_s", "steady/data_stall_s", "steady/compute_s")
LINES = ("epoch/e2e_s", "epoch/data_stall_s", "epoch/energy_j", "epoch/train_loss", "val/accuracy")
LINE_AXES = {"xAxisKey": "step", "lineSmoothness": 0, "scaleType": "linear", "range": {}}
Chart = Mapping[str, object]


def results_link(destination: Published | Store, sweep: str | None = None) -> str:
    """Return the address of the view of energy and time: of a sweep's results, or of the newest runs."""
    view = f"{SWEEP_VIEW_PREFIX}{sweep}" if sweep else ENERGY_AND_TIME
    query = {"compareRunsMode": "CHART", "viewStateShareKey": view}
    return f"{_base(destination)}/{_page(destination, 'runs', query)}"


def run_link(published: Published) -> str:
    return f"{_base(published)}/{_page(published, f'runs/{published.run_id}')}"


def artifact_link(published: Published, name: str, *, is_relative: bool = False) -> str:
    """Return the address of the page that previews an artifact; a relative one is for links within MLflow's pages."""
    page = _page(published, f"runs/{published.run_id}/artifacts/{quote(name)}")
    return page if is_relative else f"{_base(published)}/{page}"


class ShownRun(NamedTuple):
    """A run of a view: its parameters, and the names of its metrics."""

    params: Mapping[str, str]
    metrics: Collection[str]


ShownRuns = Mapping[str, Sequence[ShownRun]]


class SavedViews(NamedTuple):
    """The views that were saved last, by their keys, and the runs that they show."""

    texts: Mapping[str, str]
    runs: ShownRuns

    def with_run(self, run: ShownRun) -> "SavedViews":
        """Return them with the runs of each view after one more was completed."""
        return self._replace(runs={key: [run, *runs][:SHOWN_RUNS] for key, runs in self.runs.items()})


"""The newest completed runs of each view by its key."""


def save_views(store: Store, sweep: str | None = None, saved: SavedViews | None = None) -> SavedViews | None:
    """Save the views that are missing or outdated, and the experiment's description.

    A sweep gets a view of its own, and those of old sweeps are deleted.

    Args:
        store: The experiment.
        sweep: The name of a sweep.
        saved: The views that this process has saved last, with the runs to show now. Without it, or if another process
            has saved views since, the runs are searched for.

    Returns:
        The views; None if they could not be saved.
    """
    try:
        tags = store.client.get_experiment(store.experiment_id).tags
        if saved and any(tags.get(VIEW_TAG_PREFIX + key) != text for key, text in saved.texts.items()):
            saved = None
        shown = saved.runs if saved else find_runs(store, sweep)
        texts = views(sweep, shown)
        if NOTE_TAG not in tags:  # a person may have changed it
            store.client.set_experiment_tag(store.experiment_id, NOTE_TAG, DESCRIPTION)
        for key, view in texts.items():
            if tags.get(VIEW_TAG_PREFIX + key) != view:
                store.client.set_experiment_tag(store.experiment_id, VIEW_TAG_PREFIX + key, view)
        prefix = VIEW_TAG_PREFIX + SWEEP_VIEW_PREFIX
        names = {tag.removeprefix(prefix): tag for tag in tags if tag.startswith(prefix)}
        others = sorted(names.keys() - {sweep}, key=sort_key)
        for tag in [names[name] for name in others[:-SWEEPS_KEPT]] if sweep else ():
            store.client.delete_experiment_tag(store.experiment_id, tag)
    except Exception as error:  # views are optional
        logging.getLogger(__name__).info("MLflow's views were not saved: %s", error)
        return None
    return SavedViews(texts, shown)


def find_runs(store: Store, sweep: str | None) -> ShownRuns:
    """Search for the runs of each view, which takes a tenth of a second if there are many."""
    found = {}
    for key, (_, query) in view_queries(sweep).items():
        runs = store.client.search_runs([store.experiment_id], query, max_results=SHOWN_RUNS)
        found[key] = [ShownRun(run.data.params, [*run.data.metrics]) for run in runs]
    return found


def view_queries(sweep: str | None) -> dict[str, tuple[str, str]]:
    """Return the title and the filter of each view of runs by its key."""
    queries = {ENERGY_AND_TIME: ("Energy and time", RUN_FILTER)}
    if sweep:
        of_sweep = f"{RUN_FILTER} and tags.`{SWEEPS}` LIKE '%{quote(sweep)}%'"
        queries[f"{SWEEP_VIEW_PREFIX}{sweep}"] = (f"Sweep {sweep}", of_sweep)
    return queries


def views(sweep: str | None, shown: ShownRuns) -> dict[str, str]:
    """Return the views by key, in MLflow's format: of reports, of all runs, and of a sweep.

    Charts have the energies that a run of the view has, since MLflow shows a chart even without a point, and the
    parameters that differ between its runs.
    """
    saved = {REPORTS: pack_view("Reports", REPORT_FILTER, [f"tags.`{REPORT_TAG}`"], {})}
    for key, (name, query) in view_queries(sweep).items():
        runs = shown[key]
        energies = [metric for metric in (ENERGY, ESTIMATE) if any(metric in run.metrics for run in runs)]
        varied = varied_params([run.params for run in runs])
        params = [*dict.fromkeys([*varied, *COMMON_PARAMS])]
        columns = [*(f"params.`{param}`" for param in params), *RESULT_COLUMNS]
        saved[key] = pack_view(name, query, columns, charts(energies, axes(varied, [run.params for run in runs])))
    return saved


def varied_params(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the parameters that differ between runs, those of the whole run before those of a group's option."""
    names = dict.fromkeys(name for params in runs for name in params)
    varied = [name for name in names if len({params.get(name) for params in runs}) > 1]
    return sorted(varied, key=lambda name: (name.count("."), name not in COMMON_PARAMS))


def axes(varied: Sequence[str], runs: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Return the parameters of each chart of parallel coordinates, which drops runs that lack one of its axes.

    The first chart has the varied parameters that all runs have. One that some runs lack, such as a power limit, is
    added in a further chart.
    """
    common = [name for name in varied if all(name in params for params in runs)][:MAX_AXES] or [*AXES]
    lacking = [name for name in varied if "." not in name and any(name not in params for params in runs)]
    return [common, *([*common, name] for name in lacking)]


def charts(energies: Sequence[str], params: Sequence[Sequence[str]]) -> dict[str, list[Chart]]:
    """Return the charts by section; `params` are those of each chart of parallel coordinates."""
    scatters: list[Chart] = [
        {"type": "SCATTER", "xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
        for x, y in (*(("total/e2e_s", energy) for energy in energies), STALLS)
    ]
    bars: dict[str, Chart] = {name: {"type": "BAR", "metricKey": name} for name in (*energies, *BARS)}
    return {
        "Energy and time": [*scatters, *(bars[energy] for energy in energies)],
        "Configuration and results": [
            {"type": "PARALLEL", "selectedParams": names, "selectedMetrics": [*STALLS, *energies[:1]]}
            for names in params
        ],
        "Where the time goes": [bars[name] for name in BARS],
        "Epoch by epoch": [
            {"type": "LINE", "metricKey": name, "selectedMetricKeys": [name], **LINE_AXES} for name in LINES
        ],
    }


def pack_view(name: str, query: str, columns: Sequence[str], sections: Mapping[str, Sequence[Chart]]) -> str:
    """Return a view of the experiment's page as stored in its tag."""
    page = {
        "searchFilter": query,
        "selectedColumns": columns,
        "runsHiddenMode": "FIRST_20_RUNS",
        "isAccordionReordered": True,
        "compareRunSections": [
            {**FLAGS, "display": True, "isReordered": True, "cardHeight": 280, "uuid": title, "name": title,
             "columns": 1 if drawn[0]["type"] == "PARALLEL" else min(3, len(drawn))}  # axes need the full width
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


def _page(destination: Published | Store, page: str, query: Mapping[str, str] | None = None) -> str:
    # By default MLflow opens in its mode for language models, which shows no runs.
    parameters = urlencode({"workflowType": "machine_learning", **(query or {})})
    return f"#/experiments/{destination.experiment_id}/{page}?{parameters}"
