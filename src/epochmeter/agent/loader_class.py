"""Loaders other than torch's DataLoader: a class whose `__iter__` begins a pass over data.

`measure.loader=MODULE:CLASS` names the class. Its methods, and the batches that it delivers, can be any: its length
(`__len__`) and `batch_size` are used if it has them. So a library needs no code here, and an entry in `KNOWN` only adds
it to the advice for a script that trained without a measured pass.
"""

import functools
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Set

from epochmeter.agent.frames import hidden, hide_frames, pass_on

if TYPE_CHECKING:
    import types
    from importlib.machinery import ModuleSpec

KNOWN = (
    "fastai.data.load:DataLoader",
    "ffcv.loader.loader:Loader",
    "nvidia.dali.plugin.pytorch:DALIGenericIterator",
    "webdataset.pipeline:DataPipeline",
)
MODULES = {path.partition(":")[0]: path for path in KNOWN}


class ImportFinder:
    """Finds a module as Python does without this finder, and calls a function with it after its import."""

    def __init__(self, name: str, act: "Callable[[types.ModuleType], object]") -> None:
        self._name, self._act = name, act
        self._is_searching = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> "Optional[ModuleSpec]":
        if name != self._name or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader  # whose method is replaced
            execute = loader.exec_module

            @hidden
            def exec_module(module: "types.ModuleType") -> None:
                try:
                    execute(module)
                except BaseException as error:
                    hide_frames(error)
                    raise
                self.remove()
                self._act(module)

            loader.exec_module = exec_module
        return spec

    def remove(self) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


class LoaderClass:
    """The class that `measure.loader` names; None: it names none.

    Attributes:
        problem: Why its passes are not measured; empty if they are.
        around: Loaders of known libraries within which recorded passes have begun.
    """

    def __init__(self, path: Optional[str]) -> None:
        self._path = path
        self.around: Set[str] = set()
        self.problem = "" if path is None else "the script has not imported {}".format(path.partition(":")[0])

    def hook(self, act: Callable[[Any], Callable[[], object]]) -> Callable[[], object]:
        """Call `act` with the class, now or after the import of its module; return a function that ends this.

        The result of `act` is called then.
        """
        if self._path is None:
            return lambda: None
        name, _, attributes = self._path.partition(":")
        restores: List[Callable[[], object]] = []

        def hook_module(module: Any) -> None:
            try:
                restores.append(act(functools.reduce(getattr, attributes.split("."), module)))
                self.problem = ""
            except Exception as error:  # no such class, or one whose methods cannot be replaced
                pass_on(error)
                self.problem = str(error) or type(error).__name__

        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            hook_module(module)
        else:
            finder = ImportFinder(name, hook_module)
            sys.meta_path.insert(0, finder)
            restores.append(finder.remove)
        return lambda: [restore() for restore in restores]

    def note_around(self) -> None:
        """Note a known loader if it begins a pass over a DataLoader now, whose batches need not be those of it."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") not in MODULES:
            frame = frame.f_back
        if frame is not None:
            self.around.add(MODULES[frame.f_globals["__name__"]])

    def unmeasured(self) -> List[str]:
        """Return the loaders of known libraries that the script has imported, without the one that is measured."""
        return [path for path in KNOWN if path != self._path and path.partition(":")[0] in sys.modules]
