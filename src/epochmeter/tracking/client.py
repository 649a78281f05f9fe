"""Connect to MLflow: a server (`tracking.uri` or MLFLOW_TRACKING_URI), or a database in the project's root.

`python -m epochmeter.tracking.client` creates the database, so that the first run starts one second earlier.
"""

import fcntl
import logging
import os
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from epochmeter.config.installation import ROOT
from epochmeter.config.secrets import redact
from epochmeter.config.suggestions import list_choices, merged_defaults
from epochmeter.shared.garbage import without_collection
from epochmeter.shared.problem import input_error

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "epochmeter"
SQLITE = "sqlite:///"
LOCAL_URI = f"{SQLITE}{ROOT / 'mlflow.db'}"  # the project's own database, independent of the working directory
URI_VARIABLE = "MLFLOW_TRACKING_URI"
FILE_STORES = "MLFLOW_ALLOW_FILE_STORE"  # MLflow's environment variable that allows folders of files as stores
SERVER_SCHEMES = ("http://", "https://")
DATABRICKS = "databricks"  # the address of its default profile, or of `databricks://PROFILE`
DATABASES = ("postgresql", "mysql", "mssql")  # also with a driver, such as postgresql+psycopg
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


def configured_uris() -> set[str]:
    """Return the addresses that this user has configured: in the environment and in conf/tracking; the database."""
    options = (merged_defaults("tracking", option) for option in list_choices("tracking"))
    return {tracking_uri(), LOCAL_URI, *(str(uri) for option in options if (uri := option.get("uri")))}


def check_address(tracking: Mapping[str, Any]) -> None:
    """Refuse an address at which runs cannot be published, or that contains a password; raises InputError."""
    uri = tracking.get("uri")
    if uri and redact(uri) != uri:
        raise input_error(
            f"`tracking.uri={redact(uri)}`: the password in this address would be written to every run folder",
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment",
        )
    if tracking["name"] == "none":
        return
    address = uri or os.environ.get(URI_VARIABLE) or ""
    if tracking["name"] == "server" and not address.startswith(SERVER_SCHEMES):
        other = f", not `{redact(address)}`" if address else ""
        raise input_error(
            f"`tracking=server` needs the address of an MLflow server{other}",
            f"set tracking.uri=http://HOST:5000 or {URI_VARIABLE}",
        )
    if address:
        check_uri(address, f"{'tracking.uri' if uri else URI_VARIABLE}=")


def check_uri(uri: str, option: str = f"{URI_VARIABLE}=") -> None:
    """Refuse an address at which MLflow cannot have a store; InputError. `option` is the text before the address."""
    scheme = uri.partition(":")[0] if ":" in uri or uri == DATABRICKS else ""
    shown = f"`{option}{redact(uri)}`"
    if uri and scheme in ("", "file"):
        if os.environ.get(FILE_STORES, "").lower() in ("true", "1"):
            return
        path = Path(unquote(urlsplit(uri).path) if scheme else uri).absolute()
        near = f"{SQLITE}{path.parent / 'mlflow.db'}" if os.access(path.parent, os.W_OK) else LOCAL_URI
        hint = f"give a database: `{option}{near}`"
        raise input_error(f"{shown} is a folder of files, and MLflow 3 publishes only to a server or a database", hint)
    if f"{scheme}://" in SERVER_SCHEMES:
        is_valid = is_server(uri)
    elif scheme == "sqlite":
        database = Path(uri.removeprefix(SQLITE))
        is_valid = uri.startswith(SQLITE) and bool(database.name) and not database.is_dir() and database.parent.is_dir()
    elif scheme.partition("+")[0] in DATABASES:
        is_valid = bool(urlsplit(uri).netloc)
    else:
        is_valid = scheme == DATABRICKS or scheme in entry_points(group="mlflow.tracking_store").names
    if not is_valid:
        forms = f"a server, `http://HOST:5000`, or a database in an existing folder, `{SQLITE}/FOLDER/mlflow.db`"
        raise input_error(f"{shown} is not the address of an MLflow server or database", f"give {forms}")


def is_server(uri: str) -> bool:
    """Return whether the address of a server has a valid name and port."""
    try:
        parts = urlsplit(uri)
        has_name = bool((parts.hostname or "").encode("idna")) and not re.search(r"\s", uri)
        return has_name and parts.port != 0
    except ValueError:  # a port above 65535, an incomplete IPv6 address, or a name that is too long
        return False


def load_mlflow(timeout_s: int | None = None) -> ModuleType:
    """Import MLflow, which takes a second, without its telemetry and log messages.

    Args:
        timeout_s: Timeout of calls to a server from now on; None: as before. The user's environment has precedence.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ[REQUEST_TIMEOUT] = str(USERS_TIMEOUT or timeout_s or os.environ.get(REQUEST_TIMEOUT) or TIMEOUT_S)
    with without_collection():
        import mlflow

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it prints the traceback of errors it raises
    return mlflow


def connect_database(tracking: Mapping[str, Any]) -> None:
    """Import MLflow, and let it connect to the database in a file that exists, so that a later call takes no time.

    MLflow keeps the connection, which takes it most of a second. A server is not called.
    """
    load_mlflow()
    destination = destination_of(tracking)
    if destination and (database := _database(destination.uri)) and database.exists():
        _open_database(database)


def open_store(experiment: str = EXPERIMENT, uri: str | None = None, timeout_s: int | None = None) -> Store:
    """Open or create an experiment; InputError for an invalid address, RuntimeError if it was deleted, MLflow's errors.

    A local experiment keeps its artifacts in `mlruns/` next to its database; a server has its own location.
    """
    uri, artifacts = uri or tracking_uri(), None
    check_uri(uri)
    mlflow = load_mlflow(timeout_s)
    if database := _database(uri):
        # Below mlruns/, also for the experiment of a record from another user.
        name = experiment.replace("/", "%2F") if experiment.strip(".") else experiment.replace(".", "%2E")
        artifacts = (database.parent / "mlruns" / name).as_uri()
        client = _open_database(database)
    else:
        client = mlflow.MlflowClient(uri)
    return Store(client, uri, _experiment_id(client, experiment, artifacts))


def open_existing_store(experiment: str, uri: str | None, timeout_s: int = LONG_TIMEOUT_S) -> Store:
    """Open an existing experiment for reading; LookupError if it, or its database, does not exist, InputError."""
    uri = uri or tracking_uri()
    check_uri(uri)
    if (database := _database(uri)) and not database.exists():
        raise LookupError(
            f"no database at {redact(uri)}: publish the runs first (python src/publish.py), or set {URI_VARIABLE}."
        )
    client = load_mlflow(timeout_s).MlflowClient(uri)
    match = client.get_experiment_by_name(experiment)
    if match is None or match.lifecycle_stage == "deleted":
        names = ", ".join(sorted(other.name for other in client.search_experiments()))
        raise LookupError(f"no experiment '{experiment}' at {redact(uri)}: set tracking.experiment= to one of {names}.")
    return Store(client, uri, match.experiment_id)


def _database(uri: str) -> Path | None:
    """Return the file of a database; None for a server."""
    return Path(uri.removeprefix(SQLITE)).resolve() if uri.startswith(SQLITE) else None


def _open_database(database: Path) -> "MlflowClient":
    """Open the database, one process at a time for MLflow's migrations; a killed process leaves no partial one."""
    from mlflow import MlflowClient

    lock = os.open(f"{database}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not database.exists():
            partial = database.with_name(f"{database.name}.partial")
            partial.unlink(missing_ok=True)
            MlflowClient(f"{SQLITE}{partial}")
            os.replace(partial, database)
        with without_collection():  # the first connection imports SQLAlchemy
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
