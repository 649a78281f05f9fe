"""All places where the agent hooks into a script's process, each with its reason.

sys.meta_path                      to install the hooks below when the script imports torch, and to import neither
                                   torch nor the agent into processes that do not need it (`path/sitecustomize.py`)
DataLoader.__iter__                the start of a pass over samples; its iterator gives each batch and the end
DataLoader.__init_subclass__       to wrap `__iter__` of each subclass that defines its own: its passes are the epochs,
                                   even if one iterator of torch delivers all of them. A subclass with `__next__`
                                   has no passes of its own
the class in `measure.loader`      the same two methods, after the import of its module (`agent.loader_class`)
DataLoader._iterator               with `measure.replay`, to end the persistent workers of a replayed loader
                                   (`agent.replay`); its passes then have iterators of the agent
DataLoader._index_sampler          the number of indices in each batch of a script's own batch sampler
DataLoader.dataset, .collate_fn,   stand-ins for torch's iterators, to time batches where they are loaded; the script
  .worker_init_fn                  gets its own objects (`agent.loader_workers`)
register_optimizer_step_post_hook  a pass with an optimizer step is an epoch of training; the rest of a step after it is
                                   overhead. With ..._pre_hook, the time of the step. Before torch 2.0, which has no
                                   such hooks, `step` of each class is wrapped when its first optimizer is made
torch.autograd.backward            training steps of scripts that change their weights without an optimizer of torch, or
                                   accumulate gradients; the time of backward passes
torch.autograd.grad                the time of backward passes, until the script uses `torch.compile`
__call__ of classes of modules     the time of forward passes (`agent.phases`): of the outermost modules' classes
register_module_forward_hook       with ..._pre_hook, to find these classes, during a few calls
torch.compile                      to remove the last three before anything is compiled; from then on, only that of
                                   compiled modules is replaced
register_module_forward_pre_hook   a pass with forward passes only is an evaluation; this hook is removed by the
                                   first forward pass, since it slows down each module. In scripts that use
                                   `torch.compile`, which would compile the hook, a pass without steps is an
                                   evaluation, and functions of this package are not compiled
gc.callbacks, torch.save           overhead by its cause
init_process_group                 of torch.distributed: with several ranks, to install the next two
functions of torch.distributed,    waits for other ranks (`agent.collectives`), until the script uses `torch.compile`
  Work.wait
torch.autograd.backward            a pre-hook of the pass's first node, for the time when its gradients are computed
os.register_at_fork                logs of a forked process's own
atexit                             to report the script's end, the exception that caused it, and a missing module
ExecutionTraceObserver             the operators of one step, to count FLOPs (`agent.operators`); meanwhile, warnings of
                                   torch's C++ libraries are not shown, as the observer adds some
forward hooks, Tensor.backward     with `profiler=torch`, to mark modules and backward passes in the traced steps only
                                   (`worker.trace.module_ranges`)
"""

import atexit
import functools
import gc
import importlib
import json
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Tuple

from epochmeter.agent.frames import Suppressed, hidden, hide_frames, pass_on, visible_to_compiler
from epochmeter.agent.loader_class import ImportFinder
from epochmeter.agent.notices import notice
from epochmeter.agent.replaced import ReplacedMethod, Restore, replace
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from epochmeter.agent.agent import Agent
    from epochmeter.agent.brief_steps import Exchange

agent: "Optional[Agent]" = None  # of this process, if its script was started by `measure.py`
loader_agent: "Optional[Agent]" = None  # which records the passes over DataLoaders

MIN_WORK_NS = 1000 * 1000  # shortest garbage collection, and shortest saving, that is recorded


def find_torch(settings: str) -> ImportFinder:
    """Return the finder of torch that installs the hooks of an agent after its import; `settings` are its arguments."""
    finder = ImportFinder("torch", lambda _: install(settings))
    sys.meta_path.insert(0, finder)
    return finder


def install(settings: str) -> None:
    """Install the hooks of an agent for this process; on failure, report the reason and leave torch unchanged."""
    global agent
    try:
        arguments = json.loads(settings)
        note_import(arguments["socket"])
        try:
            from epochmeter.agent.agent import Agent
        except ImportError as error:
            report_old_torch(arguments["socket"], error)
            return
        new = Agent(**arguments)
    except Exception as error:  # a file next to the script may have the name of a module that the agent needs
        pass_on(error)
        notice("not measured: {}: {}".format(type(error).__name__, error))
        return
    agent = new
    hook_loaders(agent)
    hook_training(agent)
    atexit.register(agent.end)


def note_import(socket: str) -> None:
    """Note when the first process of the script had imported torch."""
    from epochmeter.shared.protocol import IMPORTED

    with Suppressed(OSError), open(socket + IMPORTED, "x") as file:
        file.write(str(monotonic_ns()))


def report_missing_module(settings: str, module: Optional[str]) -> None:
    """Report to the controller the module that this interpreter lacks, which has ended the script."""
    from epochmeter.shared.protocol import MISSING

    if module:
        with Suppressed(OSError), open(json.loads(settings)["socket"] + MISSING, "w") as file:
            json.dump([sys.executable, module], file)


def report_old_torch(socket: str, error: ImportError) -> None:
    """Report on stderr and to the controller that the agent cannot be imported with this torch."""
    from epochmeter.shared.problem import Problem
    from epochmeter.shared.protocol import NotMeasured
    from epochmeter.worker.connection import ControllerConnection

    version = getattr(sys.modules["torch"], "__version__", "without a version")
    reason = "torch {} cannot be measured, 1.10 or newer can ({})".format(version, error)
    notice(reason)
    with Suppressed(OSError):
        connection = ControllerConnection(socket)
        connection.send(NotMeasured(Problem(reason)))
        connection.close()


def hook_training(agent: "Agent") -> Restore:
    """Let an agent record training steps, garbage collections and saves; return a function that ends this."""
    from epochmeter.agent.brief_steps import TrainingHooks
    from epochmeter.agent.collectives import Collectives
    from epochmeter.shared.events import GRADIENTS

    training, collectives = agent.training, Collectives(agent)
    end_gradients = hook_gradients(training.phase_begun, lambda begun: training.phase_ended(GRADIENTS, begun))

    def begin_compilation() -> None:
        end_gradients()
        collectives.end_functions()
        agent.compiling()

    end_steps, step_hooks = hook_optimizer_steps(training.optimizer_stepped, training.optimizer_begun)
    restores = [
        collectives.end,  # first, since it has replaced what others have
        hook_process_groups(lambda: agent.guarded(collectives.join)),
        end_steps,
        hook_backward_passes(training.phase_begun, training.backward_ended),
        end_gradients,
        hook_compilation(begin_compilation, agent.compiling),
        hook_collections(training.collected),
        hook_saves(training.saved),
        agent.forwards.remove,
    ]
    if step_hooks:
        agent.brief.hooks = TrainingHooks(*step_hooks, backward_exchange(), training.backward_ended)

    def end() -> None:
        agent.brief.end()
        agent.brief.hooks = None
        for restore in restores:
            restore()

    return end


def hook_loaders(agent: "Agent") -> Restore:
    """Let an agent record the passes over all DataLoaders and its own class; return a function that ends this."""
    from torch.utils import data

    global loader_agent
    loader_agent = agent
    restores = [
        hook_index_samplers(data.DataLoader),
        hook_loader_parts(data.DataLoader),
        hook_passes(data.DataLoader, is_of_torch=True),
        agent.loader_class.hook(hook_passes),
    ]

    def end() -> None:
        global loader_agent
        loader_agent = None
        for restore in restores:
            restore()

    return end


def hook_passes(base: Any, is_of_torch: bool = False) -> Restore:
    """Record the passes over objects of a class, and of its subclasses; return a function that ends this.

    `is_of_torch`: it is torch's DataLoader.
    """
    inherited = vars(base).get("__init_subclass__")
    restores = []

    def record_subclass(kind: Any, **keywords: Any) -> None:
        if inherited is None:
            super(base, kind).__init_subclass__(**keywords)
        else:
            inherited.__get__(None, kind)(**keywords)
        record_subclasses(kind)

    def record_subclasses(kind: Any) -> None:
        # An `__iter__` of its own begins a pass, unless it returns the loader: then the passes in `__next__` do.
        is_iterator = is_of_torch and hasattr(kind, "__next__")
        if not isinstance(kind.__iter__, RecordedMethod) and not is_iterator:
            method = RecordedMethod(kind.__iter__, is_of_torch and kind is base)
            restores.append(replace(kind, "__iter__", method))
        for subclass in kind.__subclasses__():
            record_subclasses(subclass)

    record_subclasses(base)
    method: Callable[..., None] = record_subclass
    restores.append(replace(base, "__init_subclass__", classmethod(method)))

    def end() -> None:
        for restore in restores:
            restore()

    return end


class RecordedMethod(ReplacedMethod):
    """The method `__iter__` of a class of loaders, which records the pass.

    `is_of_torch`: it is that of torch's DataLoader itself.
    """

    __wrapped__: Callable[[Any], Iterator[Any]]

    def __init__(self, iterate: Callable[[Any], Iterator[Any]], is_of_torch: bool) -> None:
        super().__init__(iterate)
        self._is_of_torch = is_of_torch

    def __get__(self, loader: object, kind: Optional[type] = None) -> Any:
        return self if loader is None else types.MethodType(self, loader)

    @hidden
    def __call__(self, loader: Any) -> Iterator[Any]:
        outermost = type(loader).__iter__
        try:
            if loader_agent is None:
                return self.__wrapped__(loader)
            if outermost is self or not isinstance(outermost, RecordedMethod):
                return loader_agent.passes.iterate(loader, self._make_iterator)
            loader_agent.passes.repeat(loader)
            return self._make_iterator(loader)  # a part of a pass that a subclass defines
        except BaseException as error:
            hide_frames(error)
            raise

    @hidden
    def _make_iterator(self, loader: Any) -> Iterator[Any]:
        if self._is_of_torch and loader_agent is not None:
            return loader_agent.passes.make_torch_iterator(loader, self.__wrapped__)
        return self.__wrapped__(loader)


def hook_index_samplers(kind: type) -> Restore:
    """Let the iterators of DataLoaders note the sizes of their batches where the loader does not state them."""
    from epochmeter.agent.samples import NotedSampler, has_own_sampler

    attribute = vars(kind).get("_index_sampler")
    if not isinstance(attribute, property) or attribute.fget is None:
        return lambda: None
    get_sampler = attribute.fget

    def index_sampler(loader: Any) -> Any:
        sampler, sizes = get_sampler(loader), loader_agent and loader_agent.thread.sizes
        return NotedSampler(sampler, sizes) if sizes and has_own_sampler(loader) else sampler

    return replace(kind, "_index_sampler", property(index_sampler))


def hook_loader_parts(kind: Any) -> Restore:
    """Give torch's iterators the timed parts of their DataLoader; return a function that ends this."""
    from epochmeter.agent.loader_workers import PARTS, LoaderPart

    for name in PARTS:
        setattr(kind, name, LoaderPart(name, lambda: (loader_agent and loader_agent.thread.parts) or {}))

    def end() -> None:
        for name in PARTS:
            delattr(kind, name)

    return end


def hook_optimizer_steps(
    end: Callable[..., None], begin: Callable[..., None]
) -> "Tuple[Restore, Optional[Tuple[Exchange, Exchange]]]":
    """Call `begin` and `end` with an optimizer, its arguments and keywords around each step.

    Return a function that ends this, and the hooks before and after steps; None before torch 2.0.
    """
    from epochmeter.agent.brief_steps import Exchange

    module = importlib.import_module("torch.optim.optimizer")  # not an attribute of torch.optim in all versions
    if hasattr(module, "register_optimizer_step_post_hook"):
        is_compiling = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", lambda: False)

        @visible_to_compiler
        def begin_eagerly(optimizer: object, arguments: object, keywords: object) -> None:
            if not is_compiling():
                begin(optimizer, arguments, keywords)

        handles = [
            module.register_optimizer_step_pre_hook(begin_eagerly),
            module.register_optimizer_step_post_hook(end),
        ]
        before, after = [Exchange(handle.hooks_dict_ref(), handle.id) for handle in handles]
        return lambda: [handle.remove() for handle in handles], (before, after)

    restores = []

    def record_steps(optimizer: object, *_: object) -> None:
        kind: Any = type(optimizer)
        ends = getattr(kind.step, "recorded_by", ())  # of each agent of this process, of several `Meter`
        if end not in ends:
            step: Any = followed_by(kind.step, end, begin)
            step.recorded_by = (*ends, end)
            restores.append(replace(kind, "step", step))

    restores.append(replace(module.Optimizer, "__init__", followed_by(module.Optimizer.__init__, record_steps)))
    return lambda: [restore() for restore in restores], None


def hook_backward_passes(begin: Callable[[], Any], end: Callable[[Any], None]) -> Restore:
    """Call `begin` before and `end` with its result after each backward pass, by `Tensor.backward` too.

    Return a function that ends this.
    """
    autograd = importlib.import_module("torch.autograd")
    return replace(autograd, "backward", enclosed(autograd.backward, begin, end))


def backward_exchange() -> "Exchange":
    """Return the exchange of the replaced `torch.autograd.backward` for the original one."""
    from epochmeter.agent.brief_steps import Exchange

    return Exchange(vars(importlib.import_module("torch.autograd")), "backward")


def hook_gradients(begin: Callable[[], Any], end: Callable[[Any], None]) -> Restore:
    """Do the same for each call of `torch.autograd.grad`."""
    autograd = importlib.import_module("torch.autograd")
    return replace(autograd, "grad", enclosed(autograd.grad, begin, end))


def hook_compilation(begin: Callable[[], object], end: Callable[[], object]) -> Restore:
    """Call `begin` before and `end` after each call of `torch.compile`, and return a function that ends this."""
    torch = sys.modules["torch"]
    if not hasattr(torch, "compile"):  # before torch 2.0
        return lambda: None
    return replace(torch, "compile", enclosed(torch.compile, begin, lambda _: end()))


def hook_process_groups(act: Callable[[], object]) -> Restore:
    """Call `act` now, and after each call of `init_process_group`; return a function that ends this."""
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available():
        return lambda: None
    act()  # a `Meter` may be made after that call
    init = followed_by(distributed.init_process_group, lambda *_: act())
    restores = [replace(owner, "init_process_group", init) for owner in (distributed, distributed.distributed_c10d)]
    return lambda: [restore() for restore in restores]


def hook_collections(act: Callable[[int], None]) -> Restore:
    """Call `act` with the start of each long run of the garbage collector, and return a function that ends this."""
    begun_ns = 0

    def note(phase: str, info: Dict[str, int]) -> None:
        nonlocal begun_ns
        now_ns = monotonic_ns()
        if phase == "start":
            begun_ns = now_ns
        elif now_ns - begun_ns >= MIN_WORK_NS:
            act(begun_ns)

    def end() -> None:
        with Suppressed(ValueError):  # the script has removed it
            gc.callbacks.remove(note)

    gc.callbacks.append(note)
    return end


def hook_saves(act: Callable[[int], None]) -> Restore:
    """Call `act` with the start of each long `torch.save`, and return a function that ends this."""
    torch, serialization = sys.modules["torch"], importlib.import_module("torch.serialization")
    save = serialization.save

    @functools.wraps(save)
    @hidden
    def recorded_save(*arguments: Any, **keywords: Any) -> Any:
        begun_ns = monotonic_ns()
        try:
            return save(*arguments, **keywords)
        except BaseException as error:
            hide_frames(error)
            raise
        finally:
            if monotonic_ns() - begun_ns >= MIN_WORK_NS:
                act(begun_ns)

    restores = [replace(owner, "save", recorded_save) for owner in (torch, serialization)]
    return lambda: [restore() for restore in restores]


def enclosed(
    function: Callable[..., Any], begin: Callable[[], Any], end: Callable[[Any], object]
) -> Callable[..., Any]:
    """Return a function that calls `begin`, `function`, then `end` with the result of `begin`."""

    @functools.wraps(function)
    @hidden
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        begun = begin()
        try:
            result = function(*arguments, **keywords)
        except BaseException as error:
            hide_frames(error)
            raise
        end(begun)
        return result

    return wrapper


def followed_by(
    function: Callable[..., Any], act: Callable[..., object], before: Callable[..., object] = lambda *_: None
) -> Callable[..., Any]:
    """Return a function that calls `function`, then `act` with the object, the other arguments and the keywords.

    `before` is called before it, with the same.
    """

    @functools.wraps(function)
    @hidden
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        before(*arguments[:1], arguments[1:], keywords)
        try:
            result = function(*arguments, **keywords)
        except BaseException as error:
            hide_frames(error)
            raise
        act(*arguments[:1], arguments[1:], keywords)
        return result

    return wrapper
