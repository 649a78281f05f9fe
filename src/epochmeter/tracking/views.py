"""Links to MLflow's pages, and saved views of the experiment's page, as its default view shows no parameters.

Views are optional: errors are logged and do not affect the run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

from epochmeter.config.installation import UI_ADDRESS
from epochmeter.config.secrets import strip_credentials
from epochmeter.shared.record import Record
from epochmeter.tracking.client import Store
from epochmeter.tracking.publish import MEASURED, SWEEPS, Published
from epochmeter.tracking.view_state import Chart, bar, line, pack_view, parallel, scatter

VIEW_TAG_PREFIX = "mlflow.sharedViewState."
ENERGY_AND_TIME = "epochmeter-energy-and-time"
BY_DEVICE_AND_LIMIT = "epochmeter-by-device-and-limit"
REPORTS = "epochmeter-reports"
SWEEP_VIEW_PREFIX = "epochmeter-sweep-"
SWEEPS_KEPT = 20
"""Number of newest sweeps with views of their own: the menu lists all views, and each run reads them."""
REHEARSAL_TAG = "epochmeter.rehearsal"
SCOPE_TAG = "epochmeter.energy_covers"
MAX_SCOPES = 8
"""Most views by covered hardware; more than there are kinds."""
REPORT_TAG = "epochmeter.report"
"""Tag with the sweep whose report a run contains; such a run has no measurements, and views of runs exclude it."""
ENERGY_BY_SOURCE = {"counter": "energy_j", "sampled": "energy_j", "estimated": "estimated_energy_j"}
"""Energy metric by energy source, the best first."""
RUN_FILTER = f"attributes.status = 'FINISHED' and {MEASURED}"
"""Filter of views of runs: completed and measured. Failed runs stopped early, so their totals are not comparable."""
REPORT_FILTER = f"tags.`{REPORT_TAG}` != ''"
RESULTS_SECTION = "Configuration and results"
NOTE_TAG = "mlflow.note.content"
"""Tag with the description of an experiment or a run."""


def results_link(destination: Published | Store, sweep: str | None = None, rehearsal: bool = False) -> str:
    """Return the address of the view of energy and time: of a sweep's results or rehearsals, or of the newest runs."""
    return f"{_base(destination)}/{_view_page(destination, _sweep_key(sweep, rehearsal) if sweep else ENERGY_AND_TIME)}"


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
        sweep: The sweep that gets views of its own; those of older sweeps are deleted.
    """
    try:
        energy = best_energy(store, record)
        scopes = energy_scopes(store, energy, record)
        tags = store.client.get_experiment(store.experiment_id).tags
        for key, view in views(energy, sweep, scopes).items():
            if tags.get(VIEW_TAG_PREFIX + key) != view:
                store.client.set_experiment_tag(store.experiment_id, VIEW_TAG_PREFIX + key, view)
        sweep_tags = sorted(tag for tag in tags if tag.startswith(VIEW_TAG_PREFIX + SWEEP_VIEW_PREFIX))
        for tag in sweep_tags[: -2 * SWEEPS_KEPT] if sweep else ():  # the names of sweeps begin with the time
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


def energy_scopes(store: Store, energy: str | None, record: Record | None = None) -> list[str]:
    """Return the kinds of hardware that the runs' energies cover, including the record's; sorted."""
    scopes = set()
    own = record.run()["energy"] if record else {}
    if own.get("covers") and ENERGY_BY_SOURCE.get(own["source"]) == energy:
        scopes.add(own["covers"])
    while energy and len(scopes) < MAX_SCOPES:
        others = [f"tags.`{SCOPE_TAG}` != '{scope}'" for scope in scopes if "'" not in scope]
        query = " and ".join([f"metrics.`total/{energy}` > 0", f"tags.`{SCOPE_TAG}` != ''", *others])
        runs = store.client.search_runs([store.experiment_id], query, max_results=1)
        if {run.data.tags[SCOPE_TAG] for run in runs} <= scopes:
            break
        scopes.add(runs[0].data.tags[SCOPE_TAG])
    return sorted(scopes)


def experiment_note(store: Store) -> str:
    """Return the description on the experiment's page."""
    paragraphs = [  # one line per paragraph: MLflow keeps line breaks
        "**Measured training runs: where the time of each epoch went, and how many joules it used.**",
        f"See [energy and time]({_view_page(store, ENERGY_AND_TIME)}) of the newest runs, their means "
        f"[by device and power limit]({_view_page(store, BY_DEVICE_AND_LIMIT)}), or the "
        f"[reports]({_page(store, 'runs', {'viewStateShareKey': REPORTS})}) of sweeps.",
        "`docs/metrics.md` in the project explains every metric. Values that could not be measured are absent, never "
        "0; the tag `epochmeter.energy_reason` has the reason.",
        "`epochmeter.energy_covers` names the hardware that a run's energy covers (a module, GPUs, a CPU). Do not "
        "compare energies of different hardware: each has a view of its own, and means are separate.",
        "A run with `epochmeter.rehearsal=true` was configured for other hardware than its machine, and is no result.",
    ]
    return "\n\n".join(paragraphs)


def views(energy: str | None, sweep: str | None = None, scopes: Sequence[str] = ()) -> dict[str, str]:
    """Return the views by key, in MLflow's format: of all runs, of their means, of reports, and of a sweep.

    If energies cover different hardware, each kind has its own view, and the view of all runs has no energy.
    """
    listed, sections = columns(energy), charts(energy)
    expressible = [scope for scope in scopes if "'" not in scope] if len(scopes) > 1 else []
    # MLflow draws no parallel coordinates of groups. Rehearsals are separate groups, as group names do not show them.
    group_charts = {title: section for title, section in sections.items() if title != RESULTS_SECTION}
    groups = [("param", "device"), ("param", "power_limit"), ("tag", REHEARSAL_TAG), ("tag", SCOPE_TAG)]
    saved = {
        ENERGY_AND_TIME: pack_view("Energy and time", RUN_FILTER, listed, charts(None) if expressible else sections),
        REPORTS: pack_view("Reports", REPORT_FILTER, [f"tags.`{REPORT_TAG}`"]),
        BY_DEVICE_AND_LIMIT: pack_view("By device and power limit", RUN_FILTER, listed, group_charts, groups),
    }
    for scope in expressible:
        query, key = f"{RUN_FILTER} and tags.`{SCOPE_TAG}` = '{scope}'", hashlib.sha256(scope.encode()).hexdigest()[:8]
        saved[f"{ENERGY_AND_TIME}-{key}"] = pack_view(f"Energy and time: {scope}", query, listed, sections)
    for rehearsal in (False, True) if sweep else ():
        query = (
            f"{RUN_FILTER} and tags.`{SWEEPS}` LIKE '%{sweep}%' and tags.`{REHEARSAL_TAG}` = '{str(rehearsal).lower()}'"
        )
        title = f"Sweep {sweep}{' (rehearsals)' if rehearsal else ''}"
        saved[_sweep_key(str(sweep), rehearsal)] = pack_view(title, query, listed, sections)
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
        RESULTS_SECTION: [
            parallel(["device", *axes], results) for axes in (["batch", "workers"], ["batch", "power_limit"])
        ],
        "Where the time goes": [bar(f"steady/{name}") for name in ("e2e_s", "data_stall_s", "compute_s")],
        "Epoch by epoch": [*(line(f"epoch/{name}") for name in epoch_metrics), line("val/accuracy")],
    }


def _sweep_key(sweep: str, rehearsal: bool) -> str:
    return f"{SWEEP_VIEW_PREFIX}{sweep}{'-rehearsals' if rehearsal else ''}"


def _base(destination: Published | Store) -> str:
    return strip_credentials(destination.uri.rstrip("/")) if destination.uri.startswith("http") else UI_ADDRESS


def _view_page(destination: Published | Store, view: str) -> str:
    return _page(destination, "runs", {"compareRunsMode": "CHART", "viewStateShareKey": view})


def _page(destination: Published | Store, page: str, query: Mapping[str, str] | None = None) -> str:
    """Return the address of a page relative to MLflow's."""
    # By default MLflow opens in its mode for language models, which shows no runs.
    parameters = urlencode({"workflowType": "machine_learning", **(query or {})})
    return f"#/experiments/{destination.experiment_id}/{page}?{parameters}"
