"""Copies of batches that can be delivered again, each time as the loader delivered them."""

import copy
import io
import pickle
from typing import Any, Dict, List, Optional, Tuple

import torch

from epochmeter.agent.frames import pass_on


class NotKeptError(Exception):
    """A batch that cannot be copied."""


class KeptBatch:
    """A copy of a batch of any layout.

    Deliveries share their tensors, so that they cost little. A tensor that the script has changed is copied again for
    the next delivery, and so are all other objects for each one.

    Args:
        batch: The batch, before the script gets it: its tensors may be views of a buffer that its loader fills again.

    Attributes:
        size: Bytes of memory that it needs, with the shared copies.

    Raises:
        NotKeptError: It has an object that cannot be copied.
    """

    def __init__(self, batch: object) -> None:
        file = io.BytesIO()
        keeper = _Keeper(file)
        try:
            keeper.dump(batch)
        except Exception as error:
            pass_on(error)
            raise NotKeptError("{}: {}".format(type(error).__name__, error)) from error
        self._pickled = file.getvalue()
        self._tensors = keeper.copies
        self._shared: "List[Optional[Tuple[torch.Tensor, object]]]" = [None] * len(self._tensors)
        self.size = len(self._pickled) + 2 * sum(map(byte_count, self._tensors))
        try:
            self.deliver()  # what can be pickled may still not be readable
        except Exception as error:
            pass_on(error)
            raise NotKeptError("{}: {}".format(type(error).__name__, error)) from error

    def deliver(self) -> Any:
        """Return the batch."""
        reader = _Reader(io.BytesIO(self._pickled))
        reader.tensor = self._tensor
        return reader.load()

    def _tensor(self, number: int) -> torch.Tensor:
        """Return a tensor of the batch, which is that of the last delivery unless the script has changed it."""
        shared = self._shared[number]
        if shared is None or shared[1] is None or state_of(shared[0]) != shared[1]:
            tensor = copied(self._tensors[number])
            shared = self._shared[number] = tensor, state_of(tensor)
        return shared[0]


class _Keeper(pickle.Pickler):
    """Pickles a batch, except its tensors: it copies them.

    Attributes:
        copies: The copies, in the order of their numbers.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.copies: List[torch.Tensor] = []
        self._numbers: Dict[int, int] = {}  # by `id`
        self._originals: List[torch.Tensor] = []  # so that no other tensor gets the `id` of one

    def persistent_id(self, thing: object) -> Optional[int]:
        if not isinstance(thing, torch.Tensor):
            return None
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self.copies)
            self._originals.append(thing)
            self.copies.append(copied(thing))
        return self._numbers[id(thing)]


class _Reader(pickle.Unpickler):
    tensor: Any = None  # returns the tensor of a number

    def persistent_load(self, number: Any) -> Any:
        return self.tensor(number)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor in memory of its own, page-locked if the tensor is."""
    clone = tensor.detach().clone()
    if type(clone) is not type(tensor):
        return copy.deepcopy(tensor)
    if tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.is_pinned():
        clone = clone.pin_memory()
    return clone.requires_grad_() if tensor.requires_grad else clone


def state_of(tensor: torch.Tensor) -> object:
    """Return a value that differs once a tensor was changed; None if a change would not be noticed."""
    if tensor.requires_grad:
        return None
    try:
        return tensor._version, tensor.shape, tensor.stride(), tensor.data_ptr()
    except RuntimeError:  # it was made in inference mode, or has no strides
        return None


def byte_count(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
