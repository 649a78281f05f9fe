"""A copy of the project with its own runs and database, and its commands as processes."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import psutil
import stub

from epochmeter.results.metrics import is_known
from epochmeter.shared.record import CHECKPOINT, CHECKPOINT_METADATA, Record

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600  # for a machine that does much else
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
ENVIRONMENT |= {"COLUMNS": "80", "OMP_NUM_THREADS": "1"}
QUICK = {
    "experiment": "smoke", "epochs": 1, "batch": 128, "cache": "keep", "profiler": "none", "tracking": "none",
    "roofline.peaks": "none",
}  # fmt: skip
LONG = {"epochs": 1000, "batch": 32, "evaluate": "false"}
"""Added to QUICK for a run that a test stops in the middle of an epoch."""
SET_UP = """
from hydra import compose, initialize_config_dir
from epochmeter.config import job, resolvers
from epochmeter.config.installation import ROOT
from epochmeter.config.schema import Dataset, Storage
from epochmeter.config.versions import DEFAULTS
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.tracking.client import open_store

open_store("template")
initialize_config_dir(str(ROOT / "conf"), **DEFAULTS)
resolvers.register(None)
keys = job.to_plain(compose("train"))
prepare_dataset(Dataset.from_dict(keys["dataset"]), Storage.from_dict(keys["storage"]), ROOT, print)
"""
"""Creates database and dataset. The experiment `template` is used by no test: a copied database keeps the artifact
folders of its experiments."""


def copy_sources(root: Path) -> None:
    """Copy the sources and the configuration to a folder, compiled.

    Commands would compile them at each start, if PYTHONDONTWRITEBYTECODE is set, and take twice as long.
    """
    for folder in ("src", "conf"):
        shutil.copytree(ROOT / folder, root / folder)
    compileall.compile_dir(root / "src", quiet=1)


def set_up(root: Path) -> None:
    """Create database and dataset in a copy of the project."""
    subprocess.run([sys.executable, "-c", SET_UP], env={**ENVIRONMENT, "PYTHONPATH": str(root / "src")}, check=True)


def wait_until(condition: Callable[[], Any], limit_s: float = LIMIT_S, pause_s: float = 0.02) -> Any:
    """Poll a condition until it is true and return its value; AssertionError after `limit_s` seconds."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {limit_s} s"
        time.sleep(pause_s)
    return value


class Project:
    """A copy of a project that `set_up` has created, with its own runs, database and locks, and the same dataset.

    The files of `src` are hard links to those of the template, as copying them takes longer than most commands. Tests
    may add files, but may not write to those that are there.
    """

    def __init__(self, root: Path, template: Path) -> None:
        self.root = root
        shutil.copytree(template / "src", root / "src", copy_function=os.link)
        shutil.copytree(template / "conf", root / "conf")
        shutil.copy(template / "mlflow.db", root)
        (root / "data").symlink_to(template / "data")
        self.started: list[subprocess.Popen] = []

    def run(self, entry: str, *arguments: str, check: bool = False, **options: Any) -> subprocess.CompletedProcess:
        """Run a command to its end; with `check`, its exit code must be 0."""
        process = self.start(entry, *arguments, **options)
        out, err = process.communicate(timeout=LIMIT_S)
        assert not check or process.returncode == 0, out + err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, entry: str, *arguments: str, before: Sequence[str] = (), **environment: str) -> subprocess.Popen:
        """Start a script of `src` in a process group of its own, as a shell does; `before` precedes the interpreter."""
        command = [*before, sys.executable, str(self.root / "src" / f"{entry}.py"), *arguments]
        piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**ENVIRONMENT, "XDG_STATE_HOME": str(self.root / "state"), **environment}
        own = {"cwd": self.root, "env": environment, "preexec_fn": _become_foreground_job}
        self.started.append(subprocess.Popen(command, **piped, **own))
        return self.started[-1]

    def quick(self, *flags: str, **overrides: object) -> list[str]:
        """Return the arguments of `src/train.py` for a run of seconds."""
        keys = {**QUICK, "machine.lock_dir": self.root / "locks", **overrides}
        return [*flags, *(f"{key}={value}" for key, value in keys.items())]

    def stubbed(self, *flags: str, **overrides: object) -> list[str]:
        """Return the arguments for a run whose training process only sleeps, which takes 1 CPU second instead of 6."""
        python = stub.program(self.root)
        return self.quick(*flags, **{**stub.JOB, "device": "cpu", "device.python": python, **overrides})

    def long_stubbed(self, *flags: str, **overrides: object) -> list[str]:
        """Return the same with epochs of half a second, until it is stopped."""
        return self.stubbed(*flags, **{"epochs": 1000, "batch": 500, **overrides})

    def long(self, *flags: str, **overrides: object) -> list[str]:
        """Return the arguments of `src/train.py` for a run that continues until it is stopped."""
        return self.quick(*flags, **{**LONG, **overrides})

    def sweeps(self) -> list[Path]:
        return sorted(path for path in (self.root / "multirun").glob("[!.]*") if path.is_dir())

    def records(self) -> list[Record]:
        return [Record(path.parent) for path in sorted((self.root / "multirun").glob("*/*/job.json"))]

    def record(self) -> Record:
        """Return the record of the only run; a completed one has only metrics of docs/metrics.md."""
        (record,) = self.records()
        if record.is_completed():
            names = {name for line in [*record.windows(), record.summary()] for name in line["metrics"]}
            assert [name for name in names if not is_known(name)] == []
        return record

    def own_data(self) -> Path:
        """Replace the shared dataset with a copy, which a test may damage, and return its folder."""
        shared = (self.root / "data").resolve()
        (self.root / "data").unlink()
        return Path(shutil.copytree(shared, self.root / "data")) / "digits"

    def rows(self, query: str) -> list[tuple]:
        """Query MLflow's database."""
        with closing(sqlite3.connect(self.root / "mlflow.db")) as database:
            return database.execute(query).fetchall()

    def shown(self, column: str) -> list[str]:
        """Return a column of MLflow's table of runs, oldest first."""
        return [value for (value,) in self.rows(f"select {column} from runs order by start_time")]

    def until_in_training(self) -> Record:
        """Wait for the first closed window and return the record of its run."""
        return self.until(lambda: next((record for record in self.records() if record.windows()), None))

    until = staticmethod(wait_until)

    @staticmethod
    def at_work_in(folder: Path) -> list[psutil.Process]:
        """Return all processes with a folder in their command, such as ranks and DataLoader workers of a run."""
        processes = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):
                is_own = process.pid != os.getpid() and any(str(folder) in word for word in process.cmdline())
                processes += [process] if is_own and process.status() != psutil.STATUS_ZOMBIE else []
        return processes

    def clear(self) -> None:
        """End all processes that were started here."""
        for command in self.started:
            command.kill()
            command.communicate()
        for process in (process for record in self.records() for process in self.at_work_in(record.folder)):
            process.kill()
        self.started.clear()


def _become_foreground_job() -> None:
    """Create a process group and accept Ctrl-C, which a script's background processes ignore."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def put(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below a folder, by their paths; return the folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def make_unreadable(folder: Path) -> dict[str, str]:
    """Make entries with the names of images that nobody can read; return by name why."""
    (folder / "dangling.png").symlink_to("nowhere/1.png")
    (folder / "circle.png").symlink_to("circle.png")
    os.mkfifo(folder / "pipe.png")
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(os.path.relpath(folder / "socket.png"))  # the length of its path is limited
    special = "it is a pipe, a socket or a device, not a file"
    return {
        "dangling.png": "it is a link to nowhere/1.png: No such file or directory",
        "circle.png": "it is a link to circle.png: Too many levels of symbolic links",
        "pipe.png": special,
        "socket.png": special,
    }


def write_checkpoint(record: Record, record_id: str, epochs: int) -> None:
    """Write the checkpoint of a run after this number of epochs, as torch would."""
    with zipfile.ZipFile(record.folder / CHECKPOINT, "w") as archive:
        archive.writestr("archive/data/0", b"weights" * 99)
        archive.writestr(CHECKPOINT_METADATA, json.dumps({"record_id": record_id, "epochs": epochs}))


def free_ports(count: int) -> list[int]:
    """Return different TCP ports that nothing listens on."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in sockets]
