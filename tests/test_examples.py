"""The examples in the docstrings of all public names run."""

import ast
import doctest
import sys
from types import ModuleType

import pytest
from project import ROOT
from watched import window, write_run

from epochmeter.testing.adapters import _recorded

sys.path.insert(0, str(ROOT / "docs"))
import surface

OF_LIBRARIES = ("lightning", "transformers")  # slow to import


def node_of(name):
    """The definition of a public class or function."""
    tree = ast.parse((ROOT / "src/epochmeter" / surface.PYTHON[name][0]).read_text())
    (node,) = (each for each in tree.body if getattr(each, "name", None) == name.rpartition(".")[2])
    return node


def members(node):
    """The public methods and properties of a class."""
    return [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]


def examples(name):
    """The examples of a public function, or of a class followed by those of its members."""
    node = node_of(name)
    of_members = members(node) if isinstance(node, ast.ClassDef) else []
    texts = [ast.get_docstring(each) or "" for each in (node, *of_members)]
    return doctest.DocTestParser().get_doctest("\n\n".join(texts), {}, name, surface.PYTHON[name][0], node.lineno)


NAMES = [
    pytest.param(name, marks=[pytest.mark.system] if name.split(".")[-2] in OF_LIBRARIES else [])
    for name in surface.PYTHON
]


@pytest.mark.parametrize("name", ["epochmeter.Meter", "epochmeter.report.runs.frames.Runs"])
def test_each_method_that_a_user_calls_is_in_an_example(name):
    sources = "".join(example.source for example in examples(name).examples)
    assert [each.name for each in members(node_of(name)) if f".{each.name}" not in sources] == []


@pytest.mark.parametrize("name", NAMES)
def test_example_of_a_public_name_runs(name, tmp_path, monkeypatch, capsys):
    """In a folder with a sweep; meters have no controller."""
    if (library := name.split(".")[-2]) in OF_LIBRARIES:
        pytest.importorskip(library)
        monkeypatch.setitem(sys.modules, "datasets", None)  # transformers would take tests/datasets for a library
    lines = [window("epoch", epoch, 30 - 10 * epoch, 8.0) for epoch in range(3)]
    write_run(tmp_path / "multirun/sweep/0", lines, summary={"state": "completed", "metrics": {"steady/e2e_s": 8.0}})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "example", module := ModuleType("example"))  # where classes are found by name
    test = examples(name)
    assert ">>>" in ast.get_docstring(node_of(name)), "each public docstring has an example"
    test.globs = vars(module)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    with _recorded():
        runner.run(test, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out
