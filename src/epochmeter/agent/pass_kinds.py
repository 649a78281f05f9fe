"""Classification of passes over a loader: an epoch of training, an evaluation, or neither."""

import contextlib
import weakref

import torch
from torch.nn.modules.module import register_module_forward_pre_hook


class PassKinds:
    """Names passes by the optimizer steps and forward passes in them."""

    def __init__(self):
        self.model = lambda: None  # returns the module of the last noted forward pass, unless it was deleted
        self._known = weakref.WeakSet()  # loaders of earlier windows
        self._ahead = weakref.WeakSet()  # loaders whose next batch is fetched before the script trains on a batch
        self._hook = None

    def watch(self, window):
        """Note the first forward pass in a window, if its loader is new or fetched ahead."""
        is_known = contains(self._known, window.loader) and not contains(self._ahead, window.loader)
        if window.name is None and not is_known:
            self._hook = register_module_forward_pre_hook(lambda module, inputs: self._note_forward(window, module))

    def unwatch(self):
        """Remove the hook of `watch`, since it slows down each module."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def is_fetched_ahead(self, window):
        """Return whether the script fetches the next batch before it trains on the current one."""
        return contains(self._ahead, window.loader)

    def name(self, window, is_first_epoch, has_optimizer):
        """Return a closed window's name; None for a pass before the first epoch, or one that only reads samples.

        Args:
            window: The window.
            is_first_epoch: Whether no epoch was measured before.
            has_optimizer: Whether the script has made a step of a torch optimizer.
        """
        name = self._name(window, is_first_epoch, has_optimizer)
        if window.loader() is not None and name:
            with contextlib.suppress(TypeError):  # such as a list, which cannot be referenced weakly
                self._known.add(window.loader())
        return name

    def _name(self, window, is_first_epoch, has_optimizer):
        if window.name not in (None, "epoch", "val"):
            return window.name
        if not window.batches:
            return None
        if window.name or window.training_steps:
            return window.name or "epoch"
        if window.is_explicit and not has_optimizer and torch.is_grad_enabled():
            return "epoch"  # of a script without an optimizer of torch
        is_used = window.is_explicit or window.has_forward or contains(self._known, window.loader)
        return "val" if is_used and not is_first_epoch else None

    def _note_forward(self, window, module):
        window.has_forward = True
        self.model = weakref.ref(module)
        self.unwatch()
        if window.loader() is not None:
            with contextlib.suppress(TypeError):
                (self._ahead.add if window.batches > 1 else self._ahead.discard)(window.loader())


def reference(loader):
    """Return a function that returns the loader; the agent does not keep it alive, if that is possible."""
    try:
        return weakref.ref(loader)
    except TypeError:  # such as a list or a generator
        return lambda: loader


def contains(loaders, reference):
    """Return whether a set of loaders contains a loader that still exists."""
    try:
        return reference() is not None and reference() in loaders
    except TypeError:  # not hashable
        return False
