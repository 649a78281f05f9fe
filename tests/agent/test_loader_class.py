"""Loaders of other libraries: the passes over a class that the script names."""

import importlib
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from epochmeter.agent import hooks
from epochmeter.agent.loader_class import KNOWN, LoaderClass
from epochmeter.segmentation.process import AROUND, LOADER_PROBLEM, OTHER_DATA, UNMEASURED
from epochmeter.testing import check_loader

MODULE = """
import torch

class Loader:
    batch_size = 2
    made = []

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        Loader.made.append(cls.__name__)

    def __len__(self):
        return 4

    def __iter__(self):
        for number in range(4):
            yield torch.full((2, 4), float(number)), torch.zeros(2, dtype=torch.long)

class Itself(Loader):
    def __iter__(self):
        self.batches = super().__iter__()
        return self

    def __next__(self):
        return next(self.batches)

class Wrapping(Loader):
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        yield from self.loader

def __getattr__(name):
    if name == "Lazy":
        raise RuntimeError("needs a device")
    raise AttributeError(f"module has no attribute '{name}'")
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """The name of a module with loaders, which is not imported so far."""
    (tmp_path / "a_library.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "a_library"
    sys.modules.pop("a_library", None)


def hooked(script, path):
    script.agent.loader_class = script.agent.passes._loader_class = LoaderClass(path)
    script.batches = iter
    return hooks.hook_loaders(script.agent)


@pytest.mark.parametrize("is_imported", [False, True])
@pytest.mark.parametrize("kind", ["Loader", "Itself", "Later"])
def test_passes_over_the_named_class_and_its_subclasses_are_measured(script, library, is_imported, kind):
    if is_imported:
        importlib.import_module(library)
    finders = [*sys.meta_path]
    restore = hooked(script, f"{library}:Loader")
    module = importlib.import_module(library)
    base, own = module.Loader, vars(module.Loader)["__iter__"].__wrapped__
    assert sys.meta_path == finders, "imports are found as before"
    later = type("Later", (base,), {"__iter__": lambda loader: base.__iter__(loader)})
    loader = {"Loader": base, "Itself": module.Itself, "Later": later}[kind]()
    for _ in range(2):
        script.train(loader)
        script.evaluate(loader)
    assert script.windows == [("epoch", 0, 4), ("val", 0, 4), ("epoch", 1, 4), ("val", 1, 4)]
    assert [parts["samples"] for parts in script.parts] == [8.0] * 4
    assert base.made == ["Itself", "Wrapping", "Later"], "its own method for subclasses is called"
    restore()
    assert vars(base)["__iter__"] is own
    script.train(loader)
    assert len(script.windows) == 4


@pytest.mark.parametrize("kind", ["Loader", "Itself"])
def test_loader_of_a_library_keeps_the_contract(library, kind):
    check_loader(getattr(importlib.import_module(library), kind), steps=4, samples=8)


def test_pass_over_a_torch_loader_within_one_of_the_named_class_is_part_of_it(script, library):
    restore = hooked(script, f"{library}:Loader")
    data = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
    script.train(importlib.import_module(library).Wrapping(DataLoader(data, batch_size=2)))
    restore()
    assert script.windows == [("epoch", 0, 4)]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("a_library:Missing", "has no attribute 'Missing'"),
        ("a_library:Lazy", "needs a device"),
        ("another:Loader", "the script has not imported another"),
        ("builtins:list", "type 'list'"),
    ],
)
def test_class_that_cannot_be_measured_is_noted_and_the_script_continues(script, library, path, problem):
    restore = hooked(script, path)
    loader = importlib.import_module(library).Loader()
    script.train(loader)
    script.agent.end()
    restore()
    (note,) = [note for note in script.measured.notes if note.startswith(LOADER_PROBLEM.format(""))]
    assert problem in note


@pytest.mark.parametrize("path", [None, *KNOWN])
def test_script_that_trains_without_a_measured_pass_gets_advice(script, monkeypatch, path):
    if path:
        monkeypatch.setitem(sys.modules, path.partition(":")[0], sys)
    restore = hooked(script, None)
    for _ in range(3):
        script.step(torch.zeros(2, 4))
    script.agent.end()
    restore()
    advice = UNMEASURED.format(path.replace(":", "."), path) if path else OTHER_DATA
    assert script.measured.notes == [advice]


def test_script_with_a_measured_pass_gets_no_advice(script, monkeypatch):
    monkeypatch.setitem(sys.modules, KNOWN[0].partition(":")[0], sys)
    restore = hooked(script, None)
    script.train(DataLoader(TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long)), batch_size=2))
    script.agent.end()
    restore()
    assert script.measured.notes == []


def test_pass_over_a_torch_loader_that_a_known_library_begins_is_noted(script):
    path = "webdataset.pipeline:DataPipeline"
    names = {"__name__": path.partition(":")[0]}
    exec("def rebatched(loader):\n    for batch in loader:\n        yield batch", names)  # noqa: S102 (own)
    restore = hooked(script, None)
    data = TensorDataset(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
    script.train(names["rebatched"](DataLoader(data, batch_size=2)))
    script.agent.end()
    restore()
    assert script.measured.notes == [AROUND.format("webdataset.pipeline.DataPipeline", path)]
