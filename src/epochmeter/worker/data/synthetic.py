"""Synthetic batches: preallocated random tensors in a dataset's shape, without storage or preprocessing."""

from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Sequence

import torch

from epochmeter.shared.types import Document
from epochmeter.worker.device import map_tensors

if TYPE_CHECKING:
    from epochmeter.worker.tasks import Task

MAX_BYTES = 64 << 20  # memory limit for the distinct batches


class SyntheticBatches:
    """As many batches as a DataLoader has for `count` samples: a few random ones, within 64 MiB, repeated in turn.

    Nothing is loaded, so that the interface of `TimedLoader` returns no times, no metrics and no state.
    """

    bad: Sequence[str] = ()

    def __init__(self, count: int, job: Document, task: "Task", pinned: bool, drop_last: bool = False) -> None:
        self.count = count
        self._batch: int = job["batch"]
        self._steps: int = count // self._batch if drop_last else -(-count // self._batch)
        generator = torch.Generator().manual_seed(job["seed"])
        sizes: List[int] = []
        self._batches: List[Any] = []
        while not self._batches or len(self._batches) < min(self._steps, MAX_BYTES // max(1, sum(sizes))):
            batch = task.example(job["dataset"], min(self._batch, count), generator)
            self._batches.append(map_tensors(torch.Tensor.pin_memory, batch, "pin_memory") if pinned else batch)
            if not sizes:
                map_tensors(lambda tensor: sizes.append(tensor.numel() * tensor.element_size()), batch)

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        for step in range(self._steps):
            size = min(self._batch, self.count - step * self._batch)
            yield map_tensors(lambda tensor: tensor[:size], self._batches[step % len(self._batches)])  # noqa: B023

    def state(self) -> List[torch.Tensor]:
        return []

    def load(self, state: Sequence[torch.Tensor]) -> None:
        pass

    def load_times(self) -> List[List[int]]:
        """Return an empty list: no batch is loaded."""
        return []

    def parts(self, rows: object) -> Dict[str, float]:
        return {}
