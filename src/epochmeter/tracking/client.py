"""Where runs are shown: the server that tracking.uri or MLFLOW_TRACKING_URI names, or one database in the project's
root.

`python -m epochmeter.tracking.client` makes that database, which takes a second that no run then has to spend, also
where the runs are shown by a server: that one may be away.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from epochmeter.config.job import ROOT
from epochmeter.config.secrets import redacted

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "epochmeter"
SQLITE = "sqlite:///"
VARIABLE = "MLFLOW_TRACKING_URI"
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # Publishing again later is the retry.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}
"""What MLflow is told before it is imported, unless the user told it otherwise."""
PATIENCE_S, PATIENT_S = 2, 30
"""How long a call to a server that is away may take: while a run is under way, and where a person waits for it."""


@dataclass(frozen=True)
class Store:
    """An experiment of a tracking server or database, opened."""

    client: MlflowClient
    uri: str
    experiment_id: str


LOCAL = f"{SQLITE}{ROOT / 'mlflow.db'}"
"""The project's own database, whatever the working directory."""


class Place(NamedTuple):
    """Where runs are shown."""

    experiment: str
    uri: str

    def __str__(self) -> str:
        """The address as it may be shown."""
        return redacted(self.uri)


def place(tracking: Mapping[str, Any]) -> Place | None:
    """Where the runs of a job are to be shown that is tracked so; None where they are not to be."""
    if tracking["name"] == "none":
        return None
    return Place(tracking["experiment"], tracking.get("uri") or tracking_uri())


def tracking_uri() -> str:
    """The user's server or database, or else that of the project."""
    return os.environ.get(VARIABLE) or LOCAL


def check(tracking: Mapping[str, Any]) -> None:
    """Refuses what is no server to `tracking=server`, and an address that holds a password; ValueError."""
    uri = tracking.get("uri")
    if uri and redacted(uri) != uri:
        raise ValueError(
            f"tracking.uri={redacted(uri)}: an address that holds a secret would stand in every record. Give it as "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or as MLFLOW_TRACKING_TOKEN, in the environment."
        )
    if tracking["name"] != "server":
        return
    found = uri or os.environ.get(VARIABLE)
    if not found:
        raise ValueError(f"tracking=server: give tracking.uri=http://HOST:5000, or set {VARIABLE}.")
    if not found.startswith(("http://", "https://")):
        raise ValueError(
            f"tracking=server at {redacted(found)}: give the address of an MLflow server, which begins with http:// or "
            "https://; its database stands behind it."
        )


def load_mlflow(patience_s: int = PATIENCE_S) -> None:
    """Imports MLflow, a second's work, without its telemetry and its chatter; the first patience stands."""
    for name, value in {**ENVIRONMENT, "MLFLOW_HTTP_REQUEST_TIMEOUT": str(patience_s)}.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401

    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def open_store(experiment: str = EXPERIMENT, uri: str | None = None, patience_s: int = PATIENCE_S) -> Store:
    """Opens an experiment by its name; what is missing of it is made.

    A local experiment keeps its artifacts in `mlruns/` beside its database; a server chooses its own place.
    Raises RuntimeError for an experiment that was deleted, and whatever MLflow raises for a store that is away.
    """
    load_mlflow(patience_s)
    from mlflow import MlflowClient

    uri = uri or tracking_uri()
    if not uri.startswith(SQLITE):
        client = MlflowClient(uri)
        return Store(client, uri, _experiment_id(client, experiment, artifacts=None))
    database = Path(uri.removeprefix(SQLITE)).resolve()
    with _locked(database):
        if not database.exists():
            _make(database)
        client = MlflowClient(uri)
    return Store(client, uri, _experiment_id(client, experiment, (database.parent / "mlruns" / experiment).as_uri()))


def found_store(experiment: str = EXPERIMENT, uri: str | None = None, patience_s: int = PATIENCE_S) -> Store:
    """Opens an experiment to be read: nothing is made of what is missing, which is a LookupError."""
    uri = uri or tracking_uri()
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).exists():
        raise LookupError(
            f"no database at {redacted(uri)}: show the runs first (python src/publish.py), or set {VARIABLE}."
        )
    load_mlflow(patience_s)
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None or found.lifecycle_stage == "deleted":
        there = ", ".join(sorted(each.name for each in client.search_experiments()))
        at = redacted(uri)
        raise LookupError(f"no experiment '{experiment}' at {at}: name one of {there} by tracking.experiment=NAME.")
    return Store(client, uri, found.experiment_id)


@contextmanager
def _locked(database: Path) -> Iterator[None]:
    """Holds the right to make the database: MLflow's own migrations fail when two processes start them at once."""
    with open(f"{database}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(database: Path) -> None:
    """Makes the database under another name first, so that a start that was killed leaves no half of it."""
    from mlflow import MlflowClient

    partial = database.with_name(f"{database.name}.partial")
    partial.unlink(missing_ok=True)
    MlflowClient(f"{SQLITE}{partial}")
    os.replace(partial, database)


def _experiment_id(client: MlflowClient, name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(name, artifact_location=artifacts)
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another process was faster
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise RuntimeError(
            f"experiment '{name}' was deleted in MLflow. Restore it (mlflow experiments restore "
            f"--experiment-id {found.experiment_id}), or publish to another: tracking.experiment=NAME."
        )
    return found.experiment_id


if __name__ == "__main__":
    print(f"Made the MLflow database {open_store(uri=LOCAL).uri}")
