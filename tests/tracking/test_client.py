"""Connections to MLflow: one database in the project's root, or the user's server."""

import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from epochmeter.config.installation import ROOT
from epochmeter.tracking.client import LOCAL_URI, Destination, check_address, destination_of, open_store

OPEN = "import sys; from epochmeter.tracking.client import open_store; print(open_store(uri=sys.argv[1]).experiment_id)"
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


def test_experiment_is_created_once_with_artifacts_next_to_the_database_and_not_if_it_was_deleted(store):
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
