"""Secrets in arguments, keys, addresses and the environment are in no file and no output."""

import base64
import gzip
import json
import os
import re
import stat

import pytest
from project import put

from epochmeter.config.secrets import CONCEALED

PLANTED = "hunter2"
ADDRESS = f"http://ann:{PLANTED}@127.0.0.1:9"
ENVIRONMENT = {"MLFLOW_TRACKING_TOKEN": f"{PLANTED}-token", "MLFLOW_TRACKING_URI": ADDRESS}


def contents(path):
    """Yield the content of a file, and of its packed parts: those of a report's page are compressed."""
    content = path.read_bytes()
    yield content
    if path.suffix == ".gz":
        yield gzip.decompress(content)
    for packed in re.findall(rb"H4sI[\w+/]{20,}={0,2}", content) if path.suffix == ".html" else ():
        yield gzip.decompress(base64.b64decode(packed))


def leaks(folder, planted=(PLANTED,)):
    """Return the files of a folder that contain a planted secret, with the secret."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    found = ((path, content) for path in files for content in contents(path))
    return [(str(path), secret) for path, content in found for secret in planted if secret.encode() in content]


@pytest.mark.system
def test_secrets_are_in_no_file_and_no_output(project):
    where = f"'https://data.org/digits?token={PLANTED}'"
    secrets = {"+dataset.password": f"'{PLANTED} {PLANTED}'", "+dataset.login": f"{{name:ann,hf_token:{PLANTED}}}"}
    arguments = project.stubbed("-m", tracking="mlflow", **{"+dataset.origin": where, **secrets})
    done = project.run("train", *arguments, check=True, **ENVIRONMENT)
    assert "http://***@127.0.0.1:9" in done.stdout
    dataset = project.record().job()["dataset"]
    assert CONCEALED.fullmatch(dataset["password"])
    assert CONCEALED.fullmatch(dataset["login"].pop("hf_token"))
    assert dataset["login"] == {"name": "ann"}
    database = f"sqlite:///{project.root}/mlflow.db"
    published = project.run("publish", "--uri", database, check=True, **ENVIRONMENT)
    assert project.shown("status") == ["FINISHED"]
    away = project.run("publish", **ENVIRONMENT)
    reported = project.run("report", **ENVIRONMENT)
    assert away.returncode == 1
    outputs = [text for process in (done, published, away, reported) for text in (process.stdout, process.stderr)]
    assert [text for text in outputs if PLANTED in text] == []
    assert leaks(project.root) == []


SCRIPT = """
import json, sys, torch
from torch.utils.data import DataLoader
json.dump(sys.argv[1:], open("../received.json", "w"))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    for batch in DataLoader([torch.ones(4)] * 8, 2):
        optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
print("trained")
"""


def secret(number):
    return f"XyZzY{number:02d}q"


def fill(word, values):
    for name, value in values.items():
        word = word.replace(f"{{script.{name}}}", value)
    return word


ARGUMENTS = [
    *("--password", secret(0), "--api-key", secret(1), f"--db_passwd={secret(2)}", f"-p{secret(3)}", "-p", secret(4)),
    *(f"--header=Authorization: Bearer {secret(5)}", "-H", f"X-Api-Key: {secret(6)}", "--lr", "0.1"),
    *("--auth", f"ann:{secret(7)}", "-u", f"ann:{secret(8)}", f"trainer.hub_token={secret(9)}"),
    *("--url", f"https://ann:{secret(10)}@data.org/x?n=1&token={secret(11)}", f"--dsn=db://u:{secret(12)}@h:1/x"),
    *("--to", f"ann:{secret(13)}@host:/data", f'{{"secret": "{secret(14)}", "n": 1}}', "--use-token", "--epochs", "2"),
    *("--credentials", secret(15), secret(16), f"sk-proj-{secret(17)}{'a1B2' * 6}", f"ghp_{secret(18)}{'a1B2' * 7}"),
    *(f"hf_{secret(19)}{'aBcD' * 7}", "AKIA" + "Q7" * 8, f"eyJ{secret(20)}.eyJ{secret(20)}.{secret(20)}"),
    *("--key", f"{secret(21)}K3mZp7Lw9XvB4nT6", "--cookie", secret(22), f"--header=Cookie: id={secret(23)}"),
    *("--token={script.token}", "--pw", "{script.pw}", "--with", "http://u:{script.word}@h/", "--depth", "{script.n}"),
    *(f"WANDB_API_KEY={secret(24)}", "--private-key", secret(25), secret(26) + "-of-the-environment"),
]
PLACEHOLDERS = {"token": secret(27), "pw": f"{secret(28)} {secret(28)}", "word": secret(29), "n": "3"}
VARIABLES = {
    "MLFLOW_TRACKING_PASSWORD": f"{secret(30)}-password", "MLFLOW_TRACKING_TOKEN": f"{secret(31)}-token",
    "OWN_SECRET": secret(26) + "-of-the-environment",
}  # fmt: skip
SECRETS = [*map(secret, range(32)), "Q7Q7"]


@pytest.mark.system
def test_secrets_of_a_scripts_arguments_reach_the_script_and_no_file_and_no_output(project):
    put(project.root, {"work/t.py": SCRIPT})
    keys = [f"script.{name}='{value}'" for name, value in PLACEHOLDERS.items()]
    common = [
        f"machine.lock_dir={project.root}/locks",
        "measure.steps_per_window=4",
        *keys,
        "hydra.output_subdir=.hydra",
    ]
    script = str(project.root / "work/t.py")
    done = project.run("measure", "-m", *common, "script.n=3,4", script, *ARGUMENTS, **VARIABLES)
    assert done.returncode == 0, done.stderr
    received = json.loads((project.root.parent / "received.json").read_text())
    (project.root.parent / "received.json").unlink()
    filled = {**PLACEHOLDERS, "n": "4"}
    assert received == [fill(word, filled) for word in ARGUMENTS]
    published = project.run("publish", "--uri", f"sqlite:///{project.root}/mlflow.db", check=True, **VARIABLES)
    reported = project.run("report", check=True, **VARIABLES)
    watched = project.run("watch", "once=true", check=True, **VARIABLES)
    refused = project.run("measure", "-m", *common, "script.n=(", script, *ARGUMENTS, **VARIABLES)
    assert refused.returncode == 1
    again = project.run("measure", "-m", *common, "script.n=3,4", script, *ARGUMENTS, **VARIABLES)
    assert again.stderr.count("skipped") >= 2, "the same secrets are the same configurations"
    outputs = [
        text for run in (done, published, reported, watched, refused, again) for text in (run.stdout, run.stderr)
    ]
    assert [(secret, text) for text in outputs for secret in SECRETS if secret in text] == []
    assert leaks(project.root, SECRETS) == []
    record, other = project.records()
    for path in (record.folder, record.folder.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    command = record.job()["measure"]["command"]
    assert [command[command.index("--lr") + 1], command[command.index("--epochs") + 1]] == ["0.1", "2"]
    assert (record.job()["script"]["n"], other.job()["script"]["n"]) == (3, 4)
    assert os.path.exists(record.folder / ".hydra/config.yaml"), "Hydra's own files were searched too"
