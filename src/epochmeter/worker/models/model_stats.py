"""Model statistics: parameters, training FLOPs per sample and memory.

Except for the counts, they come from one training step on torch's meta device, which computes nothing. Values that
the meta device or an older torch cannot provide are absent.
"""

import warnings

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.device import map_tensors
from epochmeter.worker.models.shape_check import on_meta

try:
    from torch.utils.flop_counter import FlopCounterMode, conv_flop_count
except ImportError:
    FlopCounterMode = None  # type: ignore

FULL_PRECISIONS = ("fp32", "tf32")
"""Precisions whose activations have the same size on the meta device."""


def compute_model_stats(model, job, task):
    """Return a model's statistics by metric name in `model/`: counts, FLOPs and bytes of one device with its batch."""
    parameters = list(model.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    stats = {
        "parameters": sum(parameter.numel() for parameter in trainable),
        "weight_bytes": total_bytes(parameters + list(model.buffers())),
        "gradient_bytes": total_bytes(trainable),
    }
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the real step raises the same warnings
            stats.update(step_stats(on_meta(model).train(), job, task))
    except Exception:  # the model uses an operation that the meta device lacks
        pass
    return stats


def step_stats(model, job, task):
    """Return FLOPs and bytes of one training step; the model and the step are on the meta device."""
    sample = task.example(job["dataset"], 1, torch.Generator())

    def expand(tensor):
        return torch.empty((job["batch"], *tensor.shape[1:]), dtype=tensor.dtype, device="meta")

    inputs, targets = map_tensors(expand, sample)
    optimizer = instantiate_spec(job["optimizer"], model.parameters())
    owned = {storage_of(tensor)._cdata for tensor in [*model.parameters(), *model.buffers()]}
    saved = {}  # by the identity of the storage, as the meta device has no addresses

    def keep(tensor):
        saved[storage_of(tensor)._cdata] = tensor  # kept alive, so that its storage is not reused
        return tensor

    def train_step():
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = task.loss(model(inputs), targets)
        loss.backward()

    flops = count_flops(train_step)
    optimizer.step()
    kept = [value for entries in optimizer.state.values() for value in entries.values()]
    stats = {"optimizer_bytes": total_bytes(value for value in kept if isinstance(value, torch.Tensor))}
    if flops is not None:
        stats["flops_per_sample"] = flops / job["batch"]
    if job["precision"] in FULL_PRECISIONS:
        stats["activation_bytes"] = sum(
            storage_of(tensor).nbytes() for key, tensor in saved.items() if key not in owned
        )
    return stats


def count_flops(act):
    """Return the floating-point operations of a call of `act`; None if this torch cannot count them."""
    if FlopCounterMode is None:
        act()
        return None
    custom = {torch.ops.aten.convolution_backward: convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=custom) as counter:
        act()
    return counter.get_total_flops()


def convolution_backward_flops(out, inputs, weights, bias, stride, padding, dilation, transposed, *rest, **options):
    """Return the FLOPs of a convolution's backward pass: for each gradient as many as in the forward pass.

    torch's own formula ignores groups in the gradient of the weights: it overestimates a MobileNet nine times.
    """
    output_mask = rest[2]  # which gradients of inputs, weights and bias; after the output padding and the groups
    return conv_flop_count(inputs, weights, out, transposed) * (output_mask[0] + output_mask[1])


def total_bytes(tensors):
    """Return the size of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_of(tensor):
    """Return a tensor's storage, in any version of torch."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
