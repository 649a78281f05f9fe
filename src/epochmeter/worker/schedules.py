"""The learning rate: as a job's batch has it, and over its epochs. Schedules that torch has are torch's."""

import math

SCALES = {"none": lambda ratio: 1, "linear": lambda ratio: ratio, "sqrt": math.sqrt}


class Constant:
    """The optimizer's learning rate, left as it is."""

    def __init__(self, optimizer):
        pass

    def step(self):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def scaled(job, ranks):
    """The job's optimizer with its learning rate for the batch of all ranks together, as `lr_scaling` says.

    `linear`: Goyal et al., Accurate, large minibatch SGD, 2017; `sqrt`: Krizhevsky, One weird trick for parallelizing
    convolutional neural networks, 2014, which keeps the variance of a step.
    """
    optimizer = job["optimizer"]
    if job["lr_scaling"] == "none":
        return optimizer
    ratio = job["batch"] * ranks / job["lr_batch"]
    return dict(optimizer, lr=optimizer["lr"] * SCALES[job["lr_scaling"]](ratio))
