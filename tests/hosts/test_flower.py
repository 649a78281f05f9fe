"""Clients of federated learning by the real Flower: each has its own record, and the report compares them."""

import csv
import os
import socket
import subprocess
import sys

import pytest
from hosts.harness import PACKAGES, SCRIPTS, Host
from project import ENVIRONMENT, LIMIT_S

pytestmark = pytest.mark.hosts


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.mark.skipif(bool(Host("", needs=("flwr",)).missing), reason="no module flwr")
@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_each_client_has_the_epochs_of_its_rounds_in_a_record_of_its_own(project, kind):
    paths = os.pathsep.join([str(project.root / "src"), str(PACKAGES)])
    done = subprocess.run(
        [sys.executable, SCRIPTS / "flower_clients.py", kind, free_port(), f"machine.lock_dir={project.root}/locks"],
        cwd=project.root,
        env={**ENVIRONMENT, "PYTHONPATH": paths, "XDG_STATE_HOME": str(project.root / "state")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == ["0 4"] * 3 + ["1 8"] * 3
    records = {record.job()["script"]["client"]: record for record in project.records()}
    assert {*records} == {0, 1}
    for client, record in records.items():
        assert record.is_completed()
        windows = [(window["window"], window["metrics"]["epoch/steps"]) for window in record.windows()]
        assert windows == [("epoch", 4 * (client + 1))] * 3
    project.run("report", "sweep='*'", "tracking=none", f"out={project.root}/out", check=True)
    with open(project.root / "out/report.csv") as file:
        rows = [*csv.DictReader(file)]
    assert sorted(row["script.client"] for row in rows) == ["0", "1"]
