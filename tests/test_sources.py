"""Rules of the sources that no linter checks: what each package may import, and what a board's Python can read."""

import ast
import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from epochmeter.shared.problem import CODES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
NAMES = [path.relative_to(SOURCE).as_posix() for path in sorted(SOURCE.rglob("*.py"))]
ENTRIES = {name for name in NAMES if "/" not in name} | {"epochmeter/__main__.py"}
COMMANDS = "epochmeter/commands/"
TRAINING = ("epochmeter/worker/", "epochmeter/agent/")  # packages that run in the training process
BOARD = {name for name in NAMES if name.startswith((*TRAINING, "epochmeter/shared/"))}
INTEGRATIONS = {name for name in NAMES if name.startswith("epochmeter/integrations/")}
CONTRACTS = "epochmeter/testing/"  # tests for the parts of users
CONTROLLER = {name for name in NAMES if not name.startswith((*TRAINING, CONTRACTS))}
REPORT = [name for name in NAMES if name.startswith("epochmeter/report/")]
LAYERS = [
    *({"shared"}, {"config"}, {"machine"}),
    {"power", "datasets", "results"},
    {"trace", "segmentation"},
    *({"tracking"}, {"console"}, {"sweep"}),
    {"run", "report"},
    {"validation"},
    *({"cluster"}, {"watch"}, {"hydra_plugins"}, {"commands"}, {"__main__"}, {"entries"}),
    *({"agent"}, {"integrations"}, {"testing"}),
    {"__init__"},  # the public functions, imported when they are used
]
"""A package may import itself and the layers above it in this list."""
REPORT_LAYERS = ["statistics", "trimmed_ratios", "formatting", "runs", "pages", "render", "analyses", "charts"]
"""The same within the report; its other modules may import all of these."""
EXCEPTIONS = {"worker": {"shared"}, "agent": {"shared", "worker"}}
"""The training process runs on a board's own Python, and a script's agent on the script's."""


def inside(*names):
    return tuple(f"epochmeter/{name}" for name in names)


ONLY_IN = {
    "torch": (*TRAINING, CONTRACTS),
    "torchvision": "epochmeter/worker/",
    "sacrebleu": "epochmeter/worker/bleu.py",
    "mlflow": "epochmeter/tracking/",
    "hydra": (COMMANDS, "hydra_plugins/", *inside("config/", "sweep/")),
    "omegaconf": (COMMANDS, "hydra_plugins/", *inside("config/", "sweep/compose.py", "run/preflight.py")),
    "optuna": "epochmeter/sweep/",
    "submitit": "epochmeter/cluster/submit.py",
    "zeus": "epochmeter/power/knobs/watt_limit.py",
    "pynvml": "epochmeter/machine/nvml.py",
    "amdsmi": "epochmeter/machine/amd.py",
    "jtop": "epochmeter/machine/jtop.py",
    "numpy": inside(
        *("worker/rng.py", "power/", "datasets/", "report/", "trace/", "segmentation/", "results/forecast.py"),
        *("results/rank_times.py", "results/straggler", "results/summary.py", "validation/"),
    ),
    "sklearn": "epochmeter/report/analyses/gaussian.py",
    "threadpoolctl": "epochmeter/report/analyses/prediction.py",
    "scipy": inside(
        "datasets/imagenet.py", "power/limit_search.py", "report/", "results/forecast.py", "results/intervals.py"
    ),
    "tensorboard": "epochmeter/tracking/tensorboard.py",
    **dict.fromkeys(("wandb", "trackio", "comet_ml", "huggingface_hub"), "epochmeter/tracking/exporters/"),
    "pandas": "epochmeter/report/runs/frames.py",
    "vl_convert": "epochmeter/report/charts/",
    "pydantic_core": "epochmeter/results/documents.py",
    "jinja2": inside("report/render.py", "watch/server.py"),
}
"""Where a library may be imported."""
IMPORTED_AT_ONCE = {"hydra", "omegaconf", "numpy"}
SEARCH = (
    "epochmeter.sweep.search", "epochmeter.sweep.search_space",
    "epochmeter.power.limit_search", "epochmeter.run.limit_probing",
)  # fmt: skip
"""Modules that import Optuna or SciPy, and are themselves imported only by a search."""
MEASURING = (*TRAINING, "epochmeter/power/", "epochmeter/machine/gauge_sampler", "epochmeter/run/window_record.py")
PHRASE = re.compile(r"[A-Za-z]+[,:;]? [a-z]+[,:;]? [a-z]+|[A-Z][a-z]+ [a-z]+")
NO_PHRASE = re.compile(r"^system-ui|python src/")
NOTE_THE_TIME = ("epochmeter/power/knobs/restore_journal.py", "epochmeter/agent/unattended.py")
"""Files that write down for people when a setting was changed, and when a script began."""


@cache
def tree(name):
    """Return a parsed source file; parsing is slow, and tests share it."""
    return ast.parse((SOURCE / name).read_text())


def statements(block):
    """Yield all statements within a block; `ast.walk` yields all expressions too, and takes ten times as long."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(block, part, ()):
            yield statement
            yield from statements(statement)


def imported(module):
    """Return the dotted names that a module imports; `from a import b` may mean a module."""
    names = set()
    for node in statements(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def imports(name):
    """Return what a source file imports, wherever an import is."""
    return imported(tree(name))


def package_of(name):
    """Return the package or top-level module a file belongs to, or `entries`."""
    folder, *rest = name.removesuffix(".py").split("/")
    return rest[0] if folder == "epochmeter" else folder if rest else "entries"


def packages(names):
    return {name.partition(".")[0] for name in names}


def at_import(module):
    """Return what is imported when the module is, rather than in a function or for type checkers only."""
    return imported(ast.Module([node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)], []))


def test_packages_import_only_the_layers_below_them():
    edges = {
        (package_of(name), module.split(".")[1])
        for name in NAMES
        for module in imports(name)
        if module.startswith("epochmeter.")
    }
    below = {}
    for number, layer in enumerate(LAYERS):
        below.update(dict.fromkeys(layer, set().union(*LAYERS[:number])))
    below.update(EXCEPTIONS)
    assert {(importer, target) for importer, target in edges if target not in below[importer] | {importer}} == set()


def test_the_report_imports_only_the_layers_below():
    layer_of = {name: number for number, name in enumerate(REPORT_LAYERS)}
    for name in REPORT:
        layer = layer_of.get(name.removesuffix(".py").split("/")[2], len(REPORT_LAYERS))
        targets = {module.split(".")[2] for module in imports(name) if module.startswith("epochmeter.report.")}
        wrong = {target for target in targets if layer_of.get(target, len(REPORT_LAYERS)) > layer}
        assert not wrong, name


def test_no_module_imports_itself_through_others():
    """Not for type checkers either: what two modules share is in a third."""
    modules = {name.removesuffix(".py").replace("/", "."): name for name in NAMES if not name.endswith("__init__.py")}
    targets = {
        module: {target for text in imports(name) for target in (text, text.rpartition(".")[0]) if target in modules}
        for module, name in modules.items()
    }
    while leaves := {module for module, needed in targets.items() if not needed & targets.keys()}:
        targets = {module: needed for module, needed in targets.items() if module not in leaves}
    assert targets == {}


def test_the_package_has_no_flat_modules():
    assert list((SOURCE / "epochmeter").glob("[!_]*.py")) == []


def test_a_library_is_imported_only_where_it_belongs():
    uses = {(library, name) for name in NAMES for library in packages(imports(name)) & ONLY_IN.keys()}
    assert {library for library, _ in uses} == ONLY_IN.keys(), "each library of the table is imported somewhere"
    assert {(library, name) for library, name in uses if not name.startswith(ONLY_IN[library])} == set()


def test_the_controller_imports_slow_libraries_only_when_it_needs_them():
    slow = ONLY_IN.keys() - IMPORTED_AT_ONCE
    others = CONTROLLER - {f"{module.replace('.', '/')}.py" for module in SEARCH}
    for name in others:
        modules = at_import(tree(name))
        assert packages(modules) & slow == set(), name
        assert not [module for module in modules if module.startswith(SEARCH)], name


def test_packages_themselves_import_nothing():
    """Those with public functions import these when they are used."""
    public = {"epochmeter/__init__.py", f"{CONTRACTS}__init__.py"}
    assert {name for name in NAMES if name.endswith("__init__.py") and imports(name)} == public
    assert [name for name in public if at_import(tree(name))] == []


def test_the_training_process_needs_only_torch_and_shared_code_the_standard_library():
    libraries = {"epochmeter", "torch", "torchvision", "PIL", "numpy", "sacrebleu"}
    for name in BOARD:
        allowed = libraries if name.startswith(TRAINING) else {"epochmeter"}
        assert packages(imports(name)) - sys.stdlib_module_names <= allowed, name
    assert packages(at_import(tree("epochmeter/worker/loop.py"))) == {"torch", "typing"}


def test_python_3_6_can_read_what_runs_on_a_board_and_every_entry():
    for name in BOARD | ENTRIES | {f"epochmeter/config/{name}.py" for name in ("interpreter", "standard_streams")}:
        ast.parse((SOURCE / name).read_text(), name, feature_version=(3, 6))
        assert "__future__.annotations" not in imports(name), name
        assert not packages(imports(name)) & {"dataclasses", "contextvars", "zoneinfo", "graphlib"}, name


def test_python_3_6_can_evaluate_the_annotations_of_what_runs_on_a_board():
    generic_later = {"list", "dict", "tuple", "set", "frozenset", "type", "array"}
    for name in BOARD | INTEGRATIONS | {"epochmeter/config/interpreter.py"}:
        hints = [getattr(node, key, None) for node in ast.walk(tree(name)) for key in ("annotation", "returns")]
        parts = [part for hint in hints if hint for part in ast.walk(hint)]
        assert not [part for part in parts if isinstance(part, ast.BinOp)], name
        generics = {ast.unparse(part.value) for part in parts if isinstance(part, ast.Subscript)}
        assert not generics & generic_later, name


def test_names_of_the_files_of_a_record_stand_in_one_module():
    """Other modules use its constants, also as parts of paths and patterns."""
    names, where = {"job.json", "host.json", "epochs.jsonl", "summary.json", "completed.json", "reused.json"}, set()
    for name in NAMES:
        texts = [node.value for node in ast.walk(tree(name)) if isinstance(node, ast.Constant)]
        where |= {name for text in texts if isinstance(text, str) and names & {*text.split("/")}}
    assert where == {"epochmeter/shared/record.py"}


def test_no_clock_that_can_be_set_measures_anything():
    settable = {"time.time", "time.time_ns", "datetime.now", "datetime.datetime.now"}
    for name in NAMES:
        if name.startswith(MEASURING) and name not in NOTE_THE_TIME:
            calls = {ast.unparse(node.func) for node in ast.walk(tree(name)) if isinstance(node, ast.Call)}
            assert not calls & settable, name


def test_the_printed_form_of_an_error_is_defined_once():
    """A hint is a field of a `Problem`: no other code writes it into a text, or reads it from one."""
    forms = set()
    for name in NAMES:
        docs = {id(node.value) for node in ast.walk(tree(name)) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree(name)) if isinstance(node, ast.Constant) and id(node) not in docs]
        forms |= {name for node in texts if isinstance(node.value, str) and "hint:" in node.value}
    assert forms == {"epochmeter/shared/problem.py"}


def test_codes_of_errors_are_those_of_the_list():
    """`rank` is replaced by the controller, and the lack of energy is no failure."""
    codes = set()
    for name in NAMES:
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.keyword) and node.arg == "code":
                codes.add(node.value)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Problem", "worker_error"):
                place = 2 if node.func.id == "Problem" else 0
                codes |= {*node.args[place : place + 1]}
    literal = {code.value for code in codes if isinstance(code, ast.Constant) and isinstance(code.value, str)}
    assert {"oom", "killed", "storage", "hung", "job"} <= literal
    assert literal <= {*CODES}


def test_reports_have_their_words_in_templates():
    """Python has no phrase of three words, except in errors, docstrings, commands and the names of fonts."""
    for name in REPORT:
        nodes = [*ast.walk(tree(name))]
        allowed = [node for node in nodes if isinstance(node, ast.Raise)]
        allowed += [node for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
        outside = {id(part) for node in allowed for part in ast.walk(node)}
        texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in outside]
        words = [text for text in texts if isinstance(text, str) and not NO_PHRASE.search(text)]
        assert list(filter(PHRASE.search, words)) == [], name


@pytest.mark.parametrize(
    ("command", "line"),
    [("train --help", r"batch[=:] ?16"), ("train --cfg job device=nano model=torchvision", "title: Jetson Nano"),
     ("report --help", r"report.max_slowdown=1\.1")],
)  # fmt: skip
def test_help_and_the_configuration_are_shown_without_slow_libraries(sources, command, line):
    started = f"{sys.executable} -X importtime src/{command.replace(' ', '.py ', 1)}".split()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    shown = subprocess.run(started, cwd=sources, env=environment, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert re.search(f"^ *{line}", shown.stdout, re.MULTILINE)
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in shown.stderr.splitlines()}
    assert "hydra" in modules
    slow = ONLY_IN.keys() - {"hydra", "omegaconf"} | {"rich", "psutil"}
    assert not modules & slow
    assert not (sources / "multirun").exists()


@pytest.mark.parametrize("arguments", ["--help", "--cfg job"])
def test_a_closed_reader_of_the_output_is_no_error(sources, arguments):
    reader, output = os.pipe()
    os.close(reader)
    command = [sys.executable, "src/train.py", *arguments.split()]
    shown = subprocess.run(command, cwd=sources, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(output)
    assert (shown.returncode, shown.stderr) == (128 + signal.SIGPIPE, "")
