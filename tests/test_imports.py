"""The rooms of the project, and which of them may know of which: read from the sources, no matter what runs."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
SOURCES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
WORKER = {name for name in SOURCES if name.startswith("epochmeter/worker/")}
ON_A_BOARDS_PYTHON = {*WORKER, "epochmeter/durable.py", "epochmeter/record.py", "epochmeter/build.py"}
STEWARD = SOURCES.keys() - WORKER
ENTRIES = {name for name in SOURCES if "/" not in name}
PLUGINS = {name for name in SOURCES if name.startswith("hydra_plugins/")}

FLOORS = [
    {"entries"},
    {"hydra_plugins"},
    {"experiment", "fleet", "report", "doctor"},
    {"ending", "listening"},
    {"plan", "window", "terminal", "fitted"},
    {"rehearsal", "supply", "cooling", "course", "admission", "closing"},
    {"capacity"},
    {"composing", "launch", "tracking", "power", "datasets", "sweep"},
    {"machine", "reuse"},
    {"job", "summary", "outcome", "throughput", "resuming", "search", "state", "cluster", "facts", "command"},
    {"manual", "conversation", "space", "values", "curve"},
    {"hints"},
    {
        "bottleneck",
        "environment",
        "errors",
        "schema",
        "metrics",
        "record",
        "build",
        "rounds",
        "stopping",
        "ranks",
        "processes",
        "pace",
        "progress",
        "slurm",
        "redaction",
    },
    {"durable"},
]
"""Each room may import from its own and from those on floors below it."""
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
ALONE_IN = {
    "torch": WORKER,
    "torchvision": WORKER,
    "mlflow": {name for name in SOURCES if name.startswith("epochmeter/tracking/")},
    "hydra": {*ENTRIES, *PLUGINS, *(f"epochmeter/{room}.py" for room in ("command", "composing", "job"))},
    "optuna": {"epochmeter/search.py", "epochmeter/space.py"},
    "omegaconf": {
        *ENTRIES,
        *PLUGINS,
        *(f"epochmeter/{room}.py" for room in ("admission", "command", "composing", "hints", "job", "schema")),
    },
    "submitit": {"epochmeter/fleet/sending.py"},
    "zeus": {"epochmeter/power/meters/nvml.py", "epochmeter/power/knobs/nvml_limit.py"},
    "pynvml": {
        "epochmeter/machine/gpu_processes.py",
        "epochmeter/machine/nvml.py",
        "epochmeter/machine/nvml_gauges.py",
        "epochmeter/power/meters/nvml.py",
        "epochmeter/power/knobs/nvml_limit.py",
    },
    "amdsmi": {"epochmeter/power/meters/amd.py"},
    "jtop": {"epochmeter/power/meters/jtop.py"},
    "numpy": {
        "epochmeter/worker/randomness.py",
        "epochmeter/power/series.py",
        "epochmeter/power/uncertainty.py",
        *(name for name in SOURCES if name.startswith(("epochmeter/power/phases/", "epochmeter/datasets/"))),
    },
    "sklearn": {"epochmeter/datasets/digits.py", "epochmeter/report/gaussian.py"},
    "scipy": {"epochmeter/datasets/imagenet.py", *(name for name in SOURCES if name.startswith("epochmeter/report/"))},
    "tensorboard": {"epochmeter/tracking/tensorboard.py"},
    "pandas": {"epochmeter/report/table.py"},
    "itables": {"epochmeter/report/table.py"},
    "plotly": {"epochmeter/report/interactive.py"},
    "matplotlib": {"epochmeter/report/stills.py"},
    "jinja2": {"epochmeter/report/document.py"},
}
TREES = {name: ast.parse(path.read_text(), name) for name, path in SOURCES.items()}


def imported(tree):
    """The dotted names that a module imports, wherever it does; `from a import b` may mean the module a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_once(tree):
    """What is imported when the module is, rather than inside a function or for a type checker's eyes alone."""
    return [name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for name in imported(node)]


def packages(tree):
    return {name.partition(".")[0] for name in imported(tree)}


def room(name):
    """The room that a file is, or lies in; a plugin of Hydra's is one of its own."""
    parts = name.removesuffix(".py").split("/")
    return parts[parts[0] == "epochmeter"] if len(parts) > 1 else "entries"


def rooms_imported(tree):
    return {name.split(".")[1] for name in imported(tree) if name.startswith("epochmeter.")}


def test_the_rule_reads_imports_wherever_they_stand():
    tree = ast.parse("import a.b\nif x:\n    from c import d\ndef f():\n    import e")
    assert set(imported(tree)) == {"a.b", "c.d", "e"}
    assert at_once(tree) == ["a.b"]


@pytest.mark.parametrize("name", sorted(STEWARD - {"epochmeter/__init__.py"}))
def test_imports_run_one_way(name):
    here = room(name)
    assert here in FLOOR, f"{here} has no floor yet: give it one above, and say what it may know of"
    below = {other for other in FLOOR if FLOOR[other] > FLOOR[here]}
    assert rooms_imported(TREES[name]) <= {here, *below}


def test_the_package_itself_imports_nothing():
    for name, tree in TREES.items():
        if name.endswith("__init__.py"):
            assert list(imported(tree)) == [], name


@pytest.mark.parametrize("package", ALONE_IN)
def test_a_library_is_imported_in_its_own_room_alone(package):
    assert {name for name, tree in TREES.items() if package in packages(tree)} <= ALONE_IN[package]


@pytest.mark.parametrize("package", ["torch", "mlflow", "zeus", "hydra", "sklearn"])
def test_a_library_that_has_a_room_is_found_there(package):
    assert [name for name, tree in TREES.items() if package in packages(tree)], "the rule reads nothing"


@pytest.mark.parametrize("package", sorted({*ALONE_IN} - {"torch", "torchvision", "hydra", "omegaconf", "numpy"}))
def test_what_is_slow_to_import_is_imported_late(package):
    for name in STEWARD:
        assert package not in {dotted.partition(".")[0] for dotted in at_once(TREES[name])}, name


@pytest.mark.parametrize("name", sorted(WORKER))
def test_the_worker_knows_itself_and_the_record_and_build_alone(name):
    tree = TREES[name]
    assert rooms_imported(tree) <= {"worker", "record", "build"}
    assert packages(tree) - sys.stdlib_module_names <= {"epochmeter", "torch", "torchvision", "PIL", "numpy"}


@pytest.mark.parametrize("name", ["epochmeter/durable.py", "epochmeter/record.py", "epochmeter/build.py"])
def test_what_keeps_records_needs_itself_and_the_standard_library_alone(name):
    assert rooms_imported(TREES[name]) <= {"durable"}
    assert packages(TREES[name]) - sys.stdlib_module_names <= {"epochmeter"}


def test_the_loop_imports_torch_alone():
    assert list(imported(TREES["epochmeter/worker/loop.py"])) == ["torch"]


@pytest.mark.parametrize("name", sorted(ON_A_BOARDS_PYTHON))
def test_what_runs_on_a_board_is_python_3_6(name):
    tree = ast.parse(SOURCES[name].read_text(), name, feature_version=(3, 6))
    assert not packages(tree) & {"dataclasses", "contextvars", "zoneinfo", "graphlib"}
    assert "__future__.annotations" not in imported(tree)


@pytest.mark.parametrize("name", sorted({*ENTRIES, "epochmeter/environment.py"}))
def test_an_entry_can_be_read_by_a_python_that_is_too_old_to_run_it(name):
    tree = ast.parse(SOURCES[name].read_text(), name, feature_version=(3, 6))
    assert "__future__.annotations" not in imported(tree)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_an_entry_looks_at_its_python_before_it_imports_what_another_may_not_have(name):
    body = TREES[name].body
    looked = next(number for number, node in enumerate(body) if isinstance(node, ast.If))
    before = {other for node in body[:looked] for other in imported(node)}
    assert "environment.lack()" in ast.unparse(body[looked])
    assert {other.partition(".")[0] for other in before} - sys.stdlib_module_names == {"epochmeter"}
    assert {other for other in before if other.startswith("epochmeter")} == {"epochmeter.environment"}


@pytest.mark.parametrize("newer", ["(n := 3)", "def f(a, /): pass", "match 1:\n    case 1: pass"])
def test_the_rule_for_a_board_refuses_what_is_newer(newer):
    with pytest.raises(SyntaxError):
        ast.parse(newer, feature_version=(3, 6))


MEASURING = [
    name
    for name in SOURCES
    if name.startswith(("epochmeter/power/", "epochmeter/worker/", "epochmeter/machine/utilization"))
    or name in ("epochmeter/window.py", "epochmeter/rounds.py", "epochmeter/experiment.py")
]
TELLS_WHEN = {"epochmeter/power/knobs/desk.py"}
"""What writes down for people when something was done."""


@pytest.mark.parametrize("name", sorted({*MEASURING} - TELLS_WHEN))
def test_no_clock_that_can_be_set_measures_anything(name):
    calls = {ast.unparse(node.func) for node in ast.walk(TREES[name]) if isinstance(node, ast.Call)}
    assert not calls & {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the sources and the configuration, so that a command leaves nothing in the project's own folders."""
    root = tmp_path_factory.mktemp("project")
    for folder in ("src", "conf"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.mark.parametrize("asked", ["--help", "--cfg job", "--cfg job device=nano model=torchvision"])
def test_help_and_the_configuration_are_shown_without_torch_or_mlflow(project, asked):
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "src/train.py", *asked.split()],
        cwd=project,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert "batch" in shown.stdout
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in shown.stderr.splitlines()}
    assert "hydra" in modules
    assert not modules & {"torch", "torchvision", "mlflow", "sklearn", "zeus", "numpy", "rich", "psutil"}
    assert not (project / "multirun").exists(), "showing what would run begins no run"


def test_the_steward_runs_without_torch(project):
    """Everything that the steward imports, imported where torch is not to be had."""
    modules = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in sorted(STEWARD - ENTRIES)
        if not name.endswith("__main__.py")
    ]
    program = "import importlib, sys; sys.modules['torch'] = None; [*map(importlib.import_module, sys.argv[1:])]"
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    subprocess.run([sys.executable, "-c", program, *modules], env=environment, check=True, timeout=60)
