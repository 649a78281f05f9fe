"""Fixtures for all tests: copies of the project, and jobs as its commands compose them."""

from __future__ import annotations

import atexit
import copy
import gc
import io
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer
from project import ROOT, Project, copy_sources, set_up

from epochmeter.config import job, request, resolvers
from epochmeter.config.request import RunRequest
from epochmeter.config.versions import DEFAULTS
from epochmeter.console.console import Terminal
from epochmeter.console.plain import PlainConsole
from epochmeter.shared.atomic_files import lock_folder
from epochmeter.sweep.compose import SweepLoader

COMPOSED: dict[tuple[str, ...], tuple[DictConfig, dict[str, str]]] = {}
"""Compositions and their choices by overrides, as tests repeat them."""
LONG = (
    "test_cluster", "test_measure", "test_benchmarks", "test_gpu_session", "test_replay_of_machines", "test_docs",
    "test_unattended", "test_experiments", "test_secrets", "test_resume", "test_action", "test_hosts", "test_faults",
    "test_trainer", "test_ranks", "test_throughput", "test_compose", "test_nvml", "test_sweep", "test_recordings",
    "test_boards", "test_stops", "test_train", "test_json_output", "test_programs", "test_operators", "test_jtop",
    "test_launch", "test_driver_calls", "test_uncertainty", "test_phase_energy", "test_recorder", "test_loader_workers",
    "test_standard_streams", "test_report", "test_prediction", "test_publish_command", "test_plan", "test_hints",
    "test_prior", "test_publish", "test_limit_search", "test_export_process", "test_sources", "test_export_command",
    "test_invariants", "test_forecast", "test_damaged_records", "test_loops", "test_script_loop", "test_restore",
    "test_data", "test_validate", "test_system", "test_wheel", "test_client", "test_oom",
)  # fmt: skip
"""Files that take most of the time, in this order."""
NO_TORCH = "no torch in this environment, as on a board: training is not tested"
TIMED_REPEATS = 3
"""Repeats of a failed test of time. Its limits hold whenever the machine does not pause; a defect fails each time."""
SELECTED_FILES = {
    "not system and not hosts and not nightly": re.compile(
        r"\A(?!.*^pytestmark = \[?pytest\.mark\.(system|hosts))", re.DOTALL | re.MULTILINE
    ),
    "system and not alone": re.compile(r"mark\.system"),
    "system and alone": re.compile(r"mark\.alone"),
}
"""Texts of the files with tests for the expressions of `make test` and `make test-system`."""


def pytest_configure() -> None:
    """Compute with one thread, as the test processes use all cores; import without garbage collection.

    NumPy and torch read the variable when they are imported. Processes of xdist end without freeing all objects, which
    would take two seconds. Handlers of libraries, which are registered later, still run before this one.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    gc.disable()
    if "PYTEST_XDIST_WORKER" in os.environ:
        atexit.register(os._exit, 0)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files without a selected test: importing all takes half a minute per process."""
    pattern = SELECTED_FILES.get(config.option.markexpr)
    if pattern is None or not collection_path.match("test_*.py"):
        return None
    return None if pattern.search(collection_path.read_text()) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Repeat timed tests; start with the files that take long, then those with the most tests."""
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=TIMED_REPEATS))
    counts, places = Counter(item.path for item in items), {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: (places.get(item.path.stem, len(LONG)), -counts[item.path], item.path))


def pytest_collection_finish() -> None:
    """Exclude imported libraries and collected tests from garbage collection, which would take a tenth of the time.

    Collections of the rest are less frequent than by default (each 700 new objects), as tests parse the whole source.
    They are included again at exit, after the collections of pytest, each of which would take a second. Libraries then
    free their objects; triton's bindings would print those left as leaked.
    """
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()
    atexit.register(gc.unfreeze)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Exclude also what the tests of a file imported: they import most of a library's modules when they use it."""
    result = yield
    if nextitem and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a test file that imports torch or torchvision if they are not installed."""
    report = yield
    if report.failed and "No module named 'torch" in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (report.nodeid, 1, NO_TORCH)
    return report


def _create_once(tmp_path_factory, name: str, create: Callable[[Path], None]) -> Path:
    """Return a folder that is created once per session, for all xdist workers together."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    lock = lock_folder(root.parent)
    try:
        if not (root / "complete").exists():
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            create(root)
            (root / "complete").touch()
    finally:
        os.close(lock)
    return root


@pytest.fixture(autouse=True)
def _memory_is_the_disk(monkeypatch) -> None:
    """Skip fsync, which takes up to a third of a test: written data survives the end of a process."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(autouse=True)
def _own_state_folder(monkeypatch, tmp_path_factory) -> None:
    """Keep the tests from the journal of this user's device settings."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(scope="session")
def sources(tmp_path_factory) -> Path:
    """A folder with compiled copies of `src` and `conf`, to be copied by tests that start a command."""
    return _create_once(tmp_path_factory, "sources", copy_sources)


@pytest.fixture(scope="session")
def template(sources, tmp_path_factory) -> Path:
    """A project with database and dataset, to be copied by `Project`."""

    def create(root: Path) -> None:
        for folder in ("src", "conf"):
            shutil.copytree(sources / folder, root / folder)
        set_up(root)

    return _create_once(tmp_path_factory, "template", create)


@pytest.fixture(scope="session")
def new_project(template, tmp_path_factory) -> Iterator[Callable[[], Project]]:
    """Creates projects and ends their processes; skips the tests that use it if torch is not installed."""
    pytest.importorskip("torch", reason=NO_TORCH)
    projects: list[Project] = []

    def create() -> Project:
        projects.append(Project(tmp_path_factory.mktemp("project"), template))
        return projects[-1]

    yield create
    for project in projects:
        project.clear()


@pytest.fixture
def terminal() -> Terminal:
    """A terminal of 80 columns that prints into a buffer."""
    terminal = Terminal()
    terminal.console = PlainConsole(file=io.StringIO(), width=80)
    return terminal


@pytest.fixture
def project(new_project) -> Iterator[Project]:
    created = new_project()
    yield created
    created.clear()


@cache
def schema_and_resolvers() -> tuple[ConfigNode, dict[str, Any]]:
    """Return what Hydra needs to compose `conf/`: each registration takes 10 ms."""
    resolvers.register(lambda command, resume: Path("nowhere"))
    return ConfigStore.instance().repo["schema.yaml"], {**BaseContainer._resolvers}


@cache
def initialized_hydra() -> GlobalHydra:
    """Return Hydra, initialized for `conf/`."""
    with initialize_config_dir(str(ROOT / "conf"), **DEFAULTS):
        return GlobalHydra.instance()


@cache
def template_loader() -> tuple[SweepLoader, DictConfig]:
    """Return the loader of the runs of a sweep, and the configuration without overrides."""
    return SweepLoader(GlobalHydra.instance().config_loader()), compose("train", return_hydra_config=True)


def compose_by_template(overrides: Sequence[str]) -> DictConfig:
    """Compose as for the runs of a sweep: the files of each choice of groups are read once."""
    loader, defaults = template_loader()
    try:
        return loader.load_sweep_config(defaults, [*overrides])
    except HydraException:
        return compose("train", overrides=[*overrides], return_hydra_config=True)  # for its own message


def compose_once(overrides: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """Return a job and its choices as Hydra composes them; `machine`, the folders of a test, is set afterwards."""
    others = tuple(override for override in overrides if not override.startswith("machine."))
    if others not in COMPOSED:
        config = compose_by_template(others)
        choices = {group: str(config.hydra.runtime.choices[group]) for group in job.GROUPS}
        COMPOSED[others] = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"]), choices
    config, choices = copy.deepcopy(COMPOSED[others])
    config.merge_with_dotlist([override for override in overrides if override not in others])
    return config, choices


@pytest.fixture
def composed(monkeypatch) -> Callable[..., DictConfig]:
    """composed("batch=8", ...) -> the configuration that the command line makes."""
    schema, of_conf = schema_and_resolvers()
    monkeypatch.setitem(ConfigStore.instance().repo, "schema.yaml", schema)
    BaseContainer._resolvers.update(of_conf)
    monkeypatch.setattr(request, "compose", lambda name, overrides: compose_once(overrides)[0])
    monkeypatch.setitem(Singleton._instances, GlobalHydra, initialized_hydra())
    return lambda *overrides: compose_once(overrides)[0]


@pytest.fixture
def order(composed, tmp_path) -> Callable[..., RunRequest]:
    """order("batch=8", ...) -> the request that the command line makes, on a PC without a GPU or a power limit."""
    (folder := tmp_path / "multirun" / "sweep" / "0").mkdir(parents=True)
    (pc := tmp_path / "pc").mkdir()

    def request(*overrides: str, of_sweep: bool = False) -> RunRequest:
        overrides = (f"machine.root={pc}", f"machine.lock_dir={tmp_path}/locks", *overrides)
        config, choices = compose_once(overrides)
        return RunRequest(job.composed_job(config), choices, [*overrides], folder, of_sweep)

    return request
