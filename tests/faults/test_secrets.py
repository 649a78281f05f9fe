"""Passwords in addresses and tokens in the environment are in no file and no output."""

import pytest

pytestmark = pytest.mark.system
PLANTED = "hunter2"
ADDRESS = f"http://ann:{PLANTED}@127.0.0.1:9"
ENVIRONMENT = {"MLFLOW_TRACKING_TOKEN": f"{PLANTED}-token", "MLFLOW_TRACKING_URI": ADDRESS}


def leaks(folder):
    """Return the files of a folder that contain the planted secret."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path.relative_to(folder)) for path in files if PLANTED.encode() in path.read_bytes()]


def test_secrets_are_in_no_file_and_no_output(project):
    where = f"'https://data.org/digits?token={PLANTED}'"
    secrets = {"+dataset.password": f"'{PLANTED} {PLANTED}'", "+dataset.login": f"{{name:ann,hf_token:{PLANTED}}}"}
    arguments = project.stubbed("-m", tracking="mlflow", **{"+dataset.origin": where, **secrets})
    done = project.run("train", *arguments, check=True, **ENVIRONMENT)
    assert "http://***@127.0.0.1:9" in done.stdout
    dataset = project.record().job()["dataset"]
    assert dataset["password"] == "***"
    assert dataset["login"] == {"name": "ann", "hf_token": "***"}
    database = f"sqlite:///{project.root}/mlflow.db"
    published = project.run("publish", "--uri", database, check=True, **ENVIRONMENT)
    assert project.shown("status") == ["FINISHED"]
    away = project.run("publish", **ENVIRONMENT)
    reported = project.run("report", **ENVIRONMENT)
    assert away.returncode == 1
    outputs = [text for process in (done, published, away, reported) for text in (process.stdout, process.stderr)]
    assert [text for text in outputs if PLANTED in text] == []
    assert leaks(project.root) == []
