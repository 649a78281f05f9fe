"""Operators of a training step: calls, FLOPs, and bytes of inputs and outputs, counted on torch's meta device."""

import torch

from epochmeter.worker.precision import NullContext

try:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten
    from torch.utils.flop_counter import FlopCounterMode, conv_flop_count
except ImportError:
    FlopCounterMode, TorchDispatchMode = None, NullContext  # type: ignore


class OperatorCounter(TorchDispatchMode):
    """Count the operators that run in the context; nothing without torch's `FlopCounterMode`.

    Attributes:
        flops: FLOPs of all operators; `recomputed_flops` are the part of forward operators that run again in the
            backward pass, as by checkpointing of activations.
        bytes: Bytes of inputs and outputs of all operators except views; `uncached_bytes` are the part of operators
            whose tensors do not fit into the device's last cache of `cache_bytes`.
        calls: Number of operators except views.
        operators: Calls, FLOPs and bytes by the name of an operator with FLOPs.
    """

    def __init__(self, cache_bytes):
        super().__init__()
        self._counter = NullContext()
        if FlopCounterMode is not None:
            custom = {torch.ops.aten.convolution_backward: convolution_backward_flops}
            self._counter = FlopCounterMode(display=False, custom_mapping=custom)
        self._cache_bytes = cache_bytes
        self.operators = {}
        self.is_backward = False
        self.flops = self.recomputed_flops = self.bytes = self.uncached_bytes = self.calls = 0

    def __enter__(self):
        self._counter.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        self._counter.__exit__(*error)

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        before = self._counter.get_total_flops()
        result = function(*arguments, **(keywords or {}))
        flops = self._counter.get_total_flops() - before
        inputs, outputs = _tensors([arguments, keywords or {}]), _tensors(result)
        shared = {storage_of(tensor)._cdata for tensor in inputs} & {storage_of(tensor)._cdata for tensor in outputs}
        if not flops and (not outputs or (shared and not function._schema.is_mutable)):
            return result  # a view
        self.flops += flops
        if self.is_backward and torch.is_grad_enabled():  # as only the forward pass is
            self.recomputed_flops += flops
        used = total_bytes(inputs) + total_bytes(outputs)
        self.bytes += used
        self.uncached_bytes += used if used > self._cache_bytes else 0
        self.calls += 1
        if flops:
            entry = self.operators.setdefault(function._schema.name, {"calls": 0, "flops": 0, "bytes": 0})
            entry["calls"] += 1
            entry["flops"] += flops
            entry["bytes"] += used
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
        share = 1 + tokens / (6 * width) + words / (12 * layers * width)
        conventions["megatron"] = 72.0 * tokens * layers * width**2 * share
        conventions["torchtitan"] = conventions["6n"] + 12.0 * layers * width * tokens**2
    return conventions


def cache_bytes(device):
    """Return the size of a device's last cache; 0, so that all bytes count as uncached, if it is not known."""
    if device.type == "cuda":
        return getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size") as file:
            return int(file.read().strip().rstrip("K")) * 1024
    except (OSError, ValueError):
        return 0


def _tensors(values):
    """Return the tensors in nested lists, tuples and dicts."""
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


def total_bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_of(tensor):
    """Return a tensor's storage, in any version of torch."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
