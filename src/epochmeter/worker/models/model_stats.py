"""Model statistics: parameters, training FLOPs per sample and memory.

Except for the counts, they come from one training step on torch's meta device, which computes nothing. Values that
the meta device or an older torch cannot provide are absent.
"""

import collections
import warnings
from typing import TYPE_CHECKING, Any, Counter, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.shared.types import Document
from epochmeter.worker.device import cache_bytes, map_tensors
from epochmeter.worker.models.shape_check import on_meta
from epochmeter.worker.precision import NullContext

try:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten
    from torch.utils.flop_counter import FlopCounterMode, conv_flop_count
except ImportError:
    FlopCounterMode, TorchDispatchMode = None, NullContext  # type: ignore[assignment, misc]  # in an older torch

if TYPE_CHECKING:
    from epochmeter.worker.tasks import Task

FULL_PRECISIONS = ("fp32", "tf32")  # precisions whose activations have the same size on the meta device


class ModelStats(NamedTuple):
    """Statistics of a model on one device with its batch.

    Attributes:
        metrics: Counts, FLOPs and bytes by metric name in `model/`.
        operators: Calls, FLOPs and bytes by the name of an operator with FLOPs; None if they were not counted.
        conventions: FLOPs per sample by the name of a convention.
    """

    metrics: Dict[str, float]
    operators: Optional[Mapping[str, Mapping[str, int]]]
    conventions: Dict[str, float]


def compute_model_stats(model: torch.nn.Module, job: Document, task: "Task", device: torch.device) -> ModelStats:
    """Return the statistics of a model, without those that cannot be determined."""
    parameters = list(model.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    metrics: Dict[str, float] = {
        "parameters": sum(parameter.numel() for parameter in trainable),
        "weight_bytes": total_bytes(parameters + list(model.buffers())),
        "gradient_bytes": total_bytes(trainable),
    }
    operators = None
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the real step raises the same warnings
            of_step, operators = _step_stats(on_meta(model).train(), job, task, device)
        metrics.update(of_step)
    except Exception:  # the model uses an operation that the meta device lacks
        pass
    tokens = job["dataset"].get("length") if getattr(task, "unit", None) == "tokens" else None
    return ModelStats(metrics, operators, flops_by_convention(model, metrics.get("flops_per_sample"), tokens))


def _step_stats(
    model: torch.nn.Module, job: Document, task: "Task", device: torch.device
) -> Tuple[Dict[str, float], Optional[Mapping[str, Mapping[str, int]]]]:
    """Return metrics and operators of one training step on the meta device."""
    batch = job["batch"]

    def expand(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty((batch, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")

    inputs, targets = map_tensors(expand, task.example(job["dataset"], 1, torch.Generator()))
    optimizer: torch.optim.Optimizer = instantiate_spec(job["optimizer"], model.parameters())
    owned = {storage_of(tensor)._cdata for tensor in [*model.parameters(), *model.buffers()]}
    saved: Dict[int, torch.Tensor] = {}  # by the identity of the storage, as the meta device has no addresses

    def keep(tensor: torch.Tensor) -> torch.Tensor:
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
    tensors = [value for value in state if isinstance(value, torch.Tensor)]
    stats: Dict[str, float] = {"optimizer_bytes": total_bytes(tensors)}
    operators = None
    counts = {name: passes[name] for name in ("flops", "recomputed_flops")}
    if job["precision"] in FULL_PRECISIONS:
        stats["activation_bytes"] = sum(storage_of(saved[key]).nbytes() for key in saved.keys() - owned)
        counts.update({name: counter.totals[name] for name in ("operator_bytes", "uncached_bytes")})
    if FlopCounterMode is not None:
        with_optimizer = device.type == "cpu"  # on a GPU, the optimizer needs few calls
        stats["operator_calls"] = counter.totals["calls"] if with_optimizer else passes["calls"]
        operators = counter.operators
        stats.update({name + "_per_sample": count / batch for name, count in counts.items()})
    return stats, operators


def flop_counter() -> Any:
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

    def __init__(self, flop_counts: "FlopCounterMode", cache_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self._flop_counts, self._cache_bytes = flop_counts, cache_bytes
        self.totals: Counter[str] = collections.Counter()
        self.operators: Dict[str, Counter[str]] = {}
        self.is_backward = False

    def __torch_dispatch__(
        self,
        function: Any,
        types: object,
        arguments: Tuple[Any, ...] = (),
        keywords: Optional[Dict[str, object]] = None,
    ) -> Any:
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
            counts = self.operators.setdefault(function._schema.name, collections.Counter())
            counts.update(calls=1, flops=flops, bytes=used)
        return result


def convolution_backward_flops(
    out: List[int],
    inputs: List[int],
    weights: List[int],
    bias: object,
    stride: object,
    padding: object,
    dilation: object,
    transposed: bool,
    *rest: Any,
    **options: object,
) -> int:
    """Return the FLOPs of a convolution's backward pass, with groups, which torch's own formula ignores."""
    output_mask = rest[2]  # which gradients of inputs, weights and bias; after the output padding and the groups
    gradients: int = output_mask[0] + output_mask[1]
    return conv_flop_count(inputs, weights, out, transposed) * gradients


def flops_by_convention(model: torch.nn.Module, counted: Optional[float], tokens: Optional[int]) -> Dict[str, float]:
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
    attention: Optional[Mapping[str, int]] = getattr(model, "attention", None)
    if attention:
        layers, width, words = (attention[key] for key in ("layers", "width", "words"))
        factor = 1 + tokens / (6 * width) + words / (12 * layers * width)  # attention and output layer
        conventions["megatron"] = 72.0 * tokens * layers * width**2 * factor
        conventions["torchtitan"] = conventions["6n"] + 12.0 * layers * width * tokens**2
    return conventions


def total_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_of(tensor: torch.Tensor) -> "torch.UntypedStorage":
    """Return a tensor's storage, in any version of torch."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
