"""Loader timing: time per batch to read, decode, transform and collate, measured in the DataLoader workers.

The times travel with the batch through the DataLoader's queue as a few integers, so that processes share no state.
"""

import time
from array import array
from itertools import islice

from torch.utils.data import BatchSampler, DataLoader, get_worker_info
from torch.utils.data.dataloader import default_collate

from epochmeter.shared.units import NANOSECOND
from epochmeter.worker.data.faults import BadSampleError, bad_sample_error
from epochmeter.worker.timeline import perf_counter_ns

COMPUTE, WIDTH = 3, 4
"""Column of a step's compute in the clock's rows, and number of columns."""
DURATIONS, TIMES = 3, 5
"""Durations of a batch, and all integers that travel with it."""
EXIT_WAIT_S = 2.0
MAX_NAMED = 5
"""Most bad samples that are named."""


class TimedDataset:
    """Dataset of batches: `timed[indices]` is (batch, times, names of bad samples).

    The times are durations to read, preprocess and decode (a part of preprocess), and the start, all in ns; and the
    number of the DataLoader worker, -1 for the main process. The start is of the monotonic clock of all processes.
    `samples` either has `read(index)` and `decode(data, index)`, or is a sequence of `(transform(image), label)`, where
    all but the transform counts as reading. Bad samples raise BadSampleError (in a sequence, OSError as from Pillow),
    unless they are skipped. The batch is None if all its samples are bad.

    Args:
        open_samples: Function that opens the samples, given the transform.

    Attributes:
        decodes: Whether decoding is timed separately; otherwise it is part of reading.
    """

    def __init__(self, open_samples, transform, skip=False, folder="."):
        self._transform = transform
        self._samples = open_samples(self._timed_transform)
        self._decode_ns = self._transform_ns = 0  # durations of the open batch
        self.decodes = hasattr(self._samples, "read") and hasattr(self._samples, "decode")
        self._load = self._load_in_steps if self.decodes else self._load_at_once
        self._folder = folder
        self.skip = skip

    def __len__(self):
        return len(self._samples)

    def __getitem__(self, indices):
        good, bad, load = [], [], self._load
        self._decode_ns = self._transform_ns = 0
        opened = begin = perf_counter_ns()
        for index in indices:
            started = perf_counter_ns()
            try:
                good.append(load(index))
            except BadSampleError as error:
                if not self.skip:
                    raise
                bad.append(error.name)
                begin += perf_counter_ns() - started
        loaded = perf_counter_ns()
        decode, preprocess = self._decode_ns, self._decode_ns + self._transform_ns
        batch = default_collate(good) if good else None
        durations = (loaded - begin - preprocess, preprocess + perf_counter_ns() - loaded, decode)
        worker = get_worker_info()
        return batch, (*durations, opened, -1 if worker is None else worker.id), bad

    def _load_in_steps(self, index):
        data, label = self._samples.read(index)
        begin = perf_counter_ns()
        image = self._samples.decode(data, index)
        self._decode_ns += perf_counter_ns() - begin
        return self._timed_transform(image), label

    def _load_at_once(self, index):
        try:
            return self._samples[index]
        except OSError as error:
            raise bad_sample_error(error.filename or str(index), error, self._folder, kind="sample") from error

    def _timed_transform(self, image):
        begin = perf_counter_ns()
        result = self._transform(image)
        self._transform_ns += perf_counter_ns() - begin
        return result


class TruncatedBatchSampler(BatchSampler):
    """Sampler of batches, as lists of sample indices; `max_batches` limits a pass."""

    max_batches = None

    def __len__(self):
        steps = super().__len__()
        return steps if self.max_batches is None else min(steps, self.max_batches)

    def __iter__(self):
        return islice(super().__iter__(), self.max_batches)


def make_timed_loader(timed, order, batch, drop_last=False, generators=(), **options):
    """Return a loader of timed samples.

    The dataset is indexed by batch, not by sample: that halves the cost of timing. `order` is the sampler of indices;
    the state of the random `generators` belongs in a checkpoint; `options` are the DataLoader's.
    """
    options.update(sampler=TruncatedBatchSampler(order, batch, drop_last), batch_size=None)
    return TimedLoader(DataLoader(timed, collate_fn=lambda batch: batch, **options), generators)


class TimedLoader:
    """Iterate over the batches of a DataLoader of timed samples; keep the times and bad samples of the pass."""

    def __init__(self, loader, generators=()):
        self.loader = loader
        self._generators = generators
        self._reset()

    def state(self):
        """Return the state of the random generators for shuffling and for seeding DataLoader workers."""
        return [generator.get_state() for generator in self._generators]

    def load(self, state):
        """Restore a `state`, for the next pass."""
        for generator, numbers in zip(self._generators, state):
            generator.set_state(numbers)

    def __len__(self):
        return len(self.loader)

    @property
    def count(self):
        """Samples per pass, including those of a dropped last batch."""
        return len(self.loader.sampler.sampler)

    def limit(self, steps):
        """Limit passes to this many steps, with nothing fetched beyond; None: no limit."""
        self.loader.sampler.max_batches = steps

    def __iter__(self):
        self._reset()
        skipped_times = None
        for batch, times, bad in self._load():
            if bad:
                self._skipped += len(bad)
                self.bad += bad[: MAX_NAMED - len(self.bad)]
            if skipped_times:  # add the times of preceding batches without a good sample
                durations = [before + now for before, now in zip(skipped_times[:DURATIONS], times)]
                times, skipped_times = [*durations, *times[DURATIONS:]], None
            if batch is None:
                skipped_times = times
                continue
            self._times.extend(times)
            yield batch
        if not self._times:
            raise RuntimeError(
                "none of {} samples could be read; the first: {}. Check the dataset's folder.".format(
                    self._skipped, self.bad[0] if self.bad else "none"
                )
            )

    def _load(self):
        try:
            yield from self.loader
        except (ConnectionError, EOFError):  # a worker died while it sent a batch
            time.sleep(EXIT_WAIT_S)  # torch raises the cause meanwhile, in its handler of SIGCHLD
            raise

    def _reset(self):
        self._times = array("q")
        self._skipped = 0
        self.bad = []

    def loads(self):
        """Return the times of each batch of the last pass, as `TimedDataset` has them."""
        return [list(self._times[first : first + TIMES]) for first in range(0, len(self._times), TIMES)]

    def parts(self, rows):
        """Return the last pass's metrics, in seconds and counts.

        `rows` are the clock's intervals of each step in seconds, flattened (`record.INTERVALS`).
        """
        read, preprocess, decode = ([ns * NANOSECOND for ns in self._times[part::TIMES]] for part in range(DURATIONS))
        loaded = [a + b for a, b in zip(read, preprocess)]
        parts = {
            "loader_read_s": sum(read),
            "loader_preprocess_s": sum(preprocess),
            "data_stall_model_s": stall_model(loaded, rows[COMPUTE::WIDTH], self.loader.num_workers),
        }
        if self.loader.dataset.decodes:
            parts["loader_decode_s"] = sum(decode)
        return dict(parts, skipped_samples=self._skipped) if self.loader.dataset.skip else parts


def stall_model(loaded_s, compute_s, workers):
    """Return the data stall as modeled in the literature: sum over steps of max(fetch + preprocess - compute, 0), in s.

    The reading and preprocessing time `loaded_s` of each step's batch is divided among the workers.
    """
    if workers == 0:  # nothing overlaps
        return sum(loaded_s)
    return sum(max(loaded / workers - compute, 0) for loaded, compute in zip(loaded_s, compute_s))
