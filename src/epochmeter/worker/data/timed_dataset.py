"""What the loader's processes take for each batch, timed where it happens and carried with the batch.

A sample is read, decoded and transformed; a batch is collated of them. What each took travels through the loader's
queue as a few integers, so that no process keeps or shares anything.
"""

from array import array
from itertools import islice
from multiprocessing import active_children

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.dataloader import default_collate

from epochmeter.shared.units import NANOSECOND
from epochmeter.worker.data.faults import BadSampleError, died, unreadable
from epochmeter.worker.timeline import perf_counter_ns

COMPUTE, WIDTH = 3, 4
"""Where a step's compute stands in the rows of a clock, and how long a row is."""
NAMED = 5
"""How many bad samples are named."""


class Timed:
    """Batches of samples: `timed[indices]` is (batch, (read, preprocess, decode) in ns, names of the bad ones).

    `samples` either tell apart how to `read(index)` and how to `decode(data, index)`, or are a sequence of
    `(transform(image), label)`, in which all but the transform counts as reading. Bad ones raise, unless they are to
    be skipped; of the latter kind those are bad that raise OSError, as Pillow does. The batch is None where none of
    its samples is good. `folder` is the dataset's.
    """

    def __init__(self, open_samples, transform, skip=False, folder="."):
        self._transform = transform
        self._timed_transform = TimedTransform(transform)
        self._samples = open_samples(self._timed_transform)
        self.decodes = hasattr(self._samples, "read") and hasattr(self._samples, "decode")
        """Whether decoding is told apart from reading; else it is in that."""
        self._done_at = self._apart if self.decodes else self._whole
        """Of an index: the sample, and when it was read, decoded and transformed."""
        self._folder = folder
        self.skip = skip
        for bad in [] if skip else getattr(self._samples, "unheld", []):
            raise bad

    def __len__(self):
        return len(self._samples)

    def __getitem__(self, indices):
        good, bad, done_at = [], [], self._done_at
        read = decode = transform = 0
        begun = perf_counter_ns()
        for index in indices:
            try:
                sample, read_at, decoded_at, end = done_at(index)
            except BadSampleError as error:
                if not self.skip:
                    raise
                bad.append(error.name)
                begun = perf_counter_ns()
                continue
            good.append(sample)
            read += read_at - begun
            decode += decoded_at - read_at
            transform += end - decoded_at
            begun = end
        batch = default_collate(good) if good else None
        return batch, (read, decode + transform + perf_counter_ns() - begun, decode), bad

    def _apart(self, index):
        data, label = self._samples.read(index)
        read_at = perf_counter_ns()
        image = self._samples.decode(data, index)
        decoded_at = perf_counter_ns()
        return (self._transform(image), label), read_at, decoded_at, perf_counter_ns()

    def _whole(self, index):
        self._timed_transform.took_ns = 0
        try:
            sample = self._samples[index]
        except OSError as error:
            raise unreadable(error.filename or str(index), error, self._folder, kind="sample") from error
        end = perf_counter_ns()
        read_at = end - self._timed_transform.took_ns
        return sample, read_at, read_at, end


class TimedTransform:
    """A transform that knows what its last call took."""

    def __init__(self, transform):
        self._transform = transform
        self.took_ns = 0

    def __call__(self, image):
        begun = perf_counter_ns()
        result = self._transform(image)
        self.took_ns = perf_counter_ns() - begun
        return result


class Orders(BatchSampler):
    """The samples of each batch, by their indices; a pass may end after the first `most` batches."""

    most = None

    def __len__(self):
        whole = super().__len__()
        return whole if self.most is None else min(whole, self.most)

    def __iter__(self):
        return islice(super().__iter__(), self.most)


def batches(timed, order, batch, drop_last=False, generators=(), **how):
    """Passes over timed samples in an order of them; `how` is DataLoader's.

    A batch is asked of `timed` at once, not sample by sample: what timing them takes is then half.
    """
    orders = Orders(order, batch, drop_last)
    return Batches(DataLoader(timed, sampler=orders, batch_size=None, collate_fn=as_it_is, **how), generators)


def as_it_is(batch):
    return batch


class Batches:
    """The batches of a loader of timed samples; what the pass under way took is kept beside them."""

    def __init__(self, loader, generators=()):
        self.loader = loader
        self._generators = generators
        self._begin()

    def state(self):
        """Where the random numbers stand that shuffle, and that seed loader processes."""
        return [generator.get_state() for generator in self._generators]

    def load(self, state):
        """Goes on from there with the next pass."""
        for generator, numbers in zip(self._generators, state):
            generator.set_state(numbers)

    def __len__(self):
        return len(self.loader)

    @property
    def count(self):
        """Samples of a pass, those of a last batch that is left out among them."""
        return len(self.loader.sampler.sampler)

    @property
    def sizes(self):
        """The sizes that the batches of a pass have."""
        return sizes(self.count, self.loader.sampler.batch_size, self.loader.sampler.drop_last)

    def cut(self, steps):
        """Has passes end after so many steps, with nothing fetched beyond; None: with the samples."""
        self.loader.sampler.most = steps

    def __iter__(self):
        self._begin()
        passed = None
        for batch, took, bad in self._loaded():
            if bad:
                self._skipped += len(bad)
                self.bad += bad[: NAMED - len(self.bad)]
            if passed:  # for a batch of bad samples alone
                took, passed = [before + now for before, now in zip(passed, took)], None
            if batch is None:
                passed = took
                continue
            self._took.extend(took)
            yield batch
        if not self._took:
            raise RuntimeError(
                "not one sample of {} could be read; the first: {}. Check the dataset's folder.".format(
                    self._skipped, self.bad[0] if self.bad else "none"
                )
            )

    def _loaded(self):
        batches = iter(self.loader)
        processes = active_children()
        try:
            yield from batches
        except (ConnectionError, EOFError) as error:
            death = died(processes)
            if death is None:
                raise
            raise death from error

    def _begin(self):
        self._took = array("q")
        self._skipped = 0
        self.bad = []

    def parts(self, rows):
        """The last pass's metrics, in seconds and counts; `rows` are the steps' intervals as its clock has them."""
        read, preprocess, decode = ([spent * NANOSECOND for spent in self._took[part::3]] for part in range(3))
        loaded = [a + b for a, b in zip(read, preprocess)]
        parts = {
            "loader_read_s": sum(read),
            "loader_preprocess_s": sum(preprocess),
            "fetch_stall_model_s": stall_model(loaded, rows[COMPUTE::WIDTH], self.loader.num_workers),
        }
        if self.loader.dataset.decodes:
            parts["loader_decode_s"] = sum(decode)
        return dict(parts, skipped_samples=self._skipped) if self.loader.dataset.skip else parts


def sizes(count, batch, drop_last):
    """The sizes that the batches of so many samples have: the one asked for, that of a smaller last one."""
    whole, rest = divmod(count, batch)
    there = {batch: whole > 0, rest: rest > 0 and not drop_last}
    return {size for size in there if there[size]}


def stall_model(loaded_s, compute_s, workers):
    """The stall as the literature has it: the sum over steps of max(fetch + preprocess - compute, 0).

    `loaded_s` is what reading and preprocessing each step's batch took; so many loader processes share in it, and
    without any, nothing overlaps: all of it is stall.
    """
    if workers == 0:
        return sum(loaded_s)
    return sum(max(loaded / workers - compute, 0) for loaded, compute in zip(loaded_s, compute_s))
