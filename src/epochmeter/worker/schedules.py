"""Learning rate scaling with the batch size, and a constant schedule. Other schedules are torch's."""

import math


class Constant:
    """A schedule that leaves the learning rate unchanged."""

    def __init__(self, optimizer):
        pass

    def step(self):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def scaled_optimizer(job, ranks):
    """Return the optimizer's specification with its learning rate scaled to the global batch size, by `lr_scaling`.

    `linear`: Goyal et al., Accurate, large minibatch SGD, 2017; `sqrt`: Krizhevsky, One weird trick, 2014.
    """
    optimizer, ratio = job["optimizer"], job["batch"] * ranks / job["lr_batch"]
    scale = {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(job["lr_scaling"])
    return dict(optimizer, lr=optimizer["lr"] * scale) if scale else optimizer
