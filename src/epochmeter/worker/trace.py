"""Profiler traces of a few steady steps, taken in a separate window after the last epoch."""

import collections
import contextlib
import gzip
import itertools
import os
import shutil
import threading
from typing import Any, Callable, DefaultDict, Generator, Iterable, Iterator, List, Optional, Tuple

import torch
from torch.autograd.profiler import record_function
from torch.nn.modules import module as modules
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

from epochmeter.shared.types import Document
from epochmeter.worker.timeline import monotonic_ns

try:
    from torch._C._profiler import _ExperimentalConfig

    ALL_THREADS: Document = {"experimental_config": _ExperimentalConfig(profile_all_threads=True)}
except (ImportError, TypeError):  # older versions trace only this thread and its backward passes
    ALL_THREADS = {}

MODULE = "module: "  # prefix of a module's range in a trace; its name in the model and its class follow
BACKWARD = "Tensor.backward"
"""Name of a backward pass's range, which includes the start of the autograd engine and the release of its graph."""
NAME = "_epochmeter_name"  # attribute of modules with their name in the model, while they are marked


class TorchTrace:
    """Record a trace with torch's profiler, after some warm-up steps; opens in Perfetto and chrome://tracing."""

    records_memory = True
    traced_ns: Optional[Tuple[int, int]] = None
    """Start and end of the traced steps on the monotonic clock, once they are recorded."""

    def __init__(self, warmup_steps: int = 2, steps: int = 5) -> None:
        self.warmup_steps, self.steps = warmup_steps, steps

    def record_trace(self, path: Optional[str], batches: Iterator[Any], run: Callable[[Iterable[Any]], object]) -> None:
        """Train a few steps by `run` on endless batches, and write the trace of the last ones if there is a path."""
        if path is None:
            run(itertools.islice(batches, self.warmup_steps + self.steps))
        else:
            with contextlib.closing(self.recorded(path, batches)) as recorded:
                run(recorded)

    def recorded(self, path: str, batches: Iterable[Any], first: int = 0) -> Generator[Any, None, None]:
        """Yield the batches of these steps, and write the trace; `first` is the first step's number in its epoch.

        The device is idle at both ends of the traced steps, so that they contain all their work.
        """
        begin, end = self.warmup_steps - 1, self.warmup_steps + self.steps - 1
        phases = schedule(wait=0, warmup=self.warmup_steps, active=self.steps, repeat=1)
        profiler = profile(
            activities={ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities()),
            schedule=lambda step: phases(max(0, step - first)),
            record_shapes=True,
            **ALL_THREADS,
        )
        profiler.step_num = first
        with profiler:
            opened_ns = monotonic_ns()
            for step, batch in zip(range(end + 1), batches):
                yield batch
                if step in (begin, end):
                    _synchronize()
                if step == end:
                    self.traced_ns = opened_ns, monotonic_ns()
                profiler.step()
                if step == begin:
                    opened_ns = monotonic_ns()
        if self.traced_ns is not None:  # else the steps ended early
            export(profiler, path)


def export(profiler: profile, path: str) -> None:
    """Write a trace, compressed with gzip.

    torch does not compress it: it decodes all names for that, and gzip has no time after 2106.
    """
    plain, partial = (os.path.join(os.path.dirname(path), "partial-trace" + suffix) for suffix in (".json", ".gz"))
    try:
        profiler.export_chrome_trace(plain)
        if not os.path.exists(plain):  # torch only logs that it cannot write
            raise OSError("the profiler could not write it; the disk may be full")
        with open(plain, "rb") as source, gzip.GzipFile(partial, "wb", mtime=0) as target:
            shutil.copyfileobj(source, target)
        os.replace(partial, path)
    finally:
        for rest in (plain, partial):
            if os.path.exists(rest):
                os.remove(rest)  # frees the disk space for the final summary


class NsightTrace(TorchTrace):
    """Record a trace, and mark steps for Nsight; the controller reads `program` and `timeout_s`."""

    def __init__(
        self, program: object, start: int, stop: int, timeout_s: object, warmup_steps: int = 2, steps: int = 5
    ) -> None:
        super().__init__(warmup_steps, steps)
        self.start, self.stop = start, stop

    def mark_steps(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of the steps before `stop`; the CUDA profiler is on from the step `start`."""
        with contextlib.ExitStack() as profiling:
            for step, batch in enumerate(itertools.islice(batches, self.stop)):
                if step == self.start and torch.cuda.is_initialized():
                    profiling.enter_context(torch.cuda.profiler.profile())
                    profiling.callback(_synchronize)
                    _synchronize()
                yield batch


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextlib.contextmanager
def module_ranges(model: Optional[torch.nn.Module]) -> Iterator[None]:
    """Mark forward passes of modules, and backward passes, in traces recorded meanwhile; None marks nothing."""
    if model is None:
        yield
        return
    ranges: DefaultDict[int, List[record_function]] = collections.defaultdict(list)
    """The open ones by thread: replicas of one model run in several threads."""

    def enter(module: torch.nn.Module, inputs: object) -> None:
        kind = type(module).__name__
        opened = record_function("{}{} ({})".format(MODULE, getattr(module, NAME, "({})".format(kind)), kind))
        opened.__enter__()
        ranges[threading.get_ident()].append(opened)

    def leave(module: torch.nn.Module, inputs: object, outputs: object) -> None:
        if ranges[threading.get_ident()]:  # else the marks begin within this forward pass
            ranges[threading.get_ident()].pop().__exit__(None, None, None)

    def backward(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        with record_function(BACKWARD):
            return original(tensor, *args, **options)

    for name, module in model.named_modules():
        setattr(module, NAME, name)  # replicas of the module get it as well
    tensors: Any = torch.Tensor  # whose method is replaced
    original, tensors.backward = tensors.backward, backward
    hooks = [modules.register_module_forward_pre_hook(enter), modules.register_module_forward_hook(leave)]
    try:
        yield
    finally:
        tensors.backward = original
        for hook in hooks:
            hook.remove()
        for module in model.modules():
            module.__dict__.pop(NAME, None)


class NullProfiler:
    """Record no trace (`profiler=none`)."""

    records_memory = False
    traced_ns = None

    def record_trace(self, path: object, batches: object, run: object) -> None:
        pass
