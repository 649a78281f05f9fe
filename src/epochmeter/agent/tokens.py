"""The number of tokens in a batch that has `input_ids` or an `attention_mask`."""

import collections
from typing import Any, Optional, Tuple

import torch

from epochmeter.agent.frames import pass_on
from epochmeter.agent.samples import UNKNOWN
from epochmeter.agent.unseen import unseen


def count_tokens(batch: Any) -> Optional[Tuple[float, int]]:
    """Return the number of tokens without padding, NaN if it is not known, and with it; None if there are no tokens.

    If there is no mask, all are tokens, and the second number is 0, since it is not known which of them are padding.

    The attention mask states the padding, if it is in memory of the host: a GPU would have to be waited for.
    """
    try:
        inputs, mask = field_of(batch, "input_ids"), field_of(batch, "attention_mask")
        with unseen():
            if isinstance(inputs, torch.Tensor):
                if mask is None:
                    return float(inputs.numel()), 0
                is_alike = isinstance(mask, torch.Tensor) and mask.shape == inputs.shape
                return unmasked(mask) if is_alike else UNKNOWN, inputs.numel()
            return (unmasked(mask), mask.numel()) if isinstance(mask, torch.Tensor) else None
    except Exception as error:  # a class of the script, or a nested tensor
        pass_on(error)
        return None


def field_of(batch: Any, name: str) -> Any:
    """Return a field of a dictionary or of an object; None if it has none.

    No method of the script makes it up: such a method may change the batch.
    """
    if isinstance(batch, dict):
        return dict.get(batch, name)
    if isinstance(batch, collections.UserDict):
        return batch.data.get(name)
    has_field = name in getattr(batch, "__dict__", ()) or hasattr(type(batch), name)
    return getattr(batch, name, None) if has_field else None


def unmasked(mask: torch.Tensor) -> float:
    """Return the number of ones in a mask; NaN if it is on a GPU, or has other values than zeros and ones."""
    if mask.device.type != "cpu" or mask.is_floating_point():
        return UNKNOWN
    values = mask.numpy()  # not by functions of torch, which a profiler of the script would see
    if values.max(initial=0) > 1 or values.min(initial=0) < 0:  # such as the numbers of packed sequences
        return UNKNOWN
    return float(values.sum())
