"""The window of a script that is open: its counts so far, and whether it is complete."""

import math

import torch

from epochmeter.worker.device import sample_count


class OpenWindow:
    """Counts and properties of the open window.

    Attributes:
        loader: Returns the loader, or None if it does not exist any more or there is none.
        limit: Number of batches after which the window ends; None: it ends with the pass.
        length: Number of batches of a pass; None if it is not known.
        name: `epoch`, `val`, or a name of the script's own; None if that depends on what happens in the window.
        is_explicit: Whether the script itself gave the data to a `Meter`.
        is_counted: Whether its steps are those of a script without a DataLoader.
        samples: None if a batch has no length.
        training_steps: Optimizer steps; also backward passes before the script's first optimizer step.
        flaw: Why the window has to be discarded; None if it need not.
        is_exhausted: Whether the pass has ended, but the script still trains on batches that it fetched ahead.
    """

    def __init__(self, device, loader=None, limit=None, length=None, name=None, is_explicit=False, is_counted=False):
        self.device = device
        self.loader = loader or (lambda: None)
        self.limit = limit
        self.length = length
        self.name = name
        self.is_explicit = is_explicit
        self.is_counted = is_counted
        self.batches = self.training_steps = 0
        self.samples = None if is_counted else 0
        self.learning_rate = self.flaw = None
        self.has_forward = self.is_exhausted = False
        self.has_gradients = torch.is_grad_enabled()
        self._steps_before_last = None  # before those on the last batch

    def is_complete(self):
        """Return whether the loader has delivered its last batch."""
        return self.is_exhausted or (self.length is not None and self.batches >= self.length)

    def add(self, batch):
        """Count a batch."""
        self.batches += 1
        if self.samples is not None:
            try:
                self.samples += sample_count(batch)
            except Exception:  # a batch may be any object
                self.samples = None

    def may_be_complete(self):
        """Return whether this optimizer step may be the last of the pass; call it after each step on the last batch."""
        if self._steps_before_last is None:
            self._steps_before_last = self.training_steps - 1
        steps_per_batch = math.ceil(self._steps_before_last / max(1, self.length - 1))
        return self.training_steps - self._steps_before_last == max(1, steps_per_batch)
