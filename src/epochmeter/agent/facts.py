"""Facts on a script's process and its objects, which the agent writes once per object to `PID.jsonl`."""

import itertools
import json
import multiprocessing
import numbers
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
from torch import distributed
from torch.utils import data

from epochmeter.agent.frames import pass_on
from epochmeter.agent.samples import UNKNOWN, stated_batch, stated_samples
from epochmeter.agent.unseen import unseen
from epochmeter.agent.weak_values import WeakValues
from epochmeter.shared.process_identity import this_process
from epochmeter.worker.device import describe_device, host_name

LOADER_FLAGS = ("pin_memory", "persistent_workers", "drop_last", "in_order")
"""Attributes of a DataLoader that are facts on it, as far as a subclass and the version of torch have them."""
LOADER_CLASSES = ("dataset", "sampler", "batch_sampler")
"""Attributes of a DataLoader whose classes are facts on it, as far as they are not None."""


class FactsFile:
    """Numbers the objects of a process, and writes facts on them.

    The file is not kept open, since a script may close all files.

    Attributes:
        optimizers: Numbers of the optimizers that have facts.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "{}.jsonl".format(os.getpid()))
        self._counter = itertools.count(1)
        self._loaders: WeakValues[Tuple[int, Dict[str, object], int]] = WeakValues()
        """Number, facts, and the number of the loader in its first state."""
        self.optimizers: WeakValues[int] = WeakValues()
        self._trained: WeakValues[int] = WeakValues()  # identity of a parameter -> its last new optimizer
        self._names: Dict[str, int] = {}
        self._name_numbers = itertools.count(1)  # apart from objects: an event of a pass has 16 bits for them

    def new_number(self) -> int:
        """Return a number for an object that needs no facts."""
        return next(self._counter)

    def loader_number(self, loader: object) -> int:
        """Return the number of a loader with its present facts; in each state it has another number."""
        facts, known = loader_facts(loader), self._loaders.get(loader)
        if known is not None and known[1] == facts:
            return known[0]
        number = self.new_number()
        first = number if known is None else known[2]
        self.write(dict(facts, kind="loader", object=number, loader=first))
        self._loaders.set(loader, (number, facts, first))
        return number

    def optimizer_number(self, optimizer: torch.optim.Optimizer) -> int:
        """Return the number of an optimizer; its facts name the earlier optimizers of the same parameters."""
        number = self.optimizers.get(optimizer)
        if number is None:
            number = self.new_number()
            earlier = self._trained_by(number, optimizer)
            self.write({"kind": "optimizer", "object": number, "class": class_name(optimizer), "earlier": earlier})
            self.optimizers.set(optimizer, number)
        return number

    def _trained_by(self, number: int, optimizer: torch.optim.Optimizer) -> List[int]:
        """Note that an optimizer trains its parameters, and return those that trained some of them before."""
        earlier = set()
        try:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        except Exception as error:  # a class of the script
            pass_on(error)
            return []
        with unseen():
            # A frozen part may be common to the models of several trainings.
            identities = [identity_of(parameter) for parameter in parameters if parameter.requires_grad]
        for identity in identities:
            earlier.add(self._trained.get(identity))
            self._trained.set(identity, number)
        return sorted(filter(None, earlier))

    def name_number(self, name: str) -> int:
        """Return the number of a name that a script gave to a window."""
        if name not in self._names:
            self._names[name] = next(self._name_numbers)
            self.write({"kind": "name", "object": self._names[name], "name": name})
        return self._names[name]

    def write(self, facts: Mapping[str, object]) -> None:
        """Append a line."""
        line = json.dumps(facts).encode("utf-8") + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def own_rank() -> Tuple[int, int, bool]:
    """Return this process's rank, the number of ranks, and whether it is the first rank on its node."""
    rank, ranks, first = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)), 0
    if distributed.is_available() and distributed.is_initialized():
        first = rank = distributed.get_rank()
        ranks = distributed.get_world_size()
    return rank, ranks, int(os.environ.get("LOCAL_RANK", first)) == 0


def identity_of(parameter: torch.Tensor) -> object:
    """Return the object by which a parameter is known again without being kept alive; None if it has none.

    From torch 2.3 on, it is the storage: torch refuses to swap tensors that have weak references, as `Module.to` does
    on request. Before torch 2.1, the object of a storage does not live as long as the storage.
    """
    if not hasattr(torch.utils, "swap_tensors"):
        return parameter
    try:
        return parameter.untyped_storage()
    except Exception as error:  # it has no storage, as a sparse tensor
        pass_on(error)
        return None


def current_gpu() -> Optional[torch.device]:
    """Return the current GPU if the script has initialized CUDA; else None."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else None


def trained_gpu(optimizer: torch.optim.Optimizer) -> Optional[torch.device]:
    """Return the GPU of an optimizer's first parameter; None if it is not on a GPU."""
    try:
        parameters: List[torch.Tensor] = optimizer.param_groups[0]["params"]
    except Exception as error:  # a class of the script
        pass_on(error)
        return None
    with unseen():
        return parameters[0].device if parameters and parameters[0].is_cuda else None


def process_facts(device: Optional[torch.device] = None) -> Dict[str, object]:
    """Return facts on this process: its rank, versions and device; without one, that is the current GPU or the CPU."""
    rank, ranks, is_first = own_rank()
    with unseen():
        facts = describe_device(device or current_gpu() or torch.device("cpu"))
    return {
        "kind": "process", "rank": rank, "is_first": is_first, "identity": this_process(), "host": host_name(),
        "training": dict(facts, ranks=ranks) if ranks > 1 else facts,
        "local_ranks": min(ranks, int(os.environ.get("LOCAL_WORLD_SIZE", 1))),
    }  # fmt: skip


def loader_facts(loader: object) -> Dict[str, object]:
    """Return facts on a script's data: its class, and of a DataLoader its arguments, classes and stated samples."""
    facts: Dict[str, object] = {"class": class_name(loader)}
    if not isinstance(loader, data.DataLoader):
        return facts
    stated = {"samples": stated_samples(loader), "batch": stated_batch(loader)}
    facts.update((name, count) for name, count in stated.items() if count is not None)
    facts.update((name, bool(getattr(loader, name))) for name in LOADER_FLAGS if hasattr(loader, name))
    parts = ((name, getattr(loader, name, None)) for name in LOADER_CLASSES)
    facts.update((name, class_name(part)) for name, part in parts if part is not None)
    facts["collate"] = function_name(loader.collate_fn)
    if loader.num_workers:
        facts.update(prefetch=loader.prefetch_factor, start_method=start_method(loader))
    is_iterable = isinstance(loader.dataset, data.IterableDataset)
    return dict(facts, workers=loader.num_workers, iterable=is_iterable, data=id(loader.dataset))


def start_method(loader: "data.DataLoader[Any]") -> Optional[str]:
    """Return how a DataLoader starts its workers; None if that is not known.

    The default of this process is not set by asking for it: the script may still choose another one.
    """
    context: Any = loader.multiprocessing_context or multiprocessing
    try:
        method: Optional[str] = context.get_start_method(allow_none=True)
    except Exception as error:  # a context of the script
        pass_on(error)
        return None
    return method or multiprocessing.get_all_start_methods()[0]


def function_name(thing: object) -> str:
    """Return the name of a function with its module, or the class of another object that can be called."""
    name = getattr(thing, "__qualname__", None)
    return "{}.{}".format(getattr(thing, "__module__", None), name) if name else class_name(thing)


def class_name(thing: object) -> str:
    kind = type(thing)
    return "{}.{}".format(kind.__module__, kind.__qualname__)


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate of an optimizer; NaN if it is not known."""
    try:
        rate: Any = optimizer.param_groups[0]["lr"]
    except Exception as error:  # a class of the script
        pass_on(error)
        return UNKNOWN
    return rate if type(rate) is float else as_float(rate)


def as_float(rate: Any) -> float:
    """Return a learning rate as a number; NaN if it is absent, or on a GPU, which would have to be waited for."""
    if not isinstance(rate, torch.Tensor):
        return float(rate) if isinstance(rate, numbers.Real) else UNKNOWN  # which those of numpy are
    with unseen():
        return float(rate) if rate.device.type == "cpu" else UNKNOWN
