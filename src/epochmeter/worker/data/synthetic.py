"""Synthetic batches: preallocated random tensors in a dataset's shape, without storage or preprocessing."""

import torch

from epochmeter.worker.device import map_tensors

MAX_BYTES = 64 << 20  # memory limit for the distinct batches


class SyntheticBatches:
    """As many batches as a DataLoader has for `count` samples: a few random ones, within 64 MiB, repeated in turn.

    Nothing is loaded, so that the interface of `TimedLoader` returns no times, no metrics and no state.
    """

    bad = ()

    def __init__(self, count, job, task, pinned, drop_last=False):
        self.count, self._batch = count, job["batch"]
        self._steps = count // self._batch if drop_last else -(-count // self._batch)
        generator, sizes, self._batches = torch.Generator().manual_seed(job["seed"]), [], []
        while not self._batches or len(self._batches) < min(self._steps, MAX_BYTES // max(1, sum(sizes))):
            batch = task.example(job["dataset"], min(self._batch, count), generator)
            self._batches.append(map_tensors(torch.Tensor.pin_memory, batch, "pin_memory") if pinned else batch)
            if not sizes:
                map_tensors(lambda tensor: sizes.append(tensor.numel() * tensor.element_size()), batch)

    def __len__(self):
        return self._steps

    def __iter__(self):
        for step in range(self._steps):
            size = min(self._batch, self.count - step * self._batch)
            yield map_tensors(lambda tensor: tensor[:size], self._batches[step % len(self._batches)])  # noqa: B023

    def state(self):
        return []

    def load(self, state):
        pass

    def load_times(self):
        """Return an empty list: no batch is loaded."""
        return []

    def parts(self, rows):
        return {}
