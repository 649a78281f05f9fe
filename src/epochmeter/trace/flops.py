"""FLOPs of operators from the shapes of their inputs and outputs, by the conventions of `torch.utils.flop_counter`.

A multiplication and an addition are two operations. Only matrix products, convolutions, attention and recurrent layers
count. Attention counts all pairs of positions, also masked ones, and its backward pass computes the scores again.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = Sequence[int]
Values = Sequence[Any]
"""Of inputs or outputs: shapes, or values of those that are no tensors, such as `False` or `[1, 1]`."""
Formula = Callable[[Values, Values, Values], int]
"""Returns FLOPs from the shapes of inputs, the values of inputs and the shapes of outputs."""

PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""Operator -> positions of the two matrices, or batches of matrices, that it multiplies."""
OTHER_PRODUCTS = {"aten::_int_mm": (0, 1), "aten::_scaled_mm": (0, 1), "aten::_addmm_activation": (1, 2)}
VECTOR_PRODUCTS = {"aten::mv": 0, "aten::addmv": 1, "aten::dot": 0, "aten::vdot": 0}
"""Operator -> position of the matrix, or of one of the vectors."""
ATTENTIONS = tuple(
    f"aten::_scaled_dot_product_{kernel}"
    for kernel in (
        *("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"),
        "fused_attention_overrideable",
    )
)
UNCOUNTED = re.compile(
    r"aten::\w*(mm|matmul|conv|attention|rnn|lstm|gru|linear|linalg|cholesky|svd|eig|lstsq|inverse|fft|einsum)"
)
"""Operators that are named if nothing in them was counted."""
ELEMENTWISE = re.compile(r"aten::(_thnn_\w+|linalg_vector_norm|_?fft_shift|glu\w*|addcmul\w*|_?comm\w*|fill\w*)$")
"""Operators whose names have such a part, but which count as nothing."""


def product_flops(first: Shape, second: Shape) -> int:
    """Return the FLOPs of a product of matrices, or of batches of matrices."""
    return 2 * math.prod(first) * second[-1]


def convolution_flops(inputs: Shape, weights: Shape, output: Shape, *, transposed: bool) -> int:
    """Return the FLOPs of a convolution with any number of groups, padding included."""
    return 2 * math.prod(inputs if transposed else output) * math.prod(weights[1:])


def attention_flops(query: Shape, key: Shape, value: Shape, *, of_keys: int = 1, of_values: int = 1) -> int:
    """Return the FLOPs of attention: numbers of products over the widths of keys and values (..., positions, width)."""
    return 2 * math.prod(query[:-1]) * key[-2] * (of_keys * query[-1] + of_values * value[-1])


def _convolution(shapes: Values, values: Values, outputs: Values) -> int:
    return convolution_flops(shapes[0], shapes[1], outputs[0], transposed=values[6])


def _convolution_backward(shapes: Values, values: Values, outputs: Values) -> int:
    of_inputs, of_weights, _ = values[10]  # which gradients are computed
    each = convolution_flops(shapes[1], shapes[2], shapes[0], transposed=values[7])
    return each * (bool(of_inputs) + bool(of_weights))


def _product(places: tuple[int, int]) -> Formula:
    return lambda shapes, values, outputs: product_flops(shapes[places[0]], shapes[places[1]])


def _vector_product(place: int) -> Formula:
    return lambda shapes, values, outputs: 2 * int(math.prod(shapes[place]))


def _attention(shapes: Values, values: Values, outputs: Values) -> int:
    query, key, value = shapes[:3]
    return attention_flops(query, key, value)


def _attention_backward(shapes: Values, values: Values, outputs: Values) -> int:
    query, key, value = shapes[1:4]
    return attention_flops(query, key, value, of_keys=3, of_values=2)


def _mkldnn_rnn(shapes: Values, values: Values, outputs: Values) -> int:
    rows, inputs, hidden = shapes[0][:-1], shapes[1], shapes[2]
    return 2 * int(math.prod(rows)) * (math.prod(inputs) + math.prod(hidden))


def _cudnn_rnn(shapes: Values, values: Values, outputs: Values) -> int:
    matrices: list[int] = [math.prod(shape) for shape in shapes[1] if len(shape) == 2]
    return 2 * int(math.prod(shapes[0][:-1])) * sum(matrices)


def _cudnn_rnn_backward(shapes: Values, values: Values, outputs: Values) -> int:
    *of_inputs, of_weights = values[-2]
    return _cudnn_rnn(shapes, values, outputs) * (any(of_inputs) + bool(of_weights))


FORMULAS: Mapping[str, Formula] = {
    **{name: _product(places) for name, places in {**PRODUCTS, **OTHER_PRODUCTS}.items()},
    **{name: _vector_product(place) for name, place in VECTOR_PRODUCTS.items()},
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    **dict.fromkeys(ATTENTIONS, _attention),
    **dict.fromkeys((f"{name}_backward" for name in ATTENTIONS), _attention_backward),
    "aten::mkldnn_rnn_layer": _mkldnn_rnn,
    "aten::mkldnn_rnn_layer_backward": lambda *of_operator: 2 * _mkldnn_rnn(*of_operator),
    "aten::_cudnn_rnn": _cudnn_rnn,
    "aten::_cudnn_rnn_backward": _cudnn_rnn_backward,
}
"""Operator -> its FLOPs."""


def is_uncounted(name: str) -> bool:
    """Return whether an operator of torch computes something that counts, but has no formula."""
    return name not in FORMULAS and bool(UNCOUNTED.match(name)) and not ELEMENTWISE.match(name)
