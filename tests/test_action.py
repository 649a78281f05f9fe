"""The GitHub action: its inputs, and its steps on a real repository with two commits."""

import json
import re
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


class Forbidden(BaseHTTPRequestHandler):
    """GitHub's answer to a token that may not write comments."""

    requests: list[tuple[str, str]] = []  # noqa: RUF012

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, body["body"]))
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.system
def test_slower_commit_violates_the_gate_and_a_forbidden_comment_leaves_the_summary(new_project, tmp_path):
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
    Forbidden.requests.clear()
    with HTTPServer(("127.0.0.1", 0), Forbidden) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {
            **ENVIRONMENT, "EPOCHMETER": str(program), "INPUT_COMMAND": "train.py", "INPUT_TIME": "1.5",
            "INPUT_REPEATS": "2", "INPUT_BASE": commits[0], "INPUT_HEAD": commits[1], "INPUT_SETUP": "touch prepared",
            "INPUT_KEYS": f"meter=none device=cpu machine.lock_dir={project.root}", "INPUT_TOKEN": "secret",
            "INPUT_PULL_REQUEST": "7", "INPUT_OUT": str(tmp_path / "out"), "GITHUB_REPOSITORY": "me/project",
            "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, ROOT / "action/compare.py"],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
        )
        server.shutdown()
    assert done.returncode == 2, done.stdout + done.stderr
    ((path, comment),) = Forbidden.requests
    assert path == "/repos/me/project/issues/7/comments"
    summary = (tmp_path / "summary").read_text()
    assert summary.startswith("## epochmeter: violated")
    assert comment.strip() == summary.strip()
    assert "::warning::no comment on the pull request" in done.stdout
    assert "secret" not in done.stdout + done.stderr + summary
    assert git("worktree", "list").count("\n") == 0
