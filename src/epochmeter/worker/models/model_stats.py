"""Model statistics: parameters, training FLOPs per sample and memory.

Except for the counts, they come from one training step on torch's meta device, which computes nothing. Values that
the meta device or an older torch cannot provide are absent.
"""

import collections
import warnings

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.device import map_tensors
from epochmeter.worker.models.shape_check import on_meta
from epochmeter.worker.precision import NullContext

try:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten
    from torch.utils.flop_counter import FlopCounterMode, conv_flop_count
except ImportError:
    FlopCounterMode, TorchDispatchMode = None, NullContext  # type: ignore

FULL_PRECISIONS = ("fp32", "tf32")  # precisions whose activations have the same size on the meta device


def compute_model_stats(model, job, task, device):
    """Return a model's statistics by metric name in `model/`: counts, FLOPs and bytes of one device with its batch.

    Two entries are not metrics: the `operators` with FLOPs, and `conventions`, the FLOPs per sample by each convention.
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
    stats["conventions"] = flops_by_convention(model, stats.get("flops_per_sample"), tokens)
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

    with flop_counter() as flop_counts, OperatorCounter(flop_counts, cache_bytes(device)) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = task.loss(model(inputs), targets)
        counter.is_backward = True
        loss.backward()
        counter.is_backward = False
        passes = counter.totals.copy()
        optimizer.step()
    state = [value for entries in optimizer.state.values() for value in entries.values()]
    stats = {"optimizer_bytes": total_bytes(value for value in state if isinstance(value, torch.Tensor))}
    counts = {name: passes[name] for name in ("flops", "recomputed_flops")}
    if job["precision"] in FULL_PRECISIONS:
        stats["activation_bytes"] = sum(storage_of(saved[key]).nbytes() for key in saved.keys() - owned)
        counts.update({name: counter.totals[name] for name in ("operator_bytes", "uncached_bytes")})
    if FlopCounterMode is not None:
        with_optimizer = device.type == "cpu"  # on a GPU, the optimizer needs few calls
        stats["operator_calls"] = counter.totals["calls"] if with_optimizer else passes["calls"]
        stats["operators"] = counter.operators
        stats.update({name + "_per_sample": count / batch for name, count in counts.items()})
    return stats


def flop_counter():
    """Return torch's counter of FLOPs, which counts while its context is open; a null context in older versions."""
    if FlopCounterMode is None:
        return NullContext()
    return FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: convolution_backward_flops}
    )


class OperatorCounter(TorchDispatchMode):
    """Count the operators that run in the context, except views, within that of a `flop_counter`.

    Attributes:
        totals: `calls`, `flops`, and `operator_bytes` of inputs and outputs. `uncached_bytes` are those of operators
            whose tensors exceed the device's last-level cache of `cache_bytes`. `recomputed_flops` are the FLOPs of
            forward operators that run again in the backward pass, as with activation checkpointing.
        operators: Calls, FLOPs and bytes by the name of an operator with FLOPs.
    """

    def __init__(self, flop_counts, cache_bytes):
        super().__init__()
        self._flop_counts, self._cache_bytes = flop_counts, cache_bytes
        self.totals, self.operators = collections.Counter(), {}
        self.is_backward = False

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        before = self._flop_counts.get_total_flops()
        result = function(*arguments, **(keywords or {}))
        flops = self._flop_counts.get_total_flops() - before
        inputs, outputs = (
            [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]
            for values in ([arguments, keywords or {}], result)
        )
        shared = {storage_of(tensor)._cdata for tensor in inputs} & {storage_of(tensor)._cdata for tensor in outputs}
        if not flops and (not outputs or (shared and not function._schema.is_mutable)):
            return result  # a view
        used = total_bytes(inputs + outputs)
        self.totals.update(calls=1, flops=flops, operator_bytes=used)
        if used > self._cache_bytes:
            self.totals["uncached_bytes"] += used
        if self.is_backward and torch.is_grad_enabled():  # only forward operators enable gradients
            self.totals["recomputed_flops"] += flops
        if flops:
            entry = self.operators.setdefault(function._schema.name, collections.Counter())
            entry.update(calls=1, flops=flops, bytes=used)
        return result


def convolution_backward_flops(out, inputs, weights, bias, stride, padding, dilation, transposed, *rest, **options):
    """Return the FLOPs of a convolution's backward pass, with groups, which torch's own formula ignores."""
    output_mask = rest[2]  # which gradients of inputs, weights and bias; after the output padding and the groups
    return conv_flop_count(inputs, weights, out, transposed) * (output_mask[0] + output_mask[1])


def flops_by_convention(model, counted, tokens):
    """Return training FLOPs per sample by the name of a convention; only `counted` without tokens.

    `6n` is that of Hugging Face's Trainer: J. Kaplan et al., Scaling laws for neural language models, 2020, without
    embeddings. `megatron` is D. Narayanan et al., Efficient large-scale language model training on GPU clusters using
    Megatron-LM, SC21, equation 3 without recomputation. `torchtitan` adds attention to 6N: A. Chowdhery et al., PaLM,
    2022, appendix B. Both need the model's attribute `attention`, with the keys `layers`, `width` and `words`.
    """
    conventions = {} if counted is None else {"counted": counted}
    if tokens is None:
        return conventions
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    weights = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in embeddings)
    conventions["6n"] = 6.0 * weights * tokens
    if getattr(model, "attention", None):
        layers, width, words = (model.attention[key] for key in ("layers", "width", "words"))
        factor = 1 + tokens / (6 * width) + words / (12 * layers * width)  # attention and output layer
        conventions["megatron"] = 72.0 * tokens * layers * width**2 * factor
        conventions["torchtitan"] = conventions["6n"] + 12.0 * layers * width * tokens**2
    return conventions


def cache_bytes(device):
    """Return the size of a device's last-level cache; 0 if unknown, so that all bytes count as uncached."""
    if device.type == "cuda":
        return getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size") as file:
            return int(file.read().strip().rstrip("K")) * 1024
    except (OSError, ValueError):
        return 0


def total_bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_of(tensor):
    """Return a tensor's storage, in any version of torch."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
