"""The window of a script that is open: its counts so far, and whether it is complete."""

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
        samples: None if a batch has no length.
        training_steps: Optimizer steps; also backward passes before the script's first optimizer step.
        flaw: Why the window has to be discarded; None if it need not.
        is_exhausted: Whether the pass has ended, but the script still trains on batches that it fetched ahead.
    """

    def __init__(self, device, loader=None, limit=None, length=None, name=None, is_explicit=False):
        self.device = device
        self.loader = loader or (lambda: None)
        self.limit = limit
        self.length = length
        self.name = name
        self.is_explicit = is_explicit
        self.batches = self.samples = self.training_steps = 0
        self.learning_rate = self.flaw = None
        self.has_forward = self.is_exhausted = False
        self.has_gradients = torch.is_grad_enabled()
        self.steps = None  # iterator over the steps of a script without a DataLoader
        self._steps_of_batch = self._most_of_batch = 0
        self._is_done = False

    def is_complete(self):
        """Return whether the loader has delivered its last batch."""
        return self.is_exhausted or (self.length is not None and self.batches >= self.length)

    def add(self, batch):
        """Count a batch, and return it unchanged."""
        if self._is_done:
            raise RuntimeError("the loader delivers more batches than its length")
        self.batches += 1
        self._steps_of_batch = 0
        if self.samples is not None:
            try:
                self.samples += sample_count(batch)
            except Exception:  # a batch may be any object
                self.samples = None
        return batch

    def add_step(self, optimizer):
        """Count an optimizer step; return whether it is the first that may end the work on the last batch."""
        self.training_steps += 1
        self._steps_of_batch += 1
        self._most_of_batch = max(self._most_of_batch, self._steps_of_batch)
        self.learning_rate = optimizer.param_groups[0].get("lr")
        is_first, self._is_done = not self._is_done, self.is_complete() and self._steps_of_batch >= self._most_of_batch
        return is_first and self._is_done
