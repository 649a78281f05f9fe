"""What a model is: its parameters, and what learning from a batch computes and keeps.

All but the counts is found by one step of learning on torch's meta device, which computes nothing. What cannot be run
there, or counted by an older torch, is absent.
"""

import warnings

import torch

from epochmeter.shared.instantiate import build
from epochmeter.worker.device import each
from epochmeter.worker.models.shape_check import on_meta

try:
    from torch.utils.flop_counter import FlopCounterMode, conv_flop_count
except ImportError:
    FlopCounterMode = None  # type: ignore

FULL = ("fp32", "tf32")
"""Precisions in which a batch is kept as it is on the meta device."""


def facts(model, job, task):
    """Counts and bytes, by the names of the metrics in `model/`; memory is that of one device and its batch."""
    parameters = list(model.parameters())
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    known = {
        "parameters": sum(parameter.numel() for parameter in learned),
        "weight_bytes": size(parameters + list(model.buffers())),
        "gradient_bytes": size(learned),
    }
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what there is to warn of, the real step does
            known.update(step(on_meta(model).train(), job, task))
    except Exception:  # whatever a model does that cannot be done there
        pass
    return known


def step(model, job, task):
    """What one step of learning computes and keeps; the model and all that it does are on the meta device."""
    sample = task.example(job["dataset"], 1, torch.Generator())
    inputs, targets = each(lambda tensor: batched(tensor, job["batch"]), sample)
    optimizer = build(job["optimizer"], model.parameters())
    owned = {storage(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    kept = {}

    def keep(tensor):
        kept[storage(tensor)] = tensor  # held, so that no other one takes its place
        return tensor

    def learn():
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = task.loss(model(inputs), targets)
        loss.backward()

    flops = counted(learn)
    optimizer.step()
    found = {"optimizer_bytes": size(state(optimizer))}
    if flops is not None:
        found["flops_per_sample"] = flops / job["batch"]
    if job["precision"] in FULL:
        found["activation_bytes"] = sum(storage_bytes(tensor) for place, tensor in kept.items() if place not in owned)
    return found


def counted(act):
    """The floating-point operations of what `act` does; None where this torch does not count them."""
    if FlopCounterMode is None:
        act()
        return None
    ours = {torch.ops.aten.convolution_backward: convolved_back}
    with FlopCounterMode(display=False, custom_mapping=ours) as counter:
        act()
    return counter.get_total_flops()


def convolved_back(out, inputs, weights, bias, stride, padding, dilation, transposed, *rest, **how):
    """A convolution's operations on the way back, from shapes: for each gradient as many as forward.

    torch's own count knows of no groups in the gradient of the weights: of a MobileNet it makes nine times too many.
    """
    wanted = rest[2]  # after the output's padding and the groups: gradients of inputs, of weights, of the bias
    return conv_flop_count(inputs, weights, out, transposed) * (wanted[0] + wanted[1])


def batched(sample, count):
    """A batch of so many like a batch of one, on the meta device."""
    return torch.empty((count, *sample.shape[1:]), dtype=sample.dtype, device="meta")


def state(optimizer):
    """The tensors that an optimizer keeps from step to step."""
    return [value for kept in optimizer.state.values() for value in kept.values() if isinstance(value, torch.Tensor)]


def size(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage(tensor):
    """What tells one piece of memory from another; there are no addresses on the meta device."""
    return (tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage())._cdata


def storage_bytes(tensor):
    return tensor.untyped_storage().nbytes() if hasattr(tensor, "untyped_storage") else size([tensor])
