"""Imports between packages run one way, in the order of the layers; read from the sources, wherever an import is."""

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
LAYERS = [
    *({"shared"}, {"config"}, {"machine"}),
    {"power", "datasets", "results"},
    {"trace"},
    *({"tracking"}, {"console"}, {"sweep"}),
    {"run", "report"},
    *({"cluster"}, {"watch"}, {"hydra_plugins"}, {"commands"}, {"__main__"}, {"entries"}),
    *({"agent"}, {"integrations"}),
    {"__init__"},  # the public functions, imported when they are used
]
"""A package may import itself and the layers above it in this list."""
REPORT_LAYERS = ["statistics", "formatting", "runs", "pages", "render", "analyses", "charts"]
"""The same within the report; its other modules may import all of these."""
EXCEPTIONS = {"worker": {"shared"}, "agent": {"shared", "worker"}}
"""The training process runs on a board's own Python, and a script's agent on the script's."""


@cache
def tree(path):
    """Return a parsed source file; parsing is slow, and tests share it."""
    return ast.parse(path.read_text())


def imported(module):
    """Return the dotted names that a module imports; `from a import b` may mean a module."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def imports_of(path):
    """Return what a source file imports, wherever an import is."""
    return imported(tree(path))


def package_of(path):
    """Return the package or top-level module a file belongs to, or `entries`."""
    folder, *rest = path.relative_to(SOURCE).with_suffix("").parts
    return rest[0] if folder == "epochmeter" else folder if rest else "entries"


def test_packages_import_only_the_layers_below_them():
    edges = {
        (package_of(path), name.split(".")[1])
        for path in SOURCE.rglob("*.py")
        for name in imports_of(path)
        if name.startswith("epochmeter.")
    }
    below = {}
    for number, packages in enumerate(LAYERS):
        below.update(dict.fromkeys(packages, set().union(*LAYERS[:number])))
    below.update(EXCEPTIONS)
    assert {(importer, target) for importer, target in edges if target not in below[importer] | {importer}} == set()


def test_the_report_imports_only_the_layers_below():
    report = SOURCE / "epochmeter/report"
    layer_of = {name: number for number, name in enumerate(REPORT_LAYERS)}
    for path in report.rglob("*.py"):
        layer = layer_of.get(path.relative_to(report).with_suffix("").parts[0], len(REPORT_LAYERS))
        targets = {name.split(".")[2] for name in imports_of(path) if name.startswith("epochmeter.report.")}
        wrong = {target for target in targets if layer_of.get(target, len(REPORT_LAYERS)) > layer}
        assert not wrong, path


def test_the_package_has_no_flat_modules():
    assert list((SOURCE / "epochmeter").glob("[!_]*.py")) == []
