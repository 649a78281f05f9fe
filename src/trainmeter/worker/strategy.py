"""How many devices train together, and how: `wrap` the model, `shard` the samples.

Beside these two a strategy tells ranks apart and lets them speak to each other between windows, never within.
"""

from torch.utils.data import RandomSampler, SequentialSampler

from trainmeter.worker.device import accelerator


class Single:
    """One process on one device."""

    rank = 0

    def __init__(self, ranks):
        self.ranks = ranks

    def device(self, name):
        """The torch device of this rank, of the kind `name` (auto, cpu, cuda)."""
        return accelerator(name)

    def wrap(self, model, device):
        """The model as it is trained: what it is evaluated as stays the model itself."""
        return model

    def shard(self, samples, shuffled):
        """The order of this rank's samples: the generator `shuffled` decides it, or, None, it is their own."""
        return SequentialSampler(samples) if shuffled is None else RandomSampler(samples, generator=shuffled)

    def begin(self, epoch):
        """An epoch is about to begin."""

    def gather(self, told):
        """What each rank tells, in order."""
        return [told]

    def share(self, told):
        """What the first rank tells, to all; none goes on before all have come here."""
        return told
