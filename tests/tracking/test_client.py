"""Connections to MLflow: one database in the project's root, or the user's server."""

import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from epochmeter.config.installation import ROOT
from epochmeter.shared.problem import InputError
from epochmeter.tracking.client import LOCAL_URI, Destination, check_address, check_uri, destination_of, open_store

OPEN = "import sys; from epochmeter.tracking.client import open_store; print(open_store(uri=sys.argv[1]).experiment_id)"
MLFLOW = {"name": "mlflow", "experiment": "epochmeter"}
OFFLINE = "http://127.0.0.1:9"


def test_address_is_the_configured_one_then_the_environments_then_the_projects(monkeypatch, tmp_path):
    server = {"name": "server", "experiment": "boards", "uri": "http://tracker:5000"}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://another:5000")
    assert destination_of(server) == Destination("boards", "http://tracker:5000")
    assert destination_of({**server, "uri": None}) == Destination("boards", "http://another:5000")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(tmp_path)
    assert f"sqlite:///{ROOT}/mlflow.db" == LOCAL_URI
    assert destination_of({"name": "mlflow", "experiment": "epochmeter"}) == Destination("epochmeter", LOCAL_URI)
    assert destination_of({"name": "none", "experiment": "epochmeter"}) is None


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (None, r"set tracking\.uri=http://HOST:5000 or MLFLOW_TRACKING_URI"),
        ("postgresql://db/mlflow", "not `postgresql://db/mlflow`"),
        (
            "http://ann:hunter2@tracker",
            r"(?s)`tracking\.uri=http://\*\*\*@tracker`: .*hint: .*MLFLOW_TRACKING_PASSWORD",
        ),
    ],
)
def test_missing_server_or_password_in_the_address_is_an_error(monkeypatch, uri, message):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match=message) as error:
        check_address({"name": "server", "uri": uri})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("uri", ["file:{}/mlruns", "file://{}/mlruns", "{}/mlruns", "./mlruns"])
def test_folder_of_files_is_refused_with_a_database_that_works(monkeypatch, tmp_path, uri):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(tmp_path))
    database = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.raises(InputError) as refused:
        check_address(MLFLOW)
    assert refused.value.problems[0].hint == f"give a database: `MLFLOW_TRACKING_URI={database}`"
    check_uri(database)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:/nonexistent/mlruns")
    with pytest.raises(InputError, match=f"`tracking.uri={LOCAL_URI}`$"):
        check_address({**MLFLOW, "uri": "/nonexistent/mlruns"})
    check_address({**MLFLOW, "name": "none"})
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    check_address(MLFLOW)


ADDRESSES = {
    "http://tracker": True, "https://tracker:5000/path": True, "http://[::1]:5000": True, "http://127.0.0.1:1": True,
    "http://": False, "http://:5000": False, "http://tracker:99999": False, "http://tracker:0": False,
    "http://tracker:port": False, "http://[::1": False, "http:///path": False, "http:/tracker": False,
    "http://a tracker": False, "http://a..b": False, f"http://{64 * 'a'}": False, "HTTP://tracker": False,
    "tracker:5000": False, "localhost:5000": False, "": False, "ftp://tracker": False, "postgres://tracker/x": False,
    "postgresql://tracker/mlflow": True, "mysql+pymysql://tracker/mlflow": True, "postgresql:tracker": False,
    "sqlite:///mlflow.db": True, "sqlite://mlflow.db": False, "sqlite:mlflow.db": False, "sqlite://": False,
    "sqlite:///": False, "sqlite:////nonexistent/mlflow.db": False, "sqlite:////etc": False, "databricks": True,
    "databricks://profile": True,
}  # fmt: skip


def test_address_that_mlflow_cannot_use_is_refused_before_training(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    accepted = {}
    for uri in ADDRESSES:
        try:
            check_uri(uri)
            accepted[uri] = True
        except InputError:
            accepted[uri] = False
    assert accepted == ADDRESSES


def test_experiment_is_created_once_next_to_the_database_and_not_if_deleted(store):
    experiment = store.client.get_experiment(store.experiment_id)
    assert (experiment.name, store.experiment_id == "0") == ("epochmeter", False)
    folder = os.path.dirname(store.uri.removeprefix("sqlite:///"))
    assert experiment.artifact_location == f"file://{folder}/mlruns/epochmeter"
    assert open_store(uri=store.uri).experiment_id == store.experiment_id
    store.client.delete_experiment(store.experiment_id)
    with pytest.raises(RuntimeError, match="mlflow experiments restore --experiment-id"):
        open_store(uri=store.uri)


@pytest.mark.system
def test_database_is_created_even_if_the_users_server_is_offline(sources, tmp_path):
    shutil.copytree(sources, tmp_path, dirs_exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "MLFLOW_TRACKING_URI": OFFLINE}
    subprocess.run([sys.executable, "-m", "epochmeter.tracking.client"], env=environment, check=True)
    assert (tmp_path / "mlflow.db").is_file()


@pytest.mark.system
def test_concurrent_processes_create_the_database_once(tmp_path):
    database = tmp_path / "mlflow.db"
    database.with_name("mlflow.db.partial").write_bytes(b"of a killed process")
    command, environment = [sys.executable, "-c", OPEN, f"sqlite:///{database}"], {"PYTHONPATH": str(ROOT / "src")}
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env={**os.environ, **environment}, **piped) for _ in range(3)]
    answers = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    assert answers == [("1\n", "", 0)] * 3
    with sqlite3.connect(database) as connection:
        assert connection.execute("select name from experiments").fetchall() == [("Default",), ("epochmeter",)]
