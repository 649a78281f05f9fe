"""All places where the agent hooks into a script's process, each with its reason.

sys.meta_path                      to install the hooks below when the script imports torch, and not to import it
                                   into processes that do not need it
DataLoader.__iter__                the start of a pass over samples; its iterator gives each batch and the end
DataLoader.__init_subclass__       to wrap `__iter__` of each subclass that defines its own: its passes are the epochs,
                                   even if one iterator of torch delivers all of them. A subclass with `__next__`
                                   has no passes of its own
register_optimizer_step_post_hook  a pass with an optimizer step is an epoch of training; without a DataLoader, a
                                   number of optimizer steps is one. Before torch 2.0, which has no such hook, `step`
                                   of each class is wrapped when its first optimizer is made
torch.autograd.backward            before the script's first optimizer step, a backward pass is a training step: some
                                   scripts change their weights without an optimizer of torch. The wrapper is removed
                                   after the first epoch, unless that had no optimizer step (long accumulation)
register_module_forward_pre_hook   a pass with forward passes only is an evaluation; this hook is removed by the
                                   first forward pass, since it slows down each module. In scripts that use
                                   `torch.compile`, which would compile the hook, a pass without steps is an
                                   evaluation, and functions of this package are not compiled
atexit                             to close a window that is open when the script ends
forward hooks, Tensor.backward     with `profiler=torch`, to mark modules and backward passes in the traced steps only
                                   (`worker.trace.module_ranges`)
"""

import atexit
import contextlib
import functools
import importlib
import importlib.util
import json
import os
import sys

agent = None  # the agent of this process, if its script was started by `measure.py`
loader_agent = None  # the agent that measures the passes over DataLoaders


class TorchFinder:
    """Finds the module torch as Python does without this finder, and installs the hooks after its import."""

    def __init__(self):
        self._is_searching = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
                install()

            spec.loader.exec_module = exec_module
        return spec


def install():
    """Install the hooks of an agent for this process; on failure, report the reason and leave torch unchanged."""
    global agent
    arguments = json.loads(os.environ["EPOCHMETER_AGENT"])
    with contextlib.suppress(OSError):
        from epochmeter.shared.protocol import IMPORTED

        open(arguments["socket"] + IMPORTED, "w").close()
    try:
        from epochmeter.agent.agent import Agent
    except ImportError as error:
        report_old_torch(arguments["socket"], error)
        return
    agent = Agent(**arguments)
    agent.counts_steps = True
    hook_loaders(agent)
    hook_optimizer_steps(agent.optimizer_stepped)
    agent.remove_backward_hook = hook_backward_passes(agent.backward_ended)
    atexit.register(agent.end)


def report_old_torch(socket, error):
    """Report on stderr and to the controller that the agent cannot be imported with this torch."""
    from epochmeter.shared.protocol import NotMeasured
    from epochmeter.worker.connection import ControllerConnection

    version = getattr(sys.modules["torch"], "__version__", "without a version")
    reason = "torch {} cannot be measured, 1.10 or newer can ({})".format(version, error)
    print("epochmeter: " + reason, file=sys.stderr)
    with contextlib.suppress(OSError):
        connection = ControllerConnection(socket)
        connection.send(NotMeasured(reason))
        connection.close()


def hook_loaders(agent):
    """Let an agent measure the passes over all DataLoaders, and return a function that ends this."""
    from torch.utils.data import DataLoader

    global loader_agent
    loader_agent, measured, restores = agent, set(), []

    def measure_passes(kind):
        iterate = kind.__iter__

        @functools.wraps(iterate)
        def measured_iterate(loader):
            outermost = type(loader).__iter__
            is_part = outermost is not measured_iterate and outermost in measured  # of a pass that a subclass defines
            # By import, as cloudpickle copies the variables of a function, and an agent cannot be copied.
            from epochmeter.agent.hooks import loader_agent

            if is_part and loader_agent:
                loader_agent.begin_part(loader)
            return iterate(loader) if is_part or not loader_agent else loader_agent.iterate(loader, iterate)

        measured.add(measured_iterate)
        restores.append(replace(kind, "__iter__", measured_iterate))

    def measure_subclass(kind, **keywords):
        super(DataLoader, kind).__init_subclass__(**keywords)
        measure_subclasses(kind)

    def measure_subclasses(kind):
        # An `__iter__` of its own begins a pass, unless it returns the loader: then the passes in `__next__` do.
        if kind.__iter__ not in measured and not hasattr(kind, "__next__"):
            measure_passes(kind)
        for subclass in kind.__subclasses__():
            measure_subclasses(subclass)

    def end():
        del DataLoader.__init_subclass__
        for restore in restores:
            restore()

    measure_subclasses(DataLoader)
    DataLoader.__init_subclass__ = classmethod(measure_subclass)
    return end


def hook_optimizer_steps(act):
    """Call `act` with an optimizer, its arguments and keywords after each of its steps."""
    module = importlib.import_module("torch.optim.optimizer")  # not an attribute of torch.optim in all versions
    if hasattr(module, "register_optimizer_step_post_hook"):
        module.register_optimizer_step_post_hook(act)
        return

    def measure_steps(optimizer, *_):
        kind = type(optimizer)
        if not getattr(kind.step, "is_measured", False):
            kind.step = followed_by(kind.step, act)
            kind.step.is_measured = True

    module.Optimizer.__init__ = followed_by(module.Optimizer.__init__, measure_steps)


def hook_backward_passes(act):
    """Call `act` after each backward pass, by `Tensor.backward` too, and return a function that ends this."""
    autograd = importlib.import_module("torch.autograd")
    return replace(autograd, "backward", followed_by(autograd.backward, lambda *_: act()))


def followed_by(function, act):
    """Return a function that calls `function`, then `act` with the object, the other arguments and the keywords."""

    @functools.wraps(function)
    def wrapper(*arguments, **keywords):
        result = function(*arguments, **keywords)
        act(*arguments[:1], arguments[1:], keywords)
        return result

    return wrapper


def replace(owner, name, wrapper):
    """Replace a function, and return a function that restores it unless it was replaced again."""
    original = getattr(owner, name)

    def restore():
        if getattr(owner, name) is wrapper:
            setattr(owner, name, original)

    setattr(owner, name, wrapper)
    return restore
