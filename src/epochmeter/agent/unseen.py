"""Readings of tensors that the script's modes, and its classes of tensors, do not see."""

import torch

unseen = torch._C.DisableTorchFunction
"""Hides functions of torch from `__torch_function__` in a `with` block. Hidden operators would end a compilation."""
