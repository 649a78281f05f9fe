"""A password that an address holds, and tokens of the environment, are in nothing that a run leaves or says."""

import pytest

PLANTED = "hunter2"
ADDRESS = f"http://ann:{PLANTED}@127.0.0.1:9"
ENVIRONMENT = {"MLFLOW_TRACKING_TOKEN": f"{PLANTED}-token", "MLFLOW_TRACKING_URI": ADDRESS}


def leaks(folder):
    """The files below a folder that hold what was planted."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path.relative_to(folder)) for path in found if PLANTED.encode() in path.read_bytes()]


@pytest.mark.system
def test_secrets_are_in_no_file_and_no_output(project):
    where = f"'https://data.org/digits?token={PLANTED}'"
    secrets = {"+dataset.password": f"'{PLANTED} {PLANTED}'", "+dataset.login": f"{{name:ann,hf_token:{PLANTED}}}"}
    asked = project.quick("-m", tracking="mlflow", **{"+dataset.origin": where, **secrets})
    done = project.run("train", *asked, **ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "http://***@127.0.0.1:9" in done.stdout
    dataset = project.record().job()["dataset"]
    assert dataset["password"] == "***"
    assert dataset["login"] == {"name": "ann", "hf_token": "***"}
    database = f"sqlite:///{project.root}/mlflow.db"
    published = project.run("publish", "--uri", database, **ENVIRONMENT)
    assert published.returncode == 0, published.stderr
    assert project.shown("status") == ["FINISHED"]
    away = project.run("publish", **ENVIRONMENT)
    told = project.run("report", **ENVIRONMENT)
    assert away.returncode == 1
    said = [text for each in (done, published, away, told) for text in (each.stdout, each.stderr)]
    assert [text for text in said if PLANTED in text] == []
    assert leaks(project.root) == []


def test_an_address_with_a_password_is_refused_before_anything_is_written(project):
    done = project.run("train", *project.quick(tracking="server", **{"tracking.uri": ADDRESS}))
    assert done.returncode == 1
    assert "MLFLOW_TRACKING_PASSWORD" in done.stderr
    assert PLANTED not in done.stdout + done.stderr
    assert leaks(project.root) == []
