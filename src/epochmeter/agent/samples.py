"""The number of samples in a batch: indices of the batch sampler, or what the loader states, never a guess.

A sample is an item of the dataset.
"""

import collections
import math
from typing import Any, Callable, Deque, Iterator, List, Optional

import torch
from torch.utils import data

from epochmeter.agent.frames import hidden, hide_frames, pass_on
from epochmeter.agent.random_states import kept_random_states
from epochmeter.agent.unseen import unseen

UNKNOWN = math.nan
MAX_SIZES = 1 << 16  # noted batches, of which the oldest are forgotten


def batch_count(loader: Any) -> Optional[int]:
    """Return the number of batches of a pass over a loader; None if it is not known.

    `len(loader)` would change the state of a torch DataLoader with an iterable dataset, which may warn later.
    """
    try:
        is_of_torch = isinstance(loader, data.DataLoader) and type(loader).__len__ is data.DataLoader.__len__
        if not is_of_torch:
            return length_of(loader)
        if not isinstance(loader.dataset, data.IterableDataset):
            return length_of(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        dataset: Any = loader.dataset  # which may have a length
        samples = length_of(dataset)
        size: Optional[int] = loader.batch_size
        if size is None:
            return samples
        return samples // size if loader.drop_last else math.ceil(samples / size)
    except Exception as error:  # a method of the script
        pass_on(error)
        return None


def length_of(sized: Any) -> int:
    """Return the length of a loader, a sampler or a dataset; a method of the script changes no random state."""
    owners = [sized]
    while type(owners[-1]) is data.BatchSampler:
        owners.append(owners[-1].sampler)
    if is_standard(owners[-1]):
        return len(sized)
    with kept_random_states(*owners):
        return len(sized)


def is_standard(sized: object) -> bool:
    """Return whether a sampler or a dataset is one of Python or torch, whose length is right and changes no state."""
    return type(sized) in (list, tuple, range) or type(sized).__module__.startswith("torch.")


def stated_batch(loader: object) -> Optional[int]:
    """Return the samples of each batch except the last; None if the loader does not state them.

    A loader states them if it has torch's own batch sampler and a dataset with indices.
    """
    if not isinstance(loader, data.DataLoader) or isinstance(loader.dataset, data.IterableDataset):
        return None
    sampler = loader.batch_sampler
    if type(sampler) is not data.BatchSampler or not isinstance(sampler.batch_size, int):  # which the script may change
        return None
    return sampler.batch_size


def stated_samples(loader: Any) -> Optional[int]:
    """Return the samples of a complete pass; None if the loader does not state them.

    A sampler of the script may deliver more or fewer than its length, as one that resumes within an epoch.
    """
    try:
        size = stated_batch(loader)
        if size is None or not is_standard(loader.batch_sampler.sampler):
            return None
        samples = length_of(loader.batch_sampler.sampler)
        return samples // size * size if loader.batch_sampler.drop_last else samples
    except Exception as error:  # of the dataset
        pass_on(error)
        return None


def has_own_sampler(loader: "data.DataLoader[Any]") -> bool:
    """Return whether the indices of a DataLoader's batches come from a sampler of the script."""
    return stated_samples(loader) is None and not isinstance(loader.dataset, data.IterableDataset)


class BatchSizes:
    """The numbers of indices of a loader's batches that were not delivered yet, in order.

    Attributes:
        is_noted: Whether a sampler notes them.
    """

    def __init__(self) -> None:
        self.is_noted = False
        self._is_known = False  # whether no two passes over the loader are open at the same time
        self._sizes: Deque[float] = collections.deque(maxlen=MAX_SIZES)
        self._passes = 0

    @hidden
    def noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the indices of a sampler's batches, and note how many each has."""
        self._passes += 1
        self.is_noted = True
        self._is_known = self._passes == 1
        self._sizes.clear()  # of batches that an earlier pass requested in advance
        try:
            while True:
                indices = next(batches)  # without another `iter`, which may draw the batches again
                self._sizes.append(len(indices) if isinstance(indices, (list, tuple)) else UNKNOWN)
                yield indices
        except StopIteration:
            return
        except BaseException as error:
            hide_frames(error)
            raise
        finally:
            self._passes -= 1

    def next(self) -> float:
        """Return the number of samples in the next batch that is delivered; NaN if it is not known."""
        return self._sizes.popleft() if self._is_known and self._sizes else UNKNOWN

    def fail(self) -> None:
        """Note that a request failed: it is not known whether the next number is that of a batch."""
        self._is_known = False


class NotedSampler:
    """A loader's sampler, which notes the numbers of indices while a pass iterates over it."""

    def __init__(self, sampler: Any, sizes: BatchSizes) -> None:
        self._sampler, self._sizes = sampler, sizes

    @hidden
    def __iter__(self) -> Iterator[Any]:
        try:
            batches = iter(self._sampler)  # now: the sampler may draw its batches here, before torch draws a seed
        except BaseException as error:
            hide_frames(error)
            raise
        return self._sizes.noted(batches)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)


class SampleCounter:
    """Counts the samples of the batches of one pass.

    Args:
        size: The loader's batch size; None: it has none.
        sizes: Those of the loader. Whether its sampler notes them is known from the first batch on.
    """

    def __init__(self, size: Optional[int], sizes: BatchSizes) -> None:
        self._sizes, self._by_length = sizes, counted_by_length(size)

    @property
    def is_by_index(self) -> bool:
        """Whether the samples follow from the indices of the loader's sampler, not from the batch."""
        return self._sizes.is_noted

    def count(self, batch: object) -> float:
        """Return the number of samples in the next batch that has arrived; NaN if it is not known."""
        return self._sizes.next() if self._sizes.is_noted else self._by_length(batch)

    def fail(self) -> None:
        """Note that a request failed."""
        self._sizes.fail()


def sample_counter(loader: object, sizes: BatchSizes) -> Optional[SampleCounter]:
    """Return a counter for a pass over a loader with these sizes; None if the loader states the samples."""
    if stated_samples(loader) is not None:
        return None
    return SampleCounter(getattr(loader, "batch_size", None), sizes)


def counted_by_length(size: Optional[int]) -> Callable[[Any], float]:
    """Return a function that returns the number of samples in a batch of a loader that states no indices; NaN: unknown.

    It is the length of the first dimension, if that is the loader's batch size (`size`, or None) in an earlier batch,
    or if the batch has several fields with this length. Fields differ in type or in their number of dimensions, in
    contrast to a list of samples.
    """
    is_confirmed = False

    def count(batch: Any) -> float:
        nonlocal is_confirmed
        try:
            tensors = fields_of(batch)
            with unseen():
                lengths = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors}
                kinds = {(tensor.dtype, tensor.dim()) for tensor in tensors}
        except Exception as error:  # a class of the script, or a nested tensor, which has no shape
            pass_on(error)
            return UNKNOWN
        if len(lengths) != 1:
            return UNKNOWN
        (length,) = lengths
        is_confirmed = is_confirmed or length == size
        has_fields = len(tensors) > 1 and length > 1 and (isinstance(batch, dict) or len(kinds) > 1)
        return float(length) if is_confirmed or (size is None and has_fields) else UNKNOWN

    return count


def fields_of(batch: Any) -> List[torch.Tensor]:
    """Return the tensors of a flat batch: a tensor, or the fields of a dictionary, list or tuple; else nothing."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict):
        return [field for field in batch.values() if isinstance(field, torch.Tensor)]
    is_flat = isinstance(batch, (list, tuple)) and all(isinstance(field, torch.Tensor) for field in batch)
    return list(batch) if is_flat else []
