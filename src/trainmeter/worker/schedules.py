"""Schedules of the learning rate that torch does not have; each steps once an epoch."""


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
