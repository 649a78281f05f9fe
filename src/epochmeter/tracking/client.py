"""Connect to MLflow: a server (`tracking.uri` or MLFLOW_TRACKING_URI), or a database in the project's root.

`python -m epochmeter.tracking.client` creates the database, so that the first run starts one second earlier.
"""

import fcntl
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from epochmeter.config.errors import input_error
from epochmeter.config.installation import ROOT
from epochmeter.config.secrets import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "epochmeter"
SQLITE = "sqlite:///"
LOCAL_URI = f"{SQLITE}{ROOT / 'mlflow.db'}"  # the project's own database, independent of the working directory
URI_VARIABLE = "MLFLOW_TRACKING_URI"
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # publishing again later is the retry
}
TIMEOUT_S, LONG_TIMEOUT_S = 2, 30  # timeout of a call to a server, in seconds: during a run, and while a person waits
REQUEST_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"  # MLflow's environment variable for this timeout
USERS_TIMEOUT = os.environ.get(REQUEST_TIMEOUT)  # text that the user has set; None: not set


class Store(NamedTuple):
    """An open experiment of a tracking server or database."""

    client: "MlflowClient"
    uri: str
    experiment_id: str


class Destination(NamedTuple):
    """Destination of published runs: experiment and address; as a text, the address without secrets."""

    experiment: str
    uri: str

    def __str__(self) -> str:
        return redact(self.uri)


def destination_of(tracking: Mapping[str, Any]) -> Destination | None:
    """Return the destination for a tracking configuration; None for `tracking=none`."""
    if tracking["name"] == "none":
        return None
    return Destination(tracking["experiment"], tracking.get("uri") or tracking_uri())


def tracking_uri() -> str:
    """Return the user's server or database, else the project's database."""
    return os.environ.get(URI_VARIABLE) or LOCAL_URI


def check_address(tracking: Mapping[str, Any]) -> None:
    """Refuse a missing server, and an address that contains a password; raises InputError."""
    uri = tracking.get("uri")
    if uri and redact(uri) != uri:
        raise input_error(
            f"`tracking.uri={redact(uri)}`: the password in this address would be written to every run folder",
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment",
        )
    address = uri or os.environ.get(URI_VARIABLE) or ""
    if tracking["name"] == "server" and not address.startswith(("http://", "https://")):
        other = f", not `{redact(address)}`" if address else ""
        raise input_error(
            f"`tracking=server` needs the address of an MLflow server{other}",
            f"set tracking.uri=http://HOST:5000 or {URI_VARIABLE}",
        )


def load_mlflow(timeout_s: int | None = None) -> ModuleType:
    """Import MLflow, which takes a second, without its telemetry and log messages.

    Args:
        timeout_s: Timeout of calls to a server from now on; None: as before. The user's environment has precedence.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ[REQUEST_TIMEOUT] = str(USERS_TIMEOUT or timeout_s or os.environ.get(REQUEST_TIMEOUT) or TIMEOUT_S)
    import mlflow

    for name in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return mlflow


def open_store(experiment: str = EXPERIMENT, uri: str | None = None, timeout_s: int | None = None) -> Store:
    """Open or create an experiment; RuntimeError if it was deleted, and errors of MLflow.

    A local experiment keeps its artifacts in `mlruns/` next to its database; a server has its own location.
    """
    mlflow = load_mlflow(timeout_s)
    uri, artifacts = uri or tracking_uri(), None
    if uri.startswith(SQLITE):
        database = Path(uri.removeprefix(SQLITE)).resolve()
        artifacts = (database.parent / "mlruns" / experiment).as_uri()
        client = _open_database(database)
    else:
        client = mlflow.MlflowClient(uri)
    return Store(client, uri, _experiment_id(client, experiment, artifacts))


def open_existing_store(experiment: str, uri: str | None, timeout_s: int = LONG_TIMEOUT_S) -> Store:
    """Open an existing experiment for reading; LookupError if the database or the experiment does not exist."""
    uri = uri or tracking_uri()
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).exists():
        raise LookupError(
            f"no database at {redact(uri)}: publish the runs first (python src/publish.py), or set {URI_VARIABLE}."
        )
    client = load_mlflow(timeout_s).MlflowClient(uri)
    match = client.get_experiment_by_name(experiment)
    if match is None or match.lifecycle_stage == "deleted":
        names = ", ".join(sorted(other.name for other in client.search_experiments()))
        raise LookupError(f"no experiment '{experiment}' at {redact(uri)}: set tracking.experiment= to one of {names}.")
    return Store(client, uri, match.experiment_id)


def _open_database(database: Path) -> "MlflowClient":
    """Open the database, one process at a time for MLflow's migrations; a killed process leaves no partial one."""
    from mlflow import MlflowClient

    with open(f"{database}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not database.exists():
            partial = database.with_name(f"{database.name}.partial")
            partial.unlink(missing_ok=True)
            MlflowClient(f"{SQLITE}{partial}")
            os.replace(partial, database)
        return MlflowClient(f"{SQLITE}{database}")


def _experiment_id(client: "MlflowClient", name: str, artifacts: str | None) -> str:
    from mlflow.exceptions import MlflowException

    match = client.get_experiment_by_name(name)
    if match is None:
        try:
            return client.create_experiment(name, artifact_location=artifacts)
        except MlflowException:  # created by another process meanwhile
            if not (match := client.get_experiment_by_name(name)):
                raise
    if match.lifecycle_stage == "deleted":
        restore = f"mlflow experiments restore --experiment-id {match.experiment_id}"
        raise RuntimeError(f"experiment '{name}' was deleted in MLflow: {restore}, or set another tracking.experiment=")
    return match.experiment_id


if __name__ == "__main__":
    print(f"Created the MLflow database {open_store(uri=LOCAL_URI).uri}")
