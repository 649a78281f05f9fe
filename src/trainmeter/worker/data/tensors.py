"""Ready batches: tensors of a dataset's shape, made beforehand, so that nothing is read and nothing preprocessed."""

import torch

MOST_BYTES = 64 << 20


class ReadyBatches:
    """As many batches as a loader would give for `count` samples, the last one smaller where its would be.

    A few distinct ones are made, by the job's seed and within 64 MiB, and given in turn; labels are below the
    dataset's `classes`.
    """

    def __init__(self, count, job, pinned):
        dataset, self.count, self.batch = job["dataset"], count, job["batch"]
        shape = (min(self.batch, count), dataset["channels"], dataset["size"], dataset["size"])
        numbers = torch.Generator().manual_seed(job["seed"])
        distinct = MOST_BYTES // max(1, 4 * shape[0] * shape[1] * shape[2] * shape[3])
        self._made = [
            tuple(tensor.pin_memory() if pinned else tensor for tensor in tensors)
            for tensors in (
                (torch.randn(shape, generator=numbers),
                 torch.randint(dataset["classes"], shape[:1], generator=numbers))
                for _ in range(max(1, min(len(self), distinct)))
            )
        ]  # fmt: skip

    def __len__(self):
        return -(-self.count // self.batch)

    def __iter__(self):
        for step in range(len(self)):
            inputs, targets = self._made[step % len(self._made)]
            size = min(self.batch, self.count - step * self.batch)
            yield [inputs[:size], targets[:size]]

    bad = ()

    def parts(self, rows):
        """Nothing was read and nothing preprocessed: no loader has anything to tell."""
        return {}
