"""The open window of a script, and the kind of its pass: an epoch of training, an evaluation, or neither."""

import contextlib
import math
import sys
import weakref

import torch
from torch.nn.modules.module import register_module_forward_pre_hook


class OpenWindow:
    """Counts and properties of the open window."""

    def __init__(
        self, device, loader=None, limit=None, length=None, name=None, is_explicit=False, is_counted=False,
        is_partial=False,
    ):  # fmt: skip
        self.device = device
        self.loader = loader or (lambda: None)  # returns the loader, or None if it does not exist any more
        self.limit = limit  # number of batches after which the window ends; None: it ends with the pass
        self.length = length  # number of batches of a pass; None if it is not known
        self.name = name  # None if it depends on what happens in the window
        self.is_explicit = is_explicit  # whether the script itself gave the data to a `Meter`
        self.is_counted = is_counted  # whether its steps are counted outside passes
        self.is_partial = is_partial  # whether fewer batches than the limit make it incomplete
        self.batches = 0
        self.training_steps = 0  # optimizer steps; also backward passes before the script's first optimizer step
        self.samples = None if is_counted else 0  # None if a batch has no length
        self.learning_rate = None
        self.flaw = None  # why the window has to be discarded; None if it need not
        self.has_forward = False
        self.has_backward = False  # after the first optimizer step of a script whose first epoch had none
        self.is_exhausted = False  # whether the pass has ended, but the script still trains on batches fetched ahead
        self.failed_at = None  # number of batches before the loader's last error
        self.has_gradients = torch.is_grad_enabled()
        self._steps_before_last = None  # before those on the last batch
        self._batches_per_step = None  # before the first step of another thread

    def is_complete(self):
        """Return whether the loader has delivered its last batch, or has failed since its last batch."""
        is_last = self.length is not None and self.batches >= self.length
        return self.is_exhausted or is_last or self.batches == self.failed_at

    def has_trained_last(self):
        """Return whether there was an optimizer step on the last batch."""
        return self._steps_before_last is not None

    def may_be_left(self, loader, name):
        """Return whether the script may have left this pass, whose iterator it holds, if it begins another one."""
        return self.name == name and (self.loader() is loader or not self.training_steps)

    def is_read_ahead(self):
        """Return whether a step of another thread has shown that batches are requested before it needs them."""
        self._batches_per_step = self._batches_per_step or self.batches  # several, if gradients are accumulated
        expected = self._batches_per_step * self.training_steps
        return self.training_steps < self.batches and self.batches not in (expected, self.length)

    def is_before_last_step(self):
        """Return whether a pass with optimizer steps has delivered its last batch, but had no step on it."""
        return self.batches == self.length and self.learning_rate is not None and not self.has_trained_last()

    def may_be_complete(self):
        """Return whether this optimizer step may be the last of the pass; call it after each step on the last batch."""
        if self._steps_before_last is None:
            self._steps_before_last = self.training_steps - 1
        steps_per_batch = math.ceil(self._steps_before_last / max(1, self.length - 1))
        return self.training_steps - self._steps_before_last == max(1, steps_per_batch)


class PassKinds:
    """Names passes by the optimizer steps and forward passes in them."""

    def __init__(self):
        self.model = lambda: None  # returns the module of the last noted forward pass, unless it was deleted
        self._known = weakref.WeakValueDictionary()  # loaders of earlier windows, by `id`
        self._complete = weakref.WeakValueDictionary()  # loaders whose last batch was delivered in a pass, by `id`
        self._ahead = weakref.WeakValueDictionary()  # loaders whose next batch is fetched before a step
        self._hook = None
        self._is_skipped = False  # whether `torch.compile` skips the functions of this package

    def watch(self, window):
        """Note the first forward pass in a window, if its loader is new or fetched ahead."""
        is_known = id(window.loader()) in self._known and not self.is_fetched_ahead(window)
        if self._has_compiled():
            window.has_forward = True  # assumed, as the hook would be compiled with the module
        elif window.name is None and not is_known:
            self._hook = register_module_forward_pre_hook(lambda module, inputs: self._note_forward(window, module))

    def unwatch(self):
        """Remove the hook of `watch`, since it slows down each module."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def is_fetched_ahead(self, window):
        """Return whether the script fetches the next batch before it trains on the current one."""
        return id(window.loader()) in self._ahead

    def name(self, window, is_first_epoch, has_optimizer):
        """Return a closed window's name; None for a pass before the first epoch or a pass that only reads samples.

        `has_optimizer`: whether the script has made a step of a torch optimizer.
        """
        name, loader = self._name(window, is_first_epoch, has_optimizer), window.loader()
        if window.batches == window.length:
            add_weakly(self._complete, loader)
        elif window.length is not None:  # the script left the pass
            was_complete = id(loader) in self._complete  # an earlier pass
            window.is_partial = window.is_partial or (was_complete and name == "epoch")
            if name == "val" and not window.is_explicit and (was_complete or window.batches == 1):
                name = None  # it looked at some samples
        if name:
            add_weakly(self._known, loader)
        return name

    def _name(self, window, is_first_epoch, has_optimizer):
        if window.name not in (None, "epoch", "val"):
            return window.name
        if not window.batches:
            return None
        if window.name or window.training_steps or window.has_backward:
            return window.name or "epoch"
        if window.is_explicit and not has_optimizer and torch.is_grad_enabled():
            return "epoch"  # of a script without an optimizer of torch
        is_used = window.is_explicit or window.has_forward or id(window.loader()) in self._known
        return "val" if is_used and not is_first_epoch else None

    def _has_compiled(self):
        """Return whether the script has used `torch.compile`; if so, let it skip the functions of this package."""
        # The backends by `id`; the backend of code that torch must not compile is `False`.
        backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
        if not self._is_skipped and any(backends.values()):
            for name in ("trace_rules", "skipfiles"):  # the second before torch 2.3
                module = sys.modules.get("torch._dynamo." + name)
                if hasattr(module, "add"):
                    module.add(__name__.partition(".")[0])
            self._is_skipped = True
        return self._is_skipped

    def _note_forward(self, window, module):
        window.has_forward = True
        self.model = weakref.ref(module)
        self.unwatch()
        self._ahead.pop(id(window.loader()), None)
        if window.batches > 1:
            add_weakly(self._ahead, window.loader())


def add_weakly(loaders, loader):
    """Add a loader by its `id`, unless it cannot be referenced weakly, such as a list."""
    with contextlib.suppress(TypeError):
        loaders[id(loader)] = loader


def weak_getter(loader):
    """Return a function that returns the loader; if possible, the function does not keep it alive."""
    try:
        return weakref.ref(loader)
    except TypeError:
        return lambda: loader
