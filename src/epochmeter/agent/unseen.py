"""Readings of tensors that the script's modes, and its classes of tensors, do not see."""

import contextlib
from typing import Any, Iterator

import torch

_without_operators: Any = getattr(torch._C, "_DisableTorchDispatch", contextlib.ExitStack)  # from torch 1.11 on


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Hide functions and operators of torch from `__torch_function__` and `__torch_dispatch__` in a `with` block."""
    with torch._C.DisableTorchFunction(), _without_operators():
        yield
