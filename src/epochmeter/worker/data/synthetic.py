"""Synthetic batches: preallocated random tensors in a dataset's shape, without storage or preprocessing."""

import torch

from epochmeter.worker.device import map_tensors

MAX_BYTES = 64 << 20
"""Memory limit for the distinct batches."""


class SyntheticBatches:
    """Yield as many synthetic batches as a DataLoader would for `count` samples, with the same size of the last batch.

    A few distinct batches, within 64 MiB, are drawn by the task with the run's seed and repeated in turn.
    """

    def __init__(self, count, job, task, pinned, drop_last=False):
        self.count, self.batch, self.drop_last = count, job["batch"], drop_last
        self._max_batches = None
        numbers = torch.Generator().manual_seed(job["seed"])
        size = min(self.batch, count)
        self._batches = []
        while len(self._batches) < min(len(self), MAX_BYTES // max(1, self._bytes())) or not self._batches:
            batch = task.example(job["dataset"], size, numbers)
            self._batches.append(map_tensors(torch.Tensor.pin_memory, batch, "pin_memory") if pinned else batch)

    def __len__(self):
        steps = self.count // self.batch if self.drop_last else -(-self.count // self.batch)
        return steps if self._max_batches is None else min(steps, self._max_batches)

    def limit(self, steps):
        """Limit passes to this many steps; None: no limit."""
        self._max_batches = steps

    def __iter__(self):
        for step in range(len(self)):
            size = min(self.batch, self.count - step * self.batch)
            yield map_tensors(lambda tensor: tensor[:size], self._batches[step % len(self._batches)])  # noqa: B023

    def _bytes(self):
        """Return the size of one batch in bytes; 0 before the first is drawn."""
        sizes = []
        map_tensors(lambda tensor: sizes.append(tensor.numel() * tensor.element_size()), self._batches[:1])
        return sum(sizes)

    bad = ()

    def state(self):
        """Return no state: nothing is drawn after construction."""
        return []

    def load(self, state):
        pass

    def loads(self):
        """Return no times: nothing is loaded."""
        return []

    def parts(self, rows):
        """Return no metrics: nothing was read or preprocessed."""
        return {}
