"""The operators of one training step, as torch's execution trace observer has written them, and their FLOPs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochmeter.shared.record_files import parse_json, read_bytes
from epochmeter.trace.flops import FORMULAS, is_uncounted

THREAD = "epochmeter.thread"  # of agent/operators.py
MAX_BYTES = 1 << 29
NODE = "autograd::engine::evaluate_function: "  # begin of the name of a node of the backward pass
GENERATED = "GeneratedBackwardFor_"  # likewise of an operator of `torch.library.custom_op`, which is not listed itself
HEADS = "[pytorch|profiler|execution_trace|"  # likewise of the entries of a process and of a thread
COMPILED = ("CompiledFunction", "Torch-Compiled Region", "TorchDynamo Cache Lookup", "## Call CompiledFxGraph")
COMPILED_KERNELS, OTHER_THREADS = "kernels of torch.compile", "operators of other threads"
TENSOR = "Tensor("  # begin of the type of a tensor
TORCH_LIBRARIES = frozenset({
    *("aten", "prim", "prims", "profiler", "autograd", "torch", "c10d", "_c10d_functional", "c10d_functional"),
    *("fsdp", "inductor", "higher_order", "debugprims", "_dtensor", "symm_mem", "static_runtime", "record_param_comms"),
})  # fmt: skip
"""Libraries of operators whose products are operators of `aten`, or which only move data."""
SAME = {"aten::_convolution": "aten::convolution"}
"""Operator -> one that calls it, and is counted in its place."""
COPIES = ("copy_", "fill_", "zero_", "clone", "_to_copy")
MOVES = frozenset(
    f"aten::{name}"
    for name in (
        *COPIES,
        *("empty", "empty_like", "empty_strided", "new_empty", "zeros", "zeros_like", "ones_like", "to", "contiguous"),
        *("view", "reshape", "_unsafe_view", "transpose", "permute", "t", "as_strided", "expand", "unsqueeze"),
        *("squeeze", "slice", "select", "narrow", "detach", "alias", "view_as", "split", "unbind", "chunk"),
        *("resolve_conj", "resolve_neg", "result_type", "item", "_local_scalar_dense", "lift_fresh", "set_", "detach_"),
        *("new_zeros", "full", "full_like", "new_full", "pin_memory", "is_pinned", "record_stream", "_reshape_alias"),
    )
)
"""Operators that compute nothing."""
MOVES_DATA = frozenset(f"aten::{name}" for name in COPIES)
ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::resize_")  # begins of their names
PRECISIONS = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}


class UnreadableError(Exception):
    """The file of operators cannot be used, with the reason."""


@dataclass(eq=False)
class Operator:
    """One call of an operator, or of another function that torch lists.

    Attributes:
        name: Such as `aten::mm`.
        enables_gradients: Whether it was called with gradients enabled, as in a forward pass.
        thread: Number of the thread.
        forward_thread: Of a node of the backward pass, the thread of its forward pass.
        schema: Its declaration; empty if it is no operator.
        inputs: `values`, `shapes` and `types`, one entry each.
        outputs: Likewise.
        parent: The call that it was a part of.
        flops: None if it has no formula, or has parts that have one.
        is_part: Whether it is a part of an operator with FLOPs.
        has_counted: Whether it has parts with FLOPs.
        has_computing: Whether it has parts that compute something.
        has_moving: Whether it has parts that move data.
    """

    name: str
    enables_gradients: bool
    thread: int
    forward_thread: int
    schema: str
    inputs: Mapping[str, Sequence[Any]]
    outputs: Mapping[str, Sequence[Any]]
    parent: "Operator | None" = None
    flops: int | None = None
    is_part: bool = False
    has_counted: bool = False
    has_computing: bool = False
    has_moving: bool = False

    @property
    def around(self) -> "Iterator[Operator]":
        """The calls that it was a part of, the innermost first."""
        outer = self.parent
        while outer is not None:
            yield outer
            outer = outer.parent

    @property
    def node(self) -> "Operator | None":
        """The node of the backward pass that called it; None in a forward pass."""
        inner = self
        for outer in self.around:
            if outer.name.startswith(NODE):
                return inner
            inner = outer
        return None

    @property
    def bytes(self) -> int:
        """Bytes of the tensors among its inputs and outputs, without those in lists."""
        return sum(value[3] * value[4] for values in (self.inputs, self.outputs) for value in tensors_of(values))

    @property
    def is_executed(self) -> bool:
        """Whether it computes or moves data itself: it is no view, does more than allocate, and calls no other one."""
        if self.is_part or not self.name.startswith("aten::") or self.name.startswith(ALLOCATIONS):
            return False
        if self.flops is None and (self.has_computing or self.has_moving):
            return False
        inputs, outputs = ({value[1] for value in tensors_of(values)} for values in (self.inputs, self.outputs))
        is_view = bool(inputs & outputs) and "!" not in self.schema
        return bool(outputs) and not is_view

    def is_of_thread(self, thread: int) -> bool:
        """Return whether it is a call of a thread, or of the backward pass of what that thread has computed."""
        return self.thread == thread or any(outer.forward_thread == thread for outer in self.around)


@dataclass
class CountedStep:
    """The FLOPs of one step.

    Attributes:
        flops: All FLOPs that were counted.
        recomputed: Those of forward operators that ran again in the backward pass.
        calls: Operators without views, and without those that only call others.
        bytes: Of their inputs and outputs.
        uncached_bytes: Bytes of the operators whose tensors exceed the last-level cache.
        operators: Calls, FLOPs and bytes by the name of an operator with FLOPs.
        not_counted: Calls by the name of what may have further FLOPs.
        precisions: FLOPs by numeric precision (None: another one), and by whether it was a convolution.
    """

    flops: int = 0
    recomputed: int = 0
    calls: int = 0
    bytes: int = 0
    uncached_bytes: int = 0
    operators: dict[str, dict[str, float]] = field(default_factory=dict)
    not_counted: Counter[str] = field(default_factory=Counter)
    precisions: Counter[tuple[str | None, bool]] = field(default_factory=Counter)


def count_step(path: Path, cache_bytes: int = 0) -> CountedStep:
    """Return the FLOPs of the step whose operators are in a file; UnreadableError, OSError or ValueError.

    `cache_bytes` is the size of the device's last-level cache.
    """
    operators = [*read_operators(path)]
    own = next((each.thread for each in operators if each.name == THREAD), None)
    if own is None:
        raise UnreadableError("the thread that trains is not listed")
    _evaluate(operators)
    step = CountedStep()
    for operator in operators:
        if operator.is_of_thread(own):
            _add(step, operator, cache_bytes)
        elif operator.flops:
            step.not_counted[OTHER_THREADS] += 1
    step.recomputed = _recomputed_flops([each for each in operators if each.is_of_thread(own)])
    return step


def read_operators(path: Path) -> Iterator[Operator]:
    """Yield the calls in a file in the order of their ends, each before the one that it was a part of.

    The file has them in this order, with numbers in the order of their begins. The parents that it states are wrong
    after an exception, by which activation checkpointing ends early.
    """
    document = parse_json(read_bytes(path, max_bytes=MAX_BYTES))
    ended: defaultdict[int, list[tuple[int, Operator]]] = defaultdict(list)  # by thread, of which no other was a part
    try:
        for entry in document["nodes"]:
            facts = {fact["name"]: fact["value"] for fact in entry["attrs"]}
            if entry["name"].startswith(HEADS):
                continue
            operator = Operator(
                entry["name"], facts["seq_id"] >= 0, facts["tid"], facts["fw_tid"], facts["op_schema"],
                entry["inputs"], entry["outputs"],
            )  # fmt: skip
            of_thread = ended[operator.thread]
            while of_thread and of_thread[-1][0] > entry["id"]:
                of_thread.pop()[1].parent = operator
            of_thread.append((entry["id"], operator))
            yield operator
    except (KeyError, TypeError) as error:
        raise UnreadableError(f"torch wrote them in another format ({error!r})") from error


def tensors_of(values: Mapping[str, Sequence[Any]]) -> list[Sequence[Any]]:
    """Return the tensors among inputs or outputs: numbers of tensor and storage, offset, elements, bytes of each."""
    pairs = zip(values["values"], values["types"], strict=True)
    return [value for value, kind in pairs if str(kind).startswith(TENSOR)]


def _evaluate(operators: Sequence[Operator]) -> None:
    """Set the FLOPs of the innermost operators with a formula, and what all others have as parts.

    The outer ones may have other shapes: those of one sample under `vmap`, or of all ranks with DTensor.
    """
    for operator in operators:
        around = [*operator.around]
        is_same = bool(around) and around[0].name == SAME.get(operator.name)
        if not operator.has_counted and not is_same and operator.name in FORMULAS:
            operator.flops = _flops_of(operator)
        for outer in around:
            outer.has_counted |= operator.flops is not None
            outer.has_computing |= bool(operator.schema) and operator.name not in MOVES
            outer.has_moving |= operator.name in MOVES_DATA
    for operator in operators:
        operator.is_part = any(outer.flops is not None for outer in operator.around)


def _flops_of(operator: Operator) -> int | None:
    try:
        return FORMULAS[operator.name](
            operator.inputs["shapes"], operator.inputs["values"], operator.outputs["shapes"]
        )  # fmt: skip
    except (LookupError, TypeError, ValueError):  # a nested tensor, or another declaration
        return None


def _add(step: CountedStep, operator: Operator, cache_bytes: int) -> None:
    if operator.is_executed:
        used = operator.bytes
        step.calls += 1
        step.bytes += used
        step.uncached_bytes += used if used > cache_bytes else 0
    if operator.flops is None:
        name = _uncounted_name(operator)
        step.not_counted.update([name] if name else [])
        return
    step.flops += operator.flops
    counts = step.operators.setdefault(operator.name, {"calls": 0, "flops": 0, "bytes": 0})
    for key, count in (("calls", 1), ("flops", operator.flops), ("bytes", operator.bytes)):
        counts[key] += count
    kind = next((str(kind) for kind in operator.inputs["types"] if str(kind).startswith(TENSOR)), "")
    precision = PRECISIONS.get(kind.removeprefix(TENSOR).removesuffix(")"))
    step.precisions[precision, "convolution" in operator.name] += operator.flops


def _recomputed_flops(operators: Sequence[Operator]) -> int:
    """Return the FLOPs of forward operators that ran again in the backward pass.

    Gradients of gradients are computed with gradients enabled too, but their operators are called by a node itself.
    """
    again = [(each, each.node) for each in operators if each.flops and each.enables_gradients]
    again = [(each, node) for each, node in again if node is not None]
    is_forward = any(each is not node and each.parent is not node for each, node in again)
    return sum(each.flops or 0 for each, _ in again) if is_forward else 0


def _uncounted_name(operator: Operator) -> str:
    """Return the name of what may have FLOPs that were not counted; empty if there are none.

    A function in Python without an operator that computes may call kernels that are no operators.
    """
    name = operator.name
    if name.startswith(COMPILED):
        return COMPILED_KERNELS
    if operator.has_counted or operator.is_part or any(is_uncounted(outer.name) for outer in operator.around):
        return ""
    if name.startswith((NODE, GENERATED)):
        function = name.removeprefix(NODE)
        is_of_torch = function.startswith("torch::") or function[-1:].isdigit()
        return "" if operator.has_computing or is_of_torch else function
    is_custom = bool(operator.schema) and name.partition("::")[0] not in TORCH_LIBRARIES
    return name if is_custom or is_uncounted(name) else ""
