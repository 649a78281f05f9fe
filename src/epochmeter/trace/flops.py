"""FLOPs of operators by the shapes of their inputs in a trace, as far as the shapes determine them."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np

from epochmeter.trace.kineto import NONE, Floats, Ints, Trace

PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""Operator -> positions of the two matrices, or batches of matrices, that it multiplies."""
CONVOLUTIONS = {f"aten::{backend}_convolution" for backend in ("mkldnn", "cudnn", "miopen")}
CONVOLUTION_BACKWARD = "aten::convolution_backward"


def kernel_flops(trace: Trace, operators: Ints) -> Floats:
    """Return the FLOPs of each kernel; NaN if they are unknown, or if its operator launched other kernels too.

    The size of a convolution's output is that of the gradient in its backward pass. If several sizes belong to the same
    inputs, the FLOPs are unknown.

    Args:
        trace: The trace.
        operators: Index of the operator that launched each kernel, or -1.
    """
    outputs: dict[str, set[int]] = {}
    backward = [index for index, name in enumerate(trace.names) if name == CONVOLUTION_BACKWARD]
    for inputs in np.unique(trace.inputs[np.isin(trace.name, backward) & (trace.inputs != NONE)]):
        with suppress(TypeError, ValueError):  # other shapes than this operator has
            gradient, *others = trace.shapes[inputs][:3]
            outputs.setdefault(str(others), set()).add(math.prod(gradient))
    unique, place, count = np.unique(operators, return_inverse=True, return_counts=True)
    calls = [(trace.names[trace.name[event]], trace.inputs[event]) for event in unique]
    flops = {call: _flops(call[0], trace.shapes[call[1]], outputs) for call in set(calls) if call[1] != NONE}
    is_single = (unique != NONE) & (count == 1)
    return np.where(is_single, [flops.get(call, math.nan) for call in calls], math.nan)[place]


def _flops(name: str, shapes: Any, outputs: dict[str, set[int]]) -> float:
    """Return the FLOPs of one call."""
    try:
        if name in PRODUCTS:
            first, second = (shapes[place] for place in PRODUCTS[name])
            return float(2 * math.prod(first) * second[-1])
        (size,) = outputs.get(str(shapes[:2]), set()) if name in CONVOLUTIONS else set[int]()
        return float(2 * size * math.prod(shapes[1][1:]))
    except (IndexError, TypeError, ValueError):  # other shapes than this operator has, or no size, or several
        return math.nan
