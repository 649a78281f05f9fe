"""Loaders for training and evaluation, configured by the run."""

import os
import signal
from functools import partial

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.connection import die_with_parent
from epochmeter.worker.data.synthetic import SyntheticBatches
from epochmeter.worker.data.timed_dataset import TimedDataset, TimedLoader
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.strategy import rank_seed


def make_loaders(job, facts, task, strategy, cuda):
    """Return this rank's loader for training and, if the run evaluates, the one for evaluation."""
    dataset, loaders = job["dataset"], []
    is_synthetic = job["synthetic_batches"] or dataset["layout"] == "tensors"
    for split in ("train", "val") if job["evaluate"] else ("train",):
        samples = range(facts["splits"][split]) if is_synthetic else open_split(dataset, facts["folder"], split)
        if len(samples) < strategy.ranks:
            remedy = "Add some, set strategy.ranks or evaluate=false."
            message = "dataset {} has {} samples in split {}, too few for {} ranks. {}"
            raise ValueError(message.format(dataset["name"], len(samples), split, strategy.ranks, remedy))
        is_training = split == "train"
        if is_synthetic:
            count = len(strategy.shard(samples, _make_generator(job) if is_training else None))
            drop_last = is_training and job["drop_last"]
            loaders.append(SyntheticBatches(count, job, task, _pins_memory(job, cuda), drop_last))
        else:
            loaders.append(make_loader(samples, job, strategy, cuda, is_training))
    return loaders


def open_split(dataset, folder, split):
    spec = dataset["open"]
    spec = spec if "_target_" in spec else spec[dataset["layout"]]
    return TimedDataset(
        lambda transform: instantiate_spec(spec, str(folder), split, transform),
        preprocessing(dataset, split),
        skip=dataset.get("on_bad") == "skip",
        folder=str(folder),
    )


def make_loader(samples, job, strategy, cuda, is_training=True):
    """Return the loader for training, shuffled by the seed in a new order each epoch, or for evaluation, in order."""
    shuffled = _make_generator(job) if is_training else None  # the same order on all ranks
    seeds = _make_generator(job, strategy.rank)
    options = {"num_workers": job["workers"], "pin_memory": _pins_memory(job, cuda), "generator": seeds}
    if job["workers"] > 0:  # torch refuses these options without workers
        options.update(prefetch_factor=job["prefetch"], worker_init_fn=partial(_begin_process, os.getpid()))
        options["persistent_workers"] = is_training and job["persistent_workers"]  # none idles in training
        options["multiprocessing_context"] = "fork"  # nothing has to be pickled
    generators = [shuffled, seeds] if is_training else [seeds]
    drop_last = is_training and job["drop_last"]
    return TimedLoader(samples, strategy.shard(samples, shuffled), job["batch"], drop_last, generators, **options)


def _pins_memory(job, cuda):
    return cuda if job["pin_memory"] == "auto" else job["pin_memory"] and torch.cuda.is_available()


def _make_generator(job, rank=0):
    # A DataLoader draws a seed when it starts its workers. From the shuffling generator, that would make the order
    # depend on `workers`; from the default one, the model's weights.
    return torch.Generator().manual_seed(rank_seed(job["seed"], rank))


def _begin_process(parent, _number):
    """Initialize a DataLoader worker: end with the parent and ignore Ctrl-C; torch has seeded it already."""
    die_with_parent()
    if os.getppid() != parent:  # the parent ended before die_with_parent took effect
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
