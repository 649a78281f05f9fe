"""Model statistics: parameters, training FLOPs per sample and memory.

Except for the counts, they come from one training step on torch's meta device, which computes nothing. Values that
the meta device or an older torch cannot provide are absent.
"""

import warnings

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.device import map_tensors
from epochmeter.worker.models import operators
from epochmeter.worker.models.operators import FlopCounterMode, OperatorCounter, storage_of, total_bytes
from epochmeter.worker.models.shape_check import on_meta

FULL_PRECISIONS = ("fp32", "tf32")  # precisions whose activations have the same size on the meta device


def compute_model_stats(model, job, task, device):
    """Return a model's statistics by metric name in `model/`: counts, FLOPs and bytes of one device with its batch.

    Two entries are no metrics: the `operators` with FLOPs, and `conventions`, the FLOPs per sample by each convention.
    """
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
            stats.update(_step_stats(on_meta(model).train(), job, task, device))
    except Exception:  # the model uses an operation that the meta device lacks
        pass
    tokens = job["dataset"].get("length") if getattr(task, "unit", None) == "tokens" else None
    stats["conventions"] = operators.flops_by_convention(model, stats.get("flops_per_sample"), tokens)
    return stats


def _step_stats(model, job, task, device):
    batch = job["batch"]

    def expand(tensor):
        return torch.empty((batch, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")

    inputs, targets = map_tensors(expand, task.example(job["dataset"], 1, torch.Generator()))
    optimizer = instantiate_spec(job["optimizer"], model.parameters())
    owned = {storage_of(tensor)._cdata for tensor in [*model.parameters(), *model.buffers()]}
    saved = {}  # by the identity of the storage, as the meta device has no addresses

    def keep(tensor):
        saved[storage_of(tensor)._cdata] = tensor  # kept alive, so that its storage is not reused
        return tensor

    with OperatorCounter(operators.cache_bytes(device)) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = task.loss(model(inputs), targets)
        counter.is_backward = True
        loss.backward()
        counter.is_backward = False
        flops, calls = counter.flops, counter.calls
        optimizer.step()
    state = [value for entries in optimizer.state.values() for value in entries.values()]
    stats = {"optimizer_bytes": total_bytes(value for value in state if isinstance(value, torch.Tensor))}
    if FlopCounterMode is not None:
        stats["flops_per_sample"] = flops / batch
        stats["recomputed_flops_per_sample"] = counter.recomputed_flops / batch
        stats["operator_calls"] = counter.calls if device.type == "cpu" else calls  # on a GPU, optimizers need few
        stats["operators"] = counter.operators
    if job["precision"] in FULL_PRECISIONS:
        activations = [storage_of(tensor).nbytes() for key, tensor in saved.items() if key not in owned]
        stats["activation_bytes"] = sum(activations)
        if FlopCounterMode is not None:
            stats["operator_bytes_per_sample"] = counter.bytes / batch
            stats["uncached_bytes_per_sample"] = counter.uncached_bytes / batch
    return stats
