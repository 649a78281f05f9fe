"""The project as a person has it, in a folder of its own, and jobs as its commands compose them."""

from __future__ import annotations

import compileall
import copy
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from epochmeter.config import job
from epochmeter.shared.record import Record

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 120
OURS = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
OURS.update(COLUMNS="80", OMP_NUM_THREADS="1")
QUICK = {"experiment": "smoke", "epochs": 1, "batch": 128, "cache": "keep", "profiler": "none", "tracking": "none"}
LONG = {"epochs": 1000, "batch": 32, "evaluate": "false"}
"""Beside QUICK, a run that no test waits for: it is in the middle of an epoch whenever one looks."""
COMPOSED: dict[tuple[str, ...], DictConfig] = {}
"""What was typed and what it makes: a tenth of a second each, and tests ask for the same again and again."""
NO_TORCH = "no torch in this environment, as on a board: what trains is not tested"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skips a file of tests that imports torch or torchvision where there is none, and says so."""
    report = yield
    if report.failed and "No module named 'torch" in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (report.nodeid, 1, NO_TORCH)
    return report


class Project:
    """A copy of the project whose runs, database and locks lie in `root`, and its commands as a person types them."""

    def __init__(self, root: Path, template: Path) -> None:
        self.root = root
        for folder in ("src", "conf"):
            shutil.copytree(template / folder, root / folder)
        shutil.copy(template / "mlflow.db", root)
        (root / "data").symlink_to(template / "data")
        self.started: list[subprocess.Popen] = []

    def run(self, entry: str, *arguments: str, **how: Any) -> subprocess.CompletedProcess:
        """A command to its end."""
        process = self.start(entry, *arguments, **how)
        out, err = process.communicate(timeout=LIMIT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, entry: str, *arguments: str, before: Sequence[str] = (), **environment: str) -> subprocess.Popen:
        """A command, begun in a terminal of its own as far as signals go; `before` is what stands before it."""
        process = subprocess.Popen(
            [*before, sys.executable, str(self.root / "src" / f"{entry}.py"), *arguments],
            cwd=self.root,
            env={**OURS, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_as_a_shell_starts_it,
        )
        self.started.append(process)
        return process

    def quick(self, *flags: str, **overrides: object) -> list[str]:
        """What follows `src/train.py` for a run of seconds: QUICK, and what is asked beside it."""
        asked = {**QUICK, "machine.lock_dir": self.root / "locks", **overrides}
        return [*flags, *(f"{key}={value}" for key, value in asked.items())]

    def long(self, *flags: str, **overrides: object) -> list[str]:
        """What follows `src/train.py` for a run that goes on until it is stopped."""
        return self.quick(*flags, **{**LONG, **overrides})

    def sweeps(self) -> list[Path]:
        return sorted(path for path in (self.root / "multirun").glob("[!.]*") if path.is_dir())

    def records(self) -> list[Record]:
        return [Record(path.parent) for path in sorted((self.root / "multirun").glob("*/*/job.json"))]

    def record(self) -> Record:
        (record,) = self.records()
        return record

    def own_data(self) -> Path:
        """The dataset's folder, copied, so that a test may harm it."""
        shared = (self.root / "data").resolve()
        (self.root / "data").unlink()
        return Path(shutil.copytree(shared, self.root / "data")) / "digits"

    def rows(self, query: str) -> list[tuple]:
        """What MLflow's database holds."""
        with closing(sqlite3.connect(self.root / "mlflow.db")) as database:
            return database.execute(query).fetchall()

    def shown(self, what: str) -> list[str]:
        """A column of MLflow's runs, oldest first."""
        return [value for (value,) in self.rows(f"select {what} from runs order by start_time")]

    def until_in_training(self) -> Record:
        """The record of the run under way, once it has an epoch and the next one is open."""
        return self.until(lambda: next((record for record in self.records() if record.windows()), None))

    @staticmethod
    def until(told: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
        """What `told` says as soon as that is true."""
        end = time.monotonic() + limit_s
        while not (value := told()):
            assert time.monotonic() < end, f"not within {limit_s} s"
            time.sleep(0.02)
        return value

    @staticmethod
    def at_work_in(folder: Path) -> list[psutil.Process]:
        """Every process that works on the run of that folder: the worker and its loader processes."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(folder) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def clear(self) -> None:
        """Ends what was started here, and what that has left."""
        for command in self.started:
            command.kill()
            command.communicate()
        for process in (process for record in self.records() for process in self.at_work_in(record.folder)):
            process.kill()
        self.started.clear()


def _as_a_shell_starts_it() -> None:
    """A group of its own, and Ctrl-C heard, which a process in the background of a script would not."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def set_up(root: Path) -> None:
    """Has a copy of the project in a folder, with its database and its dataset."""
    for folder in ("src", "conf"):
        shutil.copytree(ROOT / folder, root / folder)
    # Once, and not by each command: PYTHONDONTWRITEBYTECODE may be set, and a start takes twice as long then.
    compileall.compile_dir(root / "src", quiet=1)
    # A copied database keeps the places of its experiments' artifacts: the project's own is left to each copy.
    made = (
        "from hydra import compose, initialize_config_dir; from epochmeter.config import job;"
        "from epochmeter.config.schema import Dataset, Storage;"
        "from epochmeter.datasets.ready import prepare_dataset; from epochmeter.tracking.client import open_store;"
        "open_store('template'); initialize_config_dir(str(job.ROOT / 'conf'), version_base='1.3');"
        "job.register(None); keys = job.to_plain(compose('train'));"
        "prepare_dataset(Dataset.from_dict(keys['dataset']), Storage.from_dict(keys['storage']), job.ROOT, print)"
    )
    subprocess.run([sys.executable, "-c", made], env={**OURS, "PYTHONPATH": str(root / "src")}, check=True)


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """A project that is set up: database and dataset are there."""
    root = tmp_path_factory.mktemp("template")
    set_up(root)
    return root


@pytest.fixture(scope="session")
def new_project(template, tmp_path_factory) -> Iterator[Callable[[], Project]]:
    """Makes projects, and ends whatever they have started; skips what asks for it where nothing can train."""
    pytest.importorskip("torch", reason=NO_TORCH)
    made: list[Project] = []

    def make() -> Project:
        made.append(Project(tmp_path_factory.mktemp("project"), template))
        return made[-1]

    yield make
    for project in made:
        project.clear()


@pytest.fixture
def project(new_project) -> Iterator[Project]:
    made = new_project()
    yield made
    made.clear()


@pytest.fixture
def composed() -> Iterator[Callable[..., DictConfig]]:
    """composed("batch=8", ...) -> the configuration that the command line makes."""
    job.register(lambda command, resume: Path("nowhere"))

    def made(*typed: str) -> DictConfig:
        if typed not in COMPOSED:
            COMPOSED[typed] = compose("train", overrides=list(typed))
        return copy.deepcopy(COMPOSED[typed])

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield made


@pytest.fixture
def order(composed, tmp_path) -> Callable[..., job.RunRequest]:
    """order("batch=8", ...) -> the order that the command line makes, on a PC that has no GPU and no power limit."""

    def made(*typed: str, of_sweep: bool = False) -> job.RunRequest:
        (pc := tmp_path / "pc").mkdir(exist_ok=True)
        overrides = [f"machine.root={pc}", *typed]
        (folder := tmp_path / "multirun" / "sweep" / "0").mkdir(parents=True, exist_ok=True)
        config = compose("train", overrides=overrides, return_hydra_config=True)
        choices = {group: str(config.hydra.runtime.choices[group]) for group in job.GROUPS}
        composed = job.composed_job(OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]))
        return job.RunRequest(composed, choices, overrides, folder, of_sweep)

    return made
