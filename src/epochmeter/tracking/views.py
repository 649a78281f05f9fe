"""Saved views of the experiment's page, as MLflow's default view shows no parameters and metrics.

Views are optional: errors are logged and do not affect the run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote, urlencode

from epochmeter.config.secrets import strip_credentials
from epochmeter.shared.record import Record
from epochmeter.tracking.client import Store
from epochmeter.tracking.description import experiment_note
from epochmeter.tracking.publish import MEASURED, SWEEPS, Published
from epochmeter.tracking.view_state import Chart, bar, line, pack_view, page, parallel, scatter

LOCAL = "http://127.0.0.1:5000"
"""Default address of `mlflow ui`."""
VIEW_TAG_PREFIX = "mlflow.sharedViewState."
ENERGY_AND_TIME = "epochmeter-energy-and-time"
BY_DEVICE_AND_LIMIT = "epochmeter-by-device-and-limit"
REPORTS = "epochmeter-reports"
SWEEP_VIEW_PREFIX = "epochmeter-sweep-"
SWEEPS_KEPT = 20
"""Number of newest sweeps with their own views: the menu lists all views, and each run reads them."""
REHEARSAL_TAG = "epochmeter.rehearsal"
SCOPE_TAG = "epochmeter.energy_covers"
MAX_SCOPES = 8
"""Most views by covered hardware; more than there are kinds."""
REPORT_TAG = "epochmeter.report"
"""Tag with the sweep whose report a run contains; such a run has no measurements, and views of runs exclude it."""
ENERGIES = ("energy_j", "estimated_energy_j")
"""Energy metrics, the best first: measured, estimated."""
ENERGY_BY_SOURCE = {"counter": "energy_j", "sampled": "energy_j", "estimated": "estimated_energy_j"}
"""Energy metric by energy source."""
RUN_FILTER = f"attributes.status = 'FINISHED' and {MEASURED}"
"""Filter of views of runs: completed and measured. Failed runs stopped early, so their totals are not comparable."""
REPORT_FILTER = f"tags.`{REPORT_TAG}` != ''"
RESULTS_SECTION = "Configuration and results"
NOTE_TAG = "mlflow.note.content"
"""Tag with the description of an experiment or a run."""
NOTE_DIGEST_TAG = "mlflow.epochmeter.note"
"""Tag with the checksum of the description written by epochmeter; a different description is a user's own."""


def results_link(shown: Published | Store, sweep: str | None = None, rehearsal: bool = False) -> str:
    """Return the address of the saved view of energy and time.

    Args:
        shown: Destination in MLflow.
        sweep: The sweep whose runs it compares; None for the newest runs of all sweeps.
        rehearsal: Compare the sweep's rehearsals instead of its results.
    """
    return _address(shown, "runs", _view_query(_key_of_sweep(sweep, rehearsal) if sweep else ENERGY_AND_TIME))


def run_link(published: Published) -> str:
    """Return the address of the run's page."""
    return _address(published, f"runs/{published.run_id}")


def artifact_link(published: Published, name: str) -> str:
    """Return the address of the page that previews an artifact."""
    return f"{_base(published)}/{artifact_page(published, name)}"


def artifact_page(published: Published, name: str) -> str:
    """Return the same relative to MLflow's address, for links within its pages."""
    return _page_of(published, f"runs/{published.run_id}/artifacts/{quote(name)}")


def save_views(store: Store) -> None:
    """Save the views that are missing or outdated."""
    for _ in save_views_steps(store):
        pass


def save_views_steps(store: Store, record: Record | None = None, sweep: str | None = None) -> Iterator[None]:
    """Save the views step by step; they fit the existing runs and the record's run, which may have just begun.

    Args:
        store: where they are saved.
        record: the record of the run that is published.
        sweep: the sweep that gets its own views; those of older sweeps are deleted.
    """
    try:
        energy = best_energy(store, record)
        yield
        covers = energy_scopes(store, energy, record)
        yield
        tags = store.client.get_experiment(store.experiment_id).tags
        expected = {**views(energy, covers), **(views_of_sweep(sweep, energy) if sweep else {})}
        for key, view in expected.items():
            if tags.get(VIEW_TAG_PREFIX + key) != view:
                store.client.set_experiment_tag(store.experiment_id, VIEW_TAG_PREFIX + key, view)
                yield
        for key in _outdated(tags) if sweep else ():
            store.client.delete_experiment_tag(store.experiment_id, key)
            yield
        note, current = experiment_text(store, covers), tags.get(NOTE_TAG)
        if note != current and (not current or _digest(current) == tags.get(NOTE_DIGEST_TAG)):  # keep a user's own text
            store.client.set_experiment_tag(store.experiment_id, NOTE_DIGEST_TAG, _digest(note))
            store.client.set_experiment_tag(store.experiment_id, NOTE_TAG, note)
            yield
    except Exception as error:  # views are optional
        logging.getLogger(__name__).info("MLflow's views were not saved: %s", error)


def best_energy(store: Store, record: Record | None = None) -> str | None:
    """Return the best energy metric of any run, or the one expected of the record's; None if there is none."""
    expected = ENERGY_BY_SOURCE.get(record.run()["energy"]["source"]) if record else None
    for name in ENERGIES:
        having = f"metrics.`total/{name}` > 0"
        if name == expected or store.client.search_runs([store.experiment_id], having, max_results=1):
            return name
    return None


def energy_scopes(store: Store, energy: str | None, record: Record | None = None) -> list[str]:
    """Return the kinds of hardware that the runs' energies cover, including the record's; sorted."""
    energy_info = record.run()["energy"] if record else {}
    kinds = (
        {energy_info["covers"]}
        if energy_info.get("covers") and ENERGY_BY_SOURCE.get(energy_info["source"]) == energy
        else set()
    )
    while energy and len(kinds) < MAX_SCOPES:
        exclude = [f"tags.`{SCOPE_TAG}` != '{covers}'" for covers in kinds if "'" not in covers]
        having = " and ".join([f"metrics.`total/{energy}` > 0", f"tags.`{SCOPE_TAG}` != ''", *exclude])
        new = {
            run.data.tags[SCOPE_TAG] for run in store.client.search_runs([store.experiment_id], having, max_results=1)
        }
        if new <= kinds:
            break
        kinds |= new
    return sorted(kinds)


def experiment_text(store: Store, covers: Sequence[str] = ()) -> str:
    """Return the experiment's description, with links within MLflow's pages."""
    return experiment_note(
        energy_and_time=_page_of(store, "runs", _view_query(ENERGY_AND_TIME)),
        by_covers={kind: _page_of(store, "runs", _view_query(key)) for kind, key in _scope_keys(covers).items()},
        by_device_and_limit=_page_of(store, "runs", _view_query(BY_DEVICE_AND_LIMIT)),
        reports=_page_of(store, "runs", {"viewStateShareKey": REPORTS}),
    )


def views(energy: str | None, covers: Sequence[str] = ()) -> dict[str, str]:
    """Return the views by key, in MLflow's format.

    If energies cover different hardware, each kind has its own view, and the view of all runs has no energy.
    """
    all_charts, shown_columns = charts(energy), columns(energy)
    by_covers = _scope_keys(covers)
    # MLflow draws no parallel coordinates of groups. Rehearsals are grouped apart, as group names do not show them.
    group_charts = {name: charts for name, charts in all_charts.items() if name != RESULTS_SECTION}
    keys = [("param", "device"), ("param", "power_limit"), ("tag", REHEARSAL_TAG), ("tag", SCOPE_TAG)]
    return {
        ENERGY_AND_TIME: pack_view(
            "Energy and time", page(RUN_FILTER, shown_columns, charts(None) if by_covers else all_charts)
        ),
        **{
            key: pack_view(
                f"Energy and time: {kind}",
                page(f"{RUN_FILTER} and tags.`{SCOPE_TAG}` = '{kind}'", shown_columns, all_charts),
            )
            for kind, key in by_covers.items()
        },
        BY_DEVICE_AND_LIMIT: pack_view(
            "By device and power limit", page(RUN_FILTER, shown_columns, group_charts, keys)
        ),
        REPORTS: pack_view("Reports", page(REPORT_FILTER, [f"tags.`{REPORT_TAG}`"])),
    }


def views_of_sweep(sweep: str, energy: str | None) -> dict[str, str]:
    """Return the views of one sweep by key: results, and rehearsals."""
    views = {}
    for rehearsal in (False, True):
        query = (
            f"{RUN_FILTER} and tags.`{SWEEPS}` LIKE '%{sweep}%' and tags.`{REHEARSAL_TAG}` = '{str(rehearsal).lower()}'"
        )
        name = f"Sweep {sweep}{' (rehearsals)' if rehearsal else ''}"
        views[_key_of_sweep(sweep, rehearsal)] = pack_view(name, page(query, columns(energy), charts(energy)))
    return views


def _key_of_sweep(sweep: str, rehearsal: bool) -> str:
    return f"{SWEEP_VIEW_PREFIX}{sweep}{'-rehearsals' if rehearsal else ''}"


def _outdated(tags: Mapping[str, str]) -> list[str]:
    """The tags of the views of all sweeps except the newest; sweep names begin with the time."""
    return sorted(tag for tag in tags if tag.startswith(VIEW_TAG_PREFIX + SWEEP_VIEW_PREFIX))[: -2 * SWEEPS_KEPT]


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
        "Epoch by epoch": [
            *(line(f"epoch/{name}") for name in ("e2e_s", "data_stall_s", *([energy] if energy else []))),
            line("epoch/train_loss"),
            line("val/accuracy"),
        ],
    }


def _scope_keys(covers: Sequence[str]) -> dict[str, str]:
    """Return the view's key per kind of covered hardware; empty if all runs have the same."""
    kinds = [kind for kind in covers if "'" not in kind]  # MLflow's queries cannot express quotes
    return {kind: f"{ENERGY_AND_TIME}-{_digest(kind)[:8]}" for kind in kinds} if len(covers) > 1 else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _view_query(view: str) -> dict[str, str]:
    """Return the query of a saved view."""
    return {"compareRunsMode": "CHART", "viewStateShareKey": view}


def _address(shown: Published | Store, page: str, query: Mapping[str, str] | None = None) -> str:
    return f"{_base(shown)}/{_page_of(shown, page, query)}"


def _base(shown: Published | Store) -> str:
    return strip_credentials(shown.uri.rstrip("/")) if shown.uri.startswith("http") else LOCAL


def _page_of(shown: Published | Store, page: str, query: Mapping[str, str] | None = None) -> str:
    """Return the address of a page relative to MLflow's."""
    # By default MLflow opens in its mode for language models, which shows no runs.
    parameters = urlencode({"workflowType": "machine_learning", **(query or {})})
    return f"#/experiments/{shown.experiment_id}/{page}?{parameters}"
