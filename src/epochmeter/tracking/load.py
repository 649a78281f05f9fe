"""The runs that MLflow shows, read back as plain mappings: what a report is made of where the records are elsewhere."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from epochmeter.results.run_info import Facts
from epochmeter.tracking.client import EXPERIMENT, PATIENT_S, Store, found_store
from epochmeter.tracking.publish import MEASURED, SWEEPS, Published
from epochmeter.tracking.run_export import FACTS, unpacked
from epochmeter.tracking.views import run_link

if TYPE_CHECKING:
    from mlflow.entities import Run

A_PAGE = 200
"""Runs asked for at once: a server takes well below a second for them."""


class ShownRun(TypedDict):
    """A run as MLflow shows it."""

    run_id: str
    sweep_id: str | None
    reused_as: list[tuple[str, int]]
    """The other sweeps that the run is part of, and its number in each."""
    params: dict[str, str]
    """Of the job, as one types them: `batch` -> `16`, `optimizer.lr` -> `0.01`; what is null has none."""
    metrics: dict[str, float]
    """By the names of docs/metrics.md; of what has a value an epoch the last one."""
    tags: dict[str, str]
    facts: Facts | None
    """What is known of it beside its metrics; None where it was published without."""
    status: str
    """`FINISHED`, `FAILED`, `KILLED` or `RUNNING`."""
    link: str
    """The address of its page."""


def runs(uri: str | None = None, experiment: str = EXPERIMENT) -> list[ShownRun]:
    """The measured runs of an experiment, in the order in which they began; without those that were deleted.

    `uri` is MLFLOW_TRACKING_URI's, or else the project's own database, unless one is given. Raises LookupError for a
    database or an experiment that is not there, and whatever MLflow raises for a server that is away.
    """
    store = found_store(experiment, uri, PATIENT_S)
    return [_shown(run, store) for run in _paged(store)]


def links(sweeps: Iterable[str], experiment: str = EXPERIMENT, uri: str | None = None) -> dict[str, str]:
    """`sweep/number` of each run of these sweeps that is shown -> the address of its page; raises as `runs` does."""
    store = found_store(experiment, uri, PATIENT_S)
    of = (f"{MEASURED} and tags.`epochmeter.sweep_id` = '{sweep}'" for sweep in sweeps if "'" not in sweep)
    shown = [_shown(run, store) for query in of for run in _paged(store, query)]
    return {f"{run['sweep_id']}/{Path(run['tags']['epochmeter.folder']).name}": run["link"] for run in shown}


def _paged(store: Store, query: str = MEASURED) -> Iterator[Run]:
    page = None
    while page is None or page.token:
        with _all_kept():
            page = store.client.search_runs(
                [store.experiment_id],
                query,
                max_results=A_PAGE,
                order_by=["attributes.start_time ASC"],
                page_token=page.token if page else None,
            )
        yield from page


@contextmanager
def _all_kept() -> Iterator[None]:
    """Spares Python the search for garbage among the objects of a page, which would be most of the time it takes."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()


def _shown(run: Run, store: Store) -> ShownRun:
    return {
        "run_id": run.info.run_id,
        "sweep_id": run.data.tags.get("epochmeter.sweep_id"),
        "reused_as": _reused_as(run.data.tags),
        "params": run.data.params,
        "metrics": run.data.metrics,
        "tags": run.data.tags,
        "facts": _facts(run.data.tags),
        "status": run.info.status,
        "link": run_link(Published(run.info.run_id, store.experiment_id, store.uri)),
    }


def _reused_as(tags: Mapping[str, str]) -> list[tuple[str, int]]:
    pairs = (name.rpartition("/") for name in tags.get(SWEEPS, "").split())
    return [(sweep, int(number)) for sweep, _, number in pairs if sweep and number.isdecimal()]


def _facts(tags: Mapping[str, str]) -> Facts | None:
    try:
        return unpacked(tags[FACTS]) if FACTS in tags else None
    except ValueError:
        return None
