"""Number formats to compute in: what a device cannot do is an error that says so, before anything is measured."""

import torch

AMPERE = (8, 0)
"""The first compute capability whose tensor cores take TF32 and bfloat16."""


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
    """What computes in the format `name` on `device`: (a context for the forward pass, a scaler of gradients).

    `fp32` is that throughout, also in convolutions, for which torch lets cuDNN take TF32 by default. `bf16` and `fp16`
    are torch's autocast: weights stay fp32. ValueError for what the device cannot do.
    """
    there = formats(device)
    if name not in there:
        raise ValueError(
            "precision={} asked for, and {} computes in {}. Set precision to one of these.".format(
                name, _title(device), ", ".join(there)
            )
        )
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
    if name in ("fp32", "tf32"):
        return AsIs(), Plain()
    autocast = torch.autocast(device.type, dtype={"bf16": torch.bfloat16, "fp16": torch.float16}[name])
    # Half precision's gradients run out of range at the small end; bfloat16 has the range of fp32.
    return autocast, torch.cuda.amp.GradScaler() if name == "fp16" else Plain()


def formats(device):
    """The formats that a device computes in."""
    if device.type == "cpu":
        return ["fp32", "bf16"]
    if torch.version.hip:
        return ["fp32", "bf16", "fp16"]
    return ["fp32", "tf32", "bf16", "fp16"] if torch.cuda.get_device_capability(device) >= AMPERE else ["fp32", "fp16"]


def _title(device):
    return "a CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
