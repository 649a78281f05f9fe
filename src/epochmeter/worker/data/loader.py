"""DataLoaders for training and evaluation, configured by the run."""

import os
import signal
from functools import partial

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.connection import die_with_parent
from epochmeter.worker.data.synthetic import SyntheticBatches
from epochmeter.worker.data.timed_dataset import TimedDataset, make_timed_loader
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.strategy import rank_seed

SPLITS = ("train", "val")


def make_loaders(job, facts, task, strategy, cuda):
    """Return this rank's loader for training and, if the run evaluates, the one for evaluation.

    `facts` has the prepared dataset's `folder` and number of samples per split. Raises ValueError if there are too few.
    """
    dataset = job["dataset"]
    splits = SPLITS if job["evaluate"] else SPLITS[:1]
    is_synthetic = job["synthetic_batches"] or dataset["layout"] == "tensors"
    samples = [
        range(facts["splits"][split]) if is_synthetic else open_split(dataset, facts["folder"], split)
        for split in splits
    ]
    for split, part in zip(splits, samples):
        if len(part) < strategy.ranks:
            raise ValueError(
                "dataset {} has {} samples in split {}, too few for {} ranks. Add some, set strategy.ranks or "
                "evaluate=false.".format(dataset["name"], len(part), split, strategy.ranks)
            )
    if not is_synthetic:
        return [make(part, job, strategy, cuda) for make, part in zip((train_loader, val_loader), samples)]
    counts = [len(strategy.shard(part, order)) for part, order in zip(samples, (_make_generator(job), None))]
    pinned = _pins_memory(job, cuda)
    return [SyntheticBatches(count, job, task, pinned, drop) for count, drop in zip(counts, (job["drop_last"], False))]


def open_split(dataset, folder, split):
    """Open a split, `train` or `val`, of the dataset prepared in `folder`, with timed samples."""
    spec = dataset["open"]
    spec = spec if "_target_" in spec else spec[dataset["layout"]]
    return TimedDataset(
        lambda transform: instantiate_spec(spec, str(folder), split, transform),
        preprocessing(dataset, split),
        skip=dataset.get("on_bad") == "skip",
        folder=str(folder),
    )


def train_loader(samples, job, strategy, cuda):
    """Return the loader for training, shuffled by the seed, in a new order each epoch.

    The last batch is smaller, or dropped with `drop_last`. DataLoader workers persist between epochs if configured.
    """
    shuffled = _make_generator(job)  # the same order on all ranks
    order, options = strategy.shard(samples, shuffled), _loader_options(job, strategy, cuda)
    options["persistent_workers"] = job["persistent_workers"] and job["workers"] > 0
    return make_timed_loader(
        samples, order, job["batch"], job["drop_last"], [shuffled, options["generator"]], **options
    )


def val_loader(samples, job, strategy, cuda):
    """Return the loader for evaluation, in order. Its workers end with the window, so that none idles in training."""
    options = _loader_options(job, strategy, cuda)
    return make_timed_loader(
        samples, strategy.shard(samples, None), job["batch"], generators=[options["generator"]], **options
    )


def _loader_options(job, strategy, cuda):
    """Return the options of a DataLoader."""
    options = {
        "num_workers": job["workers"],
        "pin_memory": _pins_memory(job, cuda),
        "generator": _make_generator(job, strategy.rank),
    }
    if job["workers"] > 0:  # torch refuses these options without workers
        options.update(prefetch_factor=job["prefetch"], worker_init_fn=partial(_begin_process, os.getpid()))
        options["multiprocessing_context"] = "fork"  # nothing has to be pickled
    return options


def _pins_memory(job, cuda):
    return cuda if job["pin_memory"] == "auto" else job["pin_memory"] and torch.cuda.is_available()


def _make_generator(job, rank=0):
    """Return a random generator for one use, and for one rank if each rank needs its own."""
    # A DataLoader draws a seed when it starts its workers. From the shuffling generator, that would make the order
    # depend on `workers`; from the default one, the model's weights.
    return torch.Generator().manual_seed(rank_seed(job["seed"], rank))


def _begin_process(parent, _number):
    """Initialize a DataLoader worker: end with the parent and ignore Ctrl-C; torch has seeded it already."""
    die_with_parent()
    if os.getppid() != parent:  # the parent ended before die_with_parent took effect
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
