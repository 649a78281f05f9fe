"""No source can run code from a file, an archive or a user's text: checked in the sources."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmarks", "docs", "tests")
SOURCES = {str(path.relative_to(ROOT)): path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py"))}
PICKLES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
GUARDED = {"src/epochmeter/datasets/cifar.py"}
"""Reads CIFAR's pickles by an unpickler that creates only plain values and arrays."""
RUNS_TEXT = {"os.system", "os.popen", "eval", "exec", "subprocess.getoutput", "subprocess.getstatusoutput"}
LOADS = {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"}


@pytest.fixture(scope="module")
def trees():
    return {name: ast.parse(path.read_text(), name) for name, path in SOURCES.items() if path.name != "test_safety.py"}


def calls(tree):
    """Yield the function of each call, as written, and its named arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {argument.arg: ast.unparse(argument.value) for argument in node.keywords}


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def faults(tree):
    """Yield the unsafe operations of a source."""
    for called, named in calls(tree):
        if called in RUNS_TEXT | LOADS:
            yield called
        if named.get("shell", "False") != "False":
            yield f"{called}(shell={named['shell']})"
        if named.get("allow_pickle", "False") != "False" or named.get("weights_only") == "False":
            yield f"{called} of a pickle"
        if called.endswith((".extractall", ".extract")):
            yield called
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value == "0.0.0.0":
            yield "a public server"


def test_no_shell_no_evaluated_text_and_no_public_server(trees):
    assert {name: found for name, tree in trees.items() if (found := list(faults(tree)))} == {}


def test_nothing_is_unpickled(trees):
    unpickling = {name for name, tree in trees.items() if PICKLES & set(imported(tree))}
    assert {name for name in unpickling if not name.startswith("tests/")} == GUARDED


def test_the_one_unpickler_restricts_its_classes(trees):
    """`find_class` returns the functions that a pickle calls."""
    for name in GUARDED:
        read_by = {called for called, _ in calls(trees[name])}
        assert not read_by & {"pickle.load", "pickle.loads"}
        assert "find_class" in {node.name for node in ast.walk(trees[name]) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(
    "written",
    [
        "subprocess.run(x, shell=True)",
        "os.system(x)",
        "yaml.load(x)",
        "archive.extractall(x)",
        "numpy.load(x, allow_pickle=True)",
        "torch.load(x, weights_only=False)",
        "serve(host='0.0.0.0')",
        "eval(x)",
    ],
)
def test_rule_detects_unsafe_calls(written):
    assert list(faults(ast.parse(written)))


def test_rule_accepts_safe_calls():
    safe = "subprocess.run([x])\nyaml.safe_load(x)\nmodel.eval()\nmodel.load(x)"
    assert list(faults(ast.parse(safe))) == []
