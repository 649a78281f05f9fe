"""The GitHub action: its inputs, and its steps on a real repository with two commits."""

import json
import re
import runpy
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from project import ENVIRONMENT, ROOT

SCRIPT = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for (inputs,) in DataLoader(TensorDataset(torch.ones(32, 4)), 8):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        time.sleep({pause_s})
"""


def test_every_input_of_the_action_reaches_its_script():
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (step,) = [step for step in action["runs"]["steps"] if "env" in step]
    passed = {name: re.findall(r"inputs\.(\w+)", value) for name, value in step["env"].items()}
    assert {name for names in passed.values() for name in names} == {*action["inputs"]}
    assert all(names in ([name.removeprefix("INPUT_").lower()], []) for name, names in passed.items())
    script = (ROOT / "action/compare.py").read_text()
    read = {*re.findall(r"INPUT_([A-Z_]+)", script), "BASE", "HEAD", "TIME", "ENERGY"}
    assert {f"INPUT_{name}" for name in read} - {"INPUT_OUT", "INPUT_"} == {*step["env"]}
    texts = [step["run"] for step in action["runs"]["steps"]]
    assert not any("${{" in text for text in texts), "an input must not become a part of a command"


class Api(BaseHTTPRequestHandler):
    """GitHub's API with one answer, by default that to a token that may not write comments."""

    requests: list[tuple[str, str]] = []  # noqa: RUF012
    code: int | None = 403  # None: no HTTP at all

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, body["body"]))
        if self.code is None:
            self.wfile.write(b"nothing\r\n\r\n")
            return
        self.send_response(self.code)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def api(monkeypatch):
    """The address of a server with the answers of `Api`."""
    monkeypatch.setattr(Api, "requests", [])
    with HTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def publish(api, tmp_path, monkeypatch):
    """The function that publishes the table of a pull request; the job's summary is the file `summary`."""
    for name, value in {
        "GITHUB_API_URL": api, "GITHUB_REPOSITORY": "me/project", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "INPUT_PULL_REQUEST": "7", "INPUT_TOKEN": "hunter2",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return runpy.run_path(str(ROOT / "action/compare.py"))["publish"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (201, None),
        (401, "read-only token"),
        (403, "read-only token"),
        (404, "read-only token"),
        (503, "503"),
        (None, "no comment"),
    ],
)
def test_refused_comment_is_one_line_and_the_summary_has_the_table(
    publish, tmp_path, monkeypatch, capsys, code, reason
):
    monkeypatch.setattr(Api, "code", code)
    publish("the table")
    assert Api.requests == [("/repos/me/project/issues/7/comments", "the table")]
    assert (tmp_path / "summary").read_text() == "the table\n"
    table, *warnings = capsys.readouterr().out.splitlines()
    assert table == "the table"
    assert len(warnings) == (reason is not None)
    for line in warnings:
        assert line.startswith("::warning::no comment on the pull request")
        assert reason in line
        assert "hunter2" not in line


def test_job_without_a_token_has_the_table_in_its_summary(publish, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("INPUT_TOKEN", "")
    publish("the table")
    assert (tmp_path / "summary").read_text() == "the table\n"
    assert capsys.readouterr().out.count("::warning::") == 1
    monkeypatch.delenv("INPUT_PULL_REQUEST")
    publish("the table")
    assert "::warning::" not in capsys.readouterr().out, "a push has no pull request"
    assert Api.requests == []


def test_summary_that_cannot_be_written_does_not_end_the_gate(publish, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "missing/summary"))
    monkeypatch.setattr(Api, "code", 201)
    publish("the table")
    assert capsys.readouterr().out.count("::warning::no job summary") == 1
    assert [text for _, text in Api.requests] == ["the table"]


@pytest.mark.system
def test_slower_commit_violates_the_gate_and_a_forbidden_comment_leaves_the_summary(new_project, tmp_path, api):
    project, repository = new_project(), tmp_path / "repository"
    repository.mkdir()

    def git(*arguments):
        named = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
        done = subprocess.run(["git", *named, *arguments], cwd=repository, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    commits = []
    for pause_s in (0.02, 0.2):
        (repository / "train.py").write_text(SCRIPT.format(pause_s=pause_s))
        git("add", "train.py")
        git("commit", "--quiet", "-m", f"pause {pause_s}")
        commits.append(git("rev-parse", "HEAD"))

    # The program of an installed package, whose commands are those of the project's copy.
    program = tmp_path / "epochmeter"
    program.write_text(
        f'#!/bin/sh\ncommand=$1; shift; [ "$command" != run ] || command=measure\n'
        f'exec {sys.executable} {project.root}/src/$command.py "$@"\n'
    )
    program.chmod(0o755)
    environment = {
        **ENVIRONMENT, "EPOCHMETER": str(program), "INPUT_COMMAND": "train.py", "INPUT_TIME": "1.5",
        "INPUT_REPEATS": "2", "INPUT_BASE": commits[0], "INPUT_HEAD": commits[1], "INPUT_SETUP": "touch prepared",
        "INPUT_KEYS": f"meter=none device=cpu machine.lock_dir={project.root}", "INPUT_TOKEN": "secret",
        "INPUT_PULL_REQUEST": "7", "INPUT_OUT": str(tmp_path / "out"), "GITHUB_REPOSITORY": "me/project",
        "GITHUB_API_URL": api,
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, ROOT / "action/compare.py"],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    ((path, comment),) = Api.requests
    assert path == "/repos/me/project/issues/7/comments"
    summary = (tmp_path / "summary").read_text()
    assert summary.startswith("## epochmeter: violated")
    assert comment.strip() == summary.strip()
    assert "::warning::no comment on the pull request" in done.stdout
    assert "secret" not in done.stdout + done.stderr + summary
    assert git("worktree", "list").count("\n") == 0
