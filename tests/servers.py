"""A real MLflow server with a PostgreSQL database, both on this host for one test."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from project import free_ports, wait_until

REQUIREMENTS = "needs PostgreSQL (Debian: apt-get install postgresql), psycopg, and root or a user of its own"
LIMIT_S = 600


def postgresql() -> Path | None:
    """Return the folder of PostgreSQL's programs, of the newest version."""
    on_path = shutil.which("initdb")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return Path(on_path).resolve().parent if on_path else found[-1].parent if found else None


@contextmanager
def database() -> Iterator[str]:
    """Start an empty database; yield its address for SQLAlchemy."""
    programs = postgresql()
    assert programs, REQUIREMENTS
    folder = Path(tempfile.mkdtemp(prefix="epochmeter-postgresql-"))
    # PostgreSQL refuses to run as root.
    owner = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    own = {"user": owner.pw_uid, "group": owner.pw_gid} if owner else {}
    if owner:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    quiet = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **own}
    (port,) = free_ports(1)
    control = [programs / "pg_ctl", "--pgdata", folder / "data", "--wait", "--timeout", str(LIMIT_S)]
    try:
        made = [programs / "initdb", "-D", folder / "data", "-U", "mlflow", "-A", "trust", "--no-sync"]
        subprocess.run(made, check=True, **quiet)
        options = f"-h 127.0.0.1 -p {port} -k {folder}"
        subprocess.run([*control, "start", "-o", options], check=True, **quiet)
        try:
            yield f"postgresql+psycopg://mlflow@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([*control, "stop"], check=True, **quiet)
    finally:
        shutil.rmtree(folder)


@contextmanager
def mlflow(folder: Path, database: str, artifacts: str = "") -> Iterator[str]:
    """Start an MLflow server with artifacts in a folder, or at an address, and all else in a database; its address."""
    (port,) = free_ports(1)
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", database, "--artifacts-destination", artifacts or str(folder / "artifacts")),
    ]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with open(folder / "server.log", "wb") as log:
        own = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
        process = subprocess.Popen(command, cwd=folder, env=environment, **own)
    try:
        health = f"http://127.0.0.1:{port}/health"
        wait_until(lambda: process.poll() is not None or answers(health), LIMIT_S, pause_s=0.2)
        assert process.poll() is None, (folder / "server.log").read_text()[-2000:]
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return answer.status == 200
    return False
