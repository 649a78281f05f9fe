"""Measure a script in two commits, interleaved on this machine, and check that the second one is not slower.

The steps of action.yml. Inputs are environment variables; only Python's standard library and the program `epochmeter`
are needed. Exit code: that of the gate, 0, 2 or 3; 1 if a run or the report failed.
"""

import http.client
import json
import os
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

EPOCHMETER = shlex.split(os.environ.get("EPOCHMETER", "epochmeter"))
PASSED, VIOLATED, UNDECIDED = 0, 2, 3
TITLES = {PASSED: "passed", VIOLATED: "violated", UNDECIDED: "undecided: more repeats are needed"}
COMMENT_LIMIT_S = 30
NOT_PERMITTED = (
    "the job's summary has the table; for comments, the job needs `permissions: pull-requests: write`, "
    "and a pull request from a fork has a read-only token"
)
MAX_COMMENT = 60_000  # GitHub accepts 65,536 characters


def main():
    repeats = int(os.environ.get("INPUT_REPEATS") or 5)
    command = shlex.split(os.environ["INPUT_COMMAND"])
    with tempfile.TemporaryDirectory() as temporary:
        folders = {side: check_out(Path(temporary), side) for side in ("base", "head")}
        try:
            sweeps = {"base": [], "head": []}
            for number in range(repeats):
                order = ("base", "head") if number % 2 == 0 else ("head", "base")  # so that a drift affects both
                for side in order:
                    sweeps[side].append(measure(folders[side], command, number))
            code, text = gate(sweeps, Path(os.environ.get("INPUT_OUT") or "epochmeter-gate").absolute())
        finally:
            for folder in folders.values():
                subprocess.run(["git", "worktree", "remove", "--force", str(folder)], check=False)
    publish(f"## epochmeter: {TITLES[code]}\n\n{text}")
    is_allowed = code == UNDECIDED and os.environ.get("INPUT_UNDECIDED") == "pass"
    return PASSED if is_allowed else code


def check_out(parent, side):
    """Return a work tree of a commit, prepared by the setup command."""
    commit, folder = os.environ[f"INPUT_{side.upper()}"], parent / side
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(folder), commit], check=True)
    if setup := os.environ.get("INPUT_SETUP"):
        subprocess.run(["bash", "-euo", "pipefail", "-c", setup], cwd=folder, check=True)
    return folder


def measure(folder, command, number):
    """Run the script once; return the folder of its sweep."""
    keys = ["format=json", "tracking=none", "sweep.again=true", f"repeat={number}"]
    options = shlex.split(os.environ.get("INPUT_KEYS", ""))
    document = run(["run", *keys, *options, *command], folder)
    ran = (document["result"] or {"runs": []})["runs"]
    if document["exit_code"] or not ran or ran[0]["state"] != "completed":
        failed = [each["failure"] for each in ran if each["failure"]] or document["problems"]
        sys.exit(f"error: the script failed in {folder.name}: {json.dumps(failed)}")
    return Path(ran[0]["folder"]).parent


def gate(sweeps, out):
    """Compare the runs; return the exit code of the gate, and its summary in Markdown."""
    bounds = [
        f"gate.{name}={value}" for name in ("time", "energy") if (value := os.environ.get(f"INPUT_{name.upper()}"))
    ]
    named = {
        key: f"{key}=[{','.join(map(str, sweeps[side]))}]" for key, side in (("sweep", "head"), ("against", "base"))
    }
    document = run(["report", "format=json", "tracking=none", *named.values(), f"out={out}", *bounds], Path.cwd())
    if document["exit_code"] not in TITLES or not document["result"]:
        sys.exit(f"error: no comparison: {json.dumps(document['problems'])}")
    return document["exit_code"], (out / "gate.md").read_text()


def run(arguments, folder):
    """Run a command of epochmeter in a folder; return its document, the last line of its output."""
    done = subprocess.run([*EPOCHMETER, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        sys.exit(f"error: `epochmeter {arguments[0]}` ended with exit code {done.returncode}")


def publish(text):
    """Write a text to the job's summary, and as a comment on the pull request; a failure is a warning."""
    print(text)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with open(path, "a") as file:
                file.write(text + "\n")
        except OSError as error:
            warn(f"no job summary: {error}")
    number, token = os.environ.get("INPUT_PULL_REQUEST"), os.environ.get("INPUT_TOKEN")
    if number and token:
        comment(text, number, token)
    elif number:
        warn("no comment on the pull request, as there is no token: the job's summary has the table")


def comment(text, number, token):
    """Add a comment to a pull request, which the token may not permit."""
    address = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues/{number}/comments"
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    body = json.dumps({"body": text[:MAX_COMMENT]}).encode()
    try:
        urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=COMMENT_LIMIT_S).close()
    except (OSError, http.client.HTTPException) as error:
        reason = NOT_PERMITTED if getattr(error, "code", None) in (401, 403, 404) else "the job's summary has the table"
        warn(f"no comment on the pull request ({error}): {reason}")


def warn(text):
    """Print a warning, which GitHub shows at the job; a line break would end it."""
    print(f"::warning::{' '.join(text.split())}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
