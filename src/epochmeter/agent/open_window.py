"""The window of a script that is open: its counts so far, and whether it is complete."""

import math

import torch

from epochmeter.worker.device import sample_count


class OpenWindow:
    """Counts and properties of the open window."""

    def __init__(self, device, loader=None, limit=None, length=None, name=None, is_explicit=False, is_counted=False):
        self.device = device
        self.loader = loader or (lambda: None)  # returns the loader, or None if it does not exist any more
        self.limit = limit  # number of batches after which the window ends; None: it ends with the pass
        self.length = length  # number of batches of a pass; None if it is not known
        self.name = name  # None if it depends on what happens in the window
        self.is_explicit = is_explicit  # whether the script itself gave the data to a `Meter`
        self.is_counted = is_counted  # whether its steps are those of a script without a DataLoader
        self.batches = 0
        self.training_steps = 0  # optimizer steps; also backward passes before the script's first optimizer step
        self.samples = None if is_counted else 0  # None if a batch has no length
        self.learning_rate = None
        self.flaw = None  # why the window has to be discarded; None if it need not
        self.has_forward = False
        self.is_exhausted = False  # whether the pass has ended, but the script still trains on batches fetched ahead
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
