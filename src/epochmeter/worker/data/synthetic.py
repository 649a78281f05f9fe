"""Ready batches: tensors of a dataset's shape, made beforehand, so that nothing is read and nothing preprocessed."""

import torch

from epochmeter.worker.data.timed_dataset import sizes
from epochmeter.worker.device import each

MOST_BYTES = 64 << 20


class ReadyBatches:
    """As many batches as a loader would give for `count` samples, the last one smaller or left out where its would be.

    A few distinct ones are made by the task, with the job's seed and within 64 MiB, and given in turn.
    """

    def __init__(self, count, job, task, pinned, drop_last=False):
        self.count, self.batch, self.drop_last = count, job["batch"], drop_last
        self._most = None
        numbers = torch.Generator().manual_seed(job["seed"])
        size = min(self.batch, count)
        self._made = []
        while len(self._made) < min(len(self), MOST_BYTES // max(1, self._bytes())) or not self._made:
            made = task.example(job["dataset"], size, numbers)
            self._made.append(each(torch.Tensor.pin_memory, made, "pin_memory") if pinned else made)

    def __len__(self):
        whole = self.count // self.batch if self.drop_last else -(-self.count // self.batch)
        return whole if self._most is None else min(whole, self._most)

    def cut(self, steps):
        """Has passes end after so many steps; None: with the samples."""
        self._most = steps

    @property
    def sizes(self):
        return sizes(self.count, self.batch, self.drop_last)

    def __iter__(self):
        for step in range(len(self)):
            size = min(self.batch, self.count - step * self.batch)
            yield each(lambda tensor: tensor[:size], self._made[step % len(self._made)])  # noqa: B023

    def _bytes(self):
        """Of one batch; nothing before there is one."""
        sizes = []
        each(lambda tensor: sizes.append(tensor.numel() * tensor.element_size()), self._made[:1])
        return sum(sizes)

    bad = ()

    def state(self):
        """Nothing is drawn once the batches are made."""
        return []

    def load(self, state):
        pass

    def parts(self, rows):
        """Nothing was read and nothing preprocessed: no loader has anything to tell."""
        return {}
