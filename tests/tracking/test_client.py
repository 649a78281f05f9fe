"""One database in the project's root, whatever the working directory and whoever comes first."""

import os
import shutil
import sqlite3
import subprocess
import sys
import time

import pytest

from epochmeter.config.job import ROOT
from epochmeter.tracking import client as stores
from epochmeter.tracking.client import LOCAL_URI, Destination, check, destination_of, open_store, tracking_uri

OPEN = "import sys; from epochmeter.tracking.client import open_store; print(open_store(uri=sys.argv[1]).experiment_id)"


def test_database_is_in_the_root_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert (ROOT / "pyproject.toml").is_file()
    assert tracking_uri() == f"sqlite:///{ROOT}/mlflow.db"


def test_users_own_server_is_used(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert tracking_uri() == "http://tracker:5000"


def test_address_comes_from_job_then_environment_then_project(monkeypatch):
    server = {"name": "server", "experiment": "boards", "uri": "http://tracker:5000"}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://another:5000")
    assert destination_of(server) == Destination("boards", "http://tracker:5000")
    assert destination_of({**server, "uri": None}) == Destination("boards", "http://another:5000")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert destination_of({"name": "mlflow", "experiment": "epochmeter"}) == Destination("epochmeter", LOCAL_URI)
    assert destination_of({"name": "none", "experiment": "epochmeter"}) is None


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        (None, r"tracking=server: give tracking\.uri=http://HOST:5000, or set MLFLOW_TRACKING_URI"),
        ("postgresql://db/mlflow", "not that of its database"),
        ("http://ann:hunter2@tracker", r"tracking\.uri=http://\*\*\*@tracker: .*MLFLOW_TRACKING_PASSWORD"),
    ],
)
def test_invalid_server_or_password_in_the_address_is_rejected(monkeypatch, uri, says):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match=says) as refused:
        check({"name": "server", "uri": uri})
    assert "hunter2" not in str(refused.value)


def test_destination_is_shown_without_its_password():
    assert str(Destination("epochmeter", "http://ann:hunter2@tracker")) == "http://***@tracker"


def test_artifacts_are_in_mlruns_next_to_the_database(store, tmp_path):
    experiment = store.client.get_experiment_by_name("epochmeter")
    assert experiment.artifact_location == (tmp_path / "mlruns" / "epochmeter").as_uri()
    assert not list(tmp_path.glob("mlruns/**/meta.yaml"))


def test_default_experiment_is_not_changed(store):
    assert store.experiment_id != "0"
    assert store.client.search_runs(["0"]) == []


def test_opening_again_finds_the_same_experiment(store):
    assert open_store(uri=store.uri).experiment_id == store.experiment_id


def test_deleted_experiment_is_an_error_with_a_remedy(store):
    store.client.delete_experiment(store.experiment_id)
    with pytest.raises(RuntimeError, match="mlflow experiments restore --experiment-id"):
        open_store(uri=store.uri)


def test_users_mlflow_variables_are_kept(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    stores.load_mlflow()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"


def test_server_that_is_down_costs_at_most_two_seconds():
    started = time.monotonic()
    with pytest.raises(Exception, match="Connection"):
        open_store(uri="http://127.0.0.1:9")
    assert time.monotonic() - started < 2


@pytest.mark.system
def test_database_is_created_even_if_the_users_server_is_down(tmp_path):
    for folder in ("src", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    away = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    subprocess.run([sys.executable, "-m", "epochmeter.tracking.client"], env=away, check=True)
    assert (tmp_path / "mlflow.db").is_file()


@pytest.mark.system
def test_six_concurrent_processes_create_the_database(tmp_path):
    database = tmp_path / "mlflow.db"
    database.with_name("mlflow.db.partial").write_bytes(b"left by a start that was killed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", OPEN, f"sqlite:///{database}"]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, answers
    assert {answer for answer, _ in answers} == {"1\n"}
    assert [error for _, error in answers] == [""] * 6
    with sqlite3.connect(database) as connection:
        assert connection.execute("select name from experiments").fetchall() == [("Default",), ("epochmeter",)]
