"""Time per batch to read, decode, transform and collate, measured in the DataLoader workers and sent with the batch."""

import time
from array import array
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import default_collate

from epochmeter.shared.problem import ProblemError, machine_error
from epochmeter.shared.types import FloatArray
from epochmeter.shared.units import NANOSECOND
from epochmeter.worker.data.faults import BadSampleError, StorageGoneError, bad_sample_error
from epochmeter.worker.strategy import Order
from epochmeter.worker.timeline import perf_counter_ns

COMPUTE, WIDTH = 3, 4  # column of a step's compute in the clock's rows, and number of columns
DURATIONS, TIMES = 3, 5  # durations of a batch, and all integers that travel with it
GROUP = 2
"""Samples that are read, decoded and transformed together, since a clock reading between small images takes 0.4 us."""
EXIT_WAIT_S = 2.0
MAX_NAMED = 5  # bad samples
TimedBatch = Tuple[Any, Tuple[int, ...], List[str]]
"""A batch, its times and the names of bad samples, as `TimedDataset` has them."""


class TimedDataset(Dataset[TimedBatch]):
    """Dataset of batches: `timed[indices]` is (batch, or None if all samples are bad, times, names of bad samples).

    In a DataLoader worker, an error of this project takes the place of the batch: of an exception, torch would pass on
    the text only.

    The times are, in ns, the durations to read, preprocess and decode (a part of preprocess), and the start, by the
    monotonic clock of all processes. The number of the DataLoader worker follows, -1 for the main process.
    `open_samples(transform)` returns samples with `read(index)` and `decode(data, index)`, or a sequence of
    `(transform(image), label)`. In a sequence, all except the transform counts as reading. Unless they are skipped, bad
    samples raise BadSampleError; in a sequence, they raise OSError as from Pillow.
    """

    def __init__(
        self,
        open_samples: Callable[[Callable[[Any], Any]], Any],
        transform: Callable[[Any], Any],
        skip: bool = False,
        folder: str = ".",
    ) -> None:
        self._transform, self._folder, self.skip = transform, folder, skip
        self._transform_ns = 0  # of the open batch, if the samples call the transform
        self._samples = open_samples(self._timed_transform)
        self.decodes = hasattr(self._samples, "read") and hasattr(self._samples, "decode")  # else part of reading

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, indices: Sequence[int]) -> TimedBatch:
        good: List[Any] = []
        bad: List[str] = []
        load = self._load_in_steps if self.decodes else self._load_at_once
        opened = perf_counter_ns()
        try:
            read, decode = load(indices, good, bad)
        except ProblemError as error:
            if get_worker_info() is None:
                raise
            return error, (), []
        batch = default_collate(good) if good else None
        preprocess = perf_counter_ns() - opened - read
        worker = get_worker_info()
        return batch, (read, preprocess, decode, opened, -1 if worker is None else worker.id), bad

    def _load_in_steps(self, indices: Sequence[int], good: List[Any], bad: List[str]) -> Tuple[int, int]:
        """Append the samples, or the names of bad ones; return the durations to read and decode, in ns."""
        read, decode, transform = self._samples.read, self._samples.decode, self._transform
        read_ns = decode_ns = 0
        ended = perf_counter_ns()
        for first in range(0, len(indices), GROUP):
            group = indices[first : first + GROUP]
            try:
                loaded = [read(index) for index in group]
                begun = perf_counter_ns()
                read_ns += begun - ended
                images = [decode(data, index) for (data, _), index in zip(loaded, group)]
                ended = perf_counter_ns()
                decode_ns += ended - begun
                good += [(transform(image), label) for image, (_, label) in zip(images, loaded)]
            except BadSampleError as error:
                if len(group) == 1 or not self.skip:
                    bad.append(self._name_of_skipped(error))
                else:
                    for index in group:
                        times = self._load_in_steps([index], good, bad)
                        read_ns, decode_ns = read_ns + times[0], decode_ns + times[1]
            ended = perf_counter_ns()
        return read_ns, decode_ns

    def _load_at_once(self, indices: Sequence[int], good: List[Any], bad: List[str]) -> Tuple[int, int]:
        """Do the same where the samples call the transform."""
        self._transform_ns = 0
        begun = perf_counter_ns()
        for index in indices:
            try:
                good.append(self._samples[index])
            except BadSampleError as error:
                bad.append(self._name_of_skipped(error))
            except OSError as error:
                bad_sample = bad_sample_error(error.filename or str(index), error, self._folder, kind="sample")
                bad.append(self._name_of_skipped(bad_sample))
        return perf_counter_ns() - begun - self._transform_ns, 0

    def _name_of_skipped(self, error: Union[BadSampleError, StorageGoneError]) -> str:
        if not (self.skip and isinstance(error, BadSampleError)):
            raise error
        return error.name

    def _timed_transform(self, image: Any) -> Any:
        begun = perf_counter_ns()
        result = self._transform(image)
        self._transform_ns += perf_counter_ns() - begun
        return result


class TimedLoader(DataLoader[TimedBatch]):
    """DataLoader of a `TimedDataset` that keeps the times and bad samples of the last pass.

    The dataset is indexed by batch, not by sample, which halves the cost of timing. `order` is the sampler of indices;
    the state of the random `generators` belongs in a checkpoint.
    """

    dataset: TimedDataset
    bad: List[str]
    _times: "array[int]"

    def __init__(
        self,
        timed: TimedDataset,
        order: Order,
        batch: int,
        drop_last: bool = False,
        generators: Sequence[torch.Generator] = (),
        **options: Any,
    ) -> None:
        batches = BatchSampler(order, batch, drop_last)
        super().__init__(timed, batch_size=None, sampler=batches, collate_fn=lambda batch: batch, **options)
        self._generators = generators
        self.count = len(order)  # samples per pass, including those of a dropped last batch

    def state(self) -> List[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def load(self, state: Sequence[torch.Tensor]) -> None:
        for generator, numbers in zip(self._generators, state):
            generator.set_state(numbers)

    def __iter__(self) -> Any:  # an iterator, but not of the class that torch states
        self._times, self._skipped, self.bad = array("q"), 0, []
        try:
            for batch, times, bad in super().__iter__():
                if isinstance(batch, ProblemError):
                    raise batch
                if bad:
                    self._skipped += len(bad)
                    self.bad += bad[: MAX_NAMED - len(self.bad)]
                if batch is not None:
                    self._times.extend(times)
                    yield batch
        except (ConnectionError, EOFError):  # a worker died while it sent a batch
            time.sleep(EXIT_WAIT_S)  # torch raises the cause meanwhile, in its handler of SIGCHLD
            raise
        if not self._times:
            first = self.bad[0] if self.bad else "none"
            message = "none of {} samples could be read; the first: {}".format(self._skipped, first)
            raise machine_error(message, "check the dataset's folder", file=self.bad[0] if self.bad else "")

    def load_times(self) -> List[List[int]]:
        """Return the times of each batch of the last pass, as `TimedDataset` has them."""
        return [list(self._times[first : first + TIMES]) for first in range(0, len(self._times), TIMES)]

    def parts(self, rows: FloatArray) -> Dict[str, float]:
        """Return the last pass's metrics; `rows` are the clock's intervals of each step (`record.INTERVALS`)."""
        read, preprocess, decode = (
            [ns * NANOSECOND for ns in self._times[offset::TIMES]] for offset in range(DURATIONS)
        )
        loaded = [a + b for a, b in zip(read, preprocess)]
        parts = {
            "loader_read_s": sum(read),
            "loader_preprocess_s": sum(preprocess),
            "data_stall_model_s": stall_model(loaded, rows[COMPUTE::WIDTH], self.num_workers),
        }
        if self.dataset.decodes:
            parts["loader_decode_s"] = sum(decode)
        return dict(parts, skipped_samples=self._skipped) if self.dataset.skip else parts


def stall_model(loaded_s: Sequence[float], compute_s: Sequence[float], workers: int) -> float:
    """Return the data stall as modeled in the literature: sum over steps of max(fetch + preprocess - compute, 0)."""
    if workers == 0:  # nothing overlaps
        return sum(loaded_s)
    return sum(max(loaded / workers - compute, 0) for loaded, compute in zip(loaded_s, compute_s))
