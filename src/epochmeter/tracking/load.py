"""Read runs back from MLflow, for reports of runs whose folders are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from epochmeter.results.run_info import RunInfo
from epochmeter.tracking.client import EXPERIMENT, LONG_TIMEOUT_S, Store, open_existing_store
from epochmeter.tracking.publish import MEASURED, SWEEPS, Published
from epochmeter.tracking.run_export import RUN_INFO_TAG, unpack
from epochmeter.tracking.views import run_link

if TYPE_CHECKING:
    from mlflow.entities import Run

PAGE_SIZE = 200
"""Runs per request; a server takes well below a second for this many."""


class PublishedRun(TypedDict):
    """A run in MLflow.

    Attributes:
        reused_as: Other sweeps that include the run, and its number in each.
        metrics: By the names in docs/metrics.md; for per-epoch metrics the last value.
        facts: Metadata of the run; None if it was published without.
        status: `FINISHED`, `FAILED`, `KILLED` or `RUNNING`.
    """

    run_id: str
    sweep_id: str | None
    reused_as: list[tuple[str, int]]
    metrics: dict[str, float]
    tags: dict[str, str]
    facts: RunInfo | None
    status: str
    link: str


def load_runs(uri: str | None = None, experiment: str = EXPERIMENT) -> list[PublishedRun]:
    """Return the measured runs of an experiment by start time, without deleted ones.

    Raises:
        LookupError: The database or the experiment does not exist.
        Exception: Errors of MLflow, as for a server that is down.
    """
    store = open_existing_store(experiment, uri, LONG_TIMEOUT_S)
    return [_to_published_run(run, store) for run in _iter_pages(store)]


def run_links(sweeps: Iterable[str], experiment: str = EXPERIMENT, uri: str | None = None) -> dict[str, str]:
    """Return the page address of each published run of these sweeps, by `sweep/number`; raises as `load_runs` does."""
    store = open_existing_store(experiment, uri, LONG_TIMEOUT_S)
    queries = (f"{MEASURED} and tags.`epochmeter.sweep_id` = '{sweep}'" for sweep in sweeps if "'" not in sweep)
    runs = [_to_published_run(run, store) for query in queries for run in _iter_pages(store, query)]
    return {f"{run['sweep_id']}/{Path(run['tags']['epochmeter.folder']).name}": run["link"] for run in runs}


def _iter_pages(store: Store, query: str = MEASURED) -> Iterator[Run]:
    page = None
    while page is None or page.token:
        page = store.client.search_runs(
            [store.experiment_id],
            query,
            max_results=PAGE_SIZE,
            order_by=["attributes.start_time ASC"],
            page_token=page.token if page else None,
        )
        yield from page


def _to_published_run(run: Run, store: Store) -> PublishedRun:
    return {
        "run_id": run.info.run_id,
        "sweep_id": run.data.tags.get("epochmeter.sweep_id"),
        "reused_as": _reused_as(run.data.tags),
        "metrics": run.data.metrics,
        "tags": run.data.tags,
        "facts": _facts(run.data.tags),
        "status": run.info.status,
        "link": run_link(Published(run.info.run_id, store.experiment_id, store.uri)),
    }


def _reused_as(tags: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the reusing sweeps and the run's number in each: `a b/3` -> (`b`, 3)."""
    pairs = (name.rpartition("/") for name in tags.get(SWEEPS, "").split())
    return [(sweep, int(number)) for sweep, _, number in pairs if sweep and number.isdecimal()]


def _facts(tags: Mapping[str, str]) -> RunInfo | None:
    try:
        return unpack(tags[RUN_INFO_TAG]) if RUN_INFO_TAG in tags else None
    except ValueError:
        return None
