"""Saved views of the experiment's page: MLflow's own first view of runs shows neither a parameter nor a metric.

They are put there at best effort: a run whose views could not be saved lacks nothing else.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote, urlencode

from epochmeter.config.secrets import without_user
from epochmeter.shared.record import Record
from epochmeter.tracking.client import Store
from epochmeter.tracking.description import description
from epochmeter.tracking.publish import MEASURED, SWEEPS, Published
from epochmeter.tracking.view_state import Chart, bar, line, packed, page, parallel, scatter

LOCAL = "http://127.0.0.1:5000"
"""Where `mlflow ui` listens unless told otherwise."""
TAG = "mlflow.sharedViewState."
ENERGY_AND_TIME = "epochmeter-energy-and-time"
BY_DEVICE_AND_LIMIT = "epochmeter-by-device-and-limit"
REPORTS = "epochmeter-reports"
OF_SWEEP = "epochmeter-sweep-"
SWEEPS_KEPT = 20
"""Number of newest sweeps with their own views: the menu lists all views, and each run reads them."""
REHEARSAL = "epochmeter.rehearsal"
COVERS = "epochmeter.energy_covers"
MOST_COVERS = 8
"""So many things that energies are those of have a view each; more than there are."""
REPORT = "epochmeter.report"
"""The tag that names the sweep whose report a run holds; such a run measured nothing, and no view of runs shows it."""
ENERGIES = ("energy_j", "estimated_energy_j")
"""From the best: measured, estimated."""
EXPECTED = {"counter": "energy_j", "sampled": "energy_j", "estimated": "estimated_energy_j"}
"""What a run will have whose energy has this source."""
SHOWN = f"attributes.status = 'FINISHED' and {MEASURED}"
"""The filter of views of runs. One that failed stopped early: its totals are no comparison. A report's run has none."""
OF_REPORTS = f"tags.`{REPORT}` != ''"
ASKED = "What was asked, and what it led to"
NOTE = "mlflow.note.content"
"""The tag that holds a description: the experiment's, or a run's."""
OURS = "mlflow.epochmeter.note"
"""The tag that holds the digest of the description that was written here: what is another now is somebody's own."""


def link(shown: Published | Store, sweep: str | None = None, rehearsal: bool = False) -> str:
    """The address of the saved view of energy and time.

    Args:
        shown: where it is.
        sweep: the sweep whose runs it compares; None for the newest runs of all sweeps.
        rehearsal: whether it compares the rehearsals of that sweep rather than its results.
    """
    return _address(shown, "runs", _shared(_key_of_sweep(sweep, rehearsal) if sweep else ENERGY_AND_TIME))


def run_link(published: Published) -> str:
    """The address of the run's own page."""
    return _address(published, f"runs/{published.run_id}")


def artifact_link(published: Published, name: str) -> str:
    """The address of the page that previews an artifact of the run."""
    return f"{_base(published)}/{artifact_page(published, name)}"


def artifact_page(published: Published, name: str) -> str:
    """The same below the address of MLflow, for links within its pages."""
    return _page_of(published, f"runs/{published.run_id}/artifacts/{quote(name)}")


def save(store: Store) -> None:
    """Puts the views into the experiment, where they are not there as they are here."""
    for _ in saving(store):
        pass


def saving(store: Store, record: Record | None = None, sweep: str | None = None) -> Iterator[None]:
    """Save the views step by step; they fit the existing runs and the record's run, which may have just begun.

    Args:
        store: where they are saved.
        record: the record of the run that is published.
        sweep: the sweep that gets its own views; those of older sweeps are deleted.
    """
    try:
        energy = energy_of(store, record)
        yield
        covers = covers_of(store, energy, record)
        yield
        tags = store.client.get_experiment(store.experiment_id).tags
        wanted = {**views(energy, covers), **(views_of_sweep(sweep, energy) if sweep else {})}
        for key, view in wanted.items():
            if tags.get(TAG + key) != view:
                store.client.set_experiment_tag(store.experiment_id, TAG + key, view)
                yield
        for key in _outdated(tags) if sweep else ():
            store.client.delete_experiment_tag(store.experiment_id, key)
            yield
        note, there = described(store, covers), tags.get(NOTE)
        if note != there and (not there or _digest(there) == tags.get(OURS)):  # somebody's own words stand
            store.client.set_experiment_tag(store.experiment_id, OURS, _digest(note))
            store.client.set_experiment_tag(store.experiment_id, NOTE, note)
            yield
    except Exception as error:  # a view is a comfort: no run is harmed for want of one
        logging.getLogger(__name__).info("MLflow's views were not saved: %s", error)


def energy_of(store: Store, record: Record | None = None) -> str | None:
    """The best energy that any run has, or that the record's will have: measured, or else estimated, or else none."""
    expected = EXPECTED.get(record.run()["energy"]["source"]) if record else None
    for name in ENERGIES:
        having = f"metrics.`total/{name}` > 0"
        if name == expected or store.client.search_runs([store.experiment_id], having, max_results=1):
            return name
    return None


def covers_of(store: Store, energy: str | None, record: Record | None = None) -> list[str]:
    """What the energies of the runs are those of, and what the record's will be that of; by name."""
    told = record.run()["energy"] if record else {}
    found = {told["covers"]} if told.get("covers") and EXPECTED.get(told["source"]) == energy else set()
    while energy and len(found) < MOST_COVERS:
        known = [f"tags.`{COVERS}` != '{covers}'" for covers in found if "'" not in covers]
        having = " and ".join([f"metrics.`total/{energy}` > 0", f"tags.`{COVERS}` != ''", *known])
        others = {
            run.data.tags[COVERS] for run in store.client.search_runs([store.experiment_id], having, max_results=1)
        }
        if others <= found:
            break
        found |= others
    return sorted(found)


def described(store: Store, covers: Sequence[str] = ()) -> str:
    """The experiment's description, with links that MLflow's pages follow."""
    return description(
        energy_and_time=_page_of(store, "runs", _shared(ENERGY_AND_TIME)),
        by_covers={each: _page_of(store, "runs", _shared(key)) for each, key in _keys_of(covers).items()},
        by_device_and_limit=_page_of(store, "runs", _shared(BY_DEVICE_AND_LIMIT)),
        reports=_page_of(store, "runs", {"viewStateShareKey": REPORTS}),
    )


def views(energy: str | None, covers: Sequence[str] = ()) -> dict[str, str]:
    """Key -> a view, as MLflow keeps it.

    Energies that cover different things are no comparison: those of each have a view, and that of all draws none.
    """
    every, shown = charts(energy), columns(energy)
    apart = _keys_of(covers)
    # MLflow draws no parallel coordinates of groups; a group of rehearsals has no name that would say what it is.
    grouped = {name: charts for name, charts in every.items() if name != ASKED}
    keys = [("param", "device"), ("param", "power_limit"), ("tag", REHEARSAL), ("tag", COVERS)]
    return {
        ENERGY_AND_TIME: packed("Energy and time", page(SHOWN, shown, charts(None) if apart else every)),
        **{
            key: packed(f"Energy and time: {each}", page(f"{SHOWN} and tags.`{COVERS}` = '{each}'", shown, every))
            for each, key in apart.items()
        },
        BY_DEVICE_AND_LIMIT: packed("By device and power limit", page(SHOWN, shown, grouped, keys)),
        REPORTS: packed("Reports", page(OF_REPORTS, [f"tags.`{REPORT}`"])),
    }


def views_of_sweep(sweep: str, energy: str | None) -> dict[str, str]:
    """Key -> the view of one sweep's results, and that of its rehearsals."""
    found = {}
    for rehearsal in (False, True):
        query = f"{SHOWN} and tags.`{SWEEPS}` LIKE '%{sweep}%' and tags.`{REHEARSAL}` = '{str(rehearsal).lower()}'"
        name = f"Sweep {sweep}{' (rehearsals)' if rehearsal else ''}"
        found[_key_of_sweep(sweep, rehearsal)] = packed(name, page(query, columns(energy), charts(energy)))
    return found


def _key_of_sweep(sweep: str, rehearsal: bool) -> str:
    return f"{OF_SWEEP}{sweep}{'-rehearsals' if rehearsal else ''}"


def _outdated(tags: Mapping[str, str]) -> list[str]:
    """The tags of the views of all sweeps except the newest; sweep names begin with the time."""
    return sorted(tag for tag in tags if tag.startswith(TAG + OF_SWEEP))[: -2 * SWEEPS_KEPT]


def columns(energy: str | None) -> list[str]:
    """What the list of runs shows of each."""
    params = ("device", "model", "dataset", "batch", "workers", "power_limit")
    metrics = ("total/e2e_s", *([f"total/{energy}"] if energy else []), "steady/fetch_stall_s", "val/accuracy")
    return [
        *(f"params.`{name}`" for name in params),
        *(f"metrics.`{name}`" for name in metrics),
        *([f"tags.`{COVERS}`"] if energy else []),
        f"tags.`{REHEARSAL}`",
    ]


def charts(energy: str | None) -> dict[str, list[Chart]]:
    """Section -> its charts. Where no run has energy, time and what it went into fill the page alone."""
    energies = [f"total/{energy}"] if energy else []
    led_to = ["steady/fetch_stall_s", "steady/e2e_s", *energies]
    return {
        "Energy and time": [
            *(scatter("total/e2e_s", name) for name in energies),
            scatter("steady/fetch_stall_s", "steady/e2e_s"),
            bar(energies[0] if energies else "steady/e2e_s"),
        ],
        # MLflow draws the runs that have every axis: those without a power limit have a chart without it.
        ASKED: [parallel(["device", *axes], led_to) for axes in (["batch", "workers"], ["batch", "power_limit"])],
        "Where the time goes": [bar(f"steady/{name}") for name in ("e2e_s", "fetch_stall_s", "compute_s")],
        "Epoch by epoch": [
            *(line(f"epoch/{name}") for name in ("e2e_s", "fetch_stall_s", *([energy] if energy else []))),
            line("epoch/train_loss"),
            line("val/accuracy"),
        ],
    }


def _keys_of(covers: Sequence[str]) -> dict[str, str]:
    """What energies are those of -> the key of its view; none where all are of one thing."""
    named = [each for each in covers if "'" not in each]  # MLflow's grammar has no way to write it
    return {each: f"{ENERGY_AND_TIME}-{_digest(each)[:8]}" for each in named} if len(covers) > 1 else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shared(view: str) -> dict[str, str]:
    """What asks for a saved view."""
    return {"compareRunsMode": "CHART", "viewStateShareKey": view}


def _address(shown: Published | Store, page: str, query: Mapping[str, str] | None = None) -> str:
    return f"{_base(shown)}/{_page_of(shown, page, query)}"


def _base(shown: Published | Store) -> str:
    return without_user(shown.uri.rstrip("/")) if shown.uri.startswith("http") else LOCAL


def _page_of(shown: Published | Store, page: str, query: Mapping[str, str] | None = None) -> str:
    """The address of a page below that of MLflow."""
    # MLflow opens in the mode for language models, which shows no run, unless it is told.
    asked = urlencode({"workflowType": "machine_learning", **(query or {})})
    return f"#/experiments/{shown.experiment_id}/{page}?{asked}"
