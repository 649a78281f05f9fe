"""Loaders for training and evaluation, configured by the run."""

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Dict, List, Sized, Union

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.shared.lifetime import die_with_parent
from epochmeter.shared.problem import input_error
from epochmeter.shared.types import Document, StrPath
from epochmeter.worker.data.synthetic import SyntheticBatches
from epochmeter.worker.data.timed_dataset import TimedDataset, TimedLoader
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.strategy import Single, rank_seed

if TYPE_CHECKING:
    from epochmeter.worker.tasks import Task

Loader = Union[TimedLoader, SyntheticBatches]


def make_loaders(job: Document, facts: Document, task: "Task", strategy: Single, cuda: bool) -> List[Loader]:
    """Return this rank's loader for training and, if the run evaluates, the one for evaluation."""
    dataset = job["dataset"]
    loaders: List[Loader] = []
    is_synthetic = job["synthetic_batches"] or dataset["layout"] == "tensors"
    for split in ("train", "val") if job["evaluate"] else ("train",):
        timed = None if is_synthetic else open_split(dataset, facts["folder"], split)
        samples: Sized = range(facts["splits"][split]) if timed is None else timed
        if len(samples) < strategy.ranks:
            message = "dataset {} has {} samples in split {}, too few for {} ranks"
            message = message.format(dataset["name"], len(samples), split, strategy.ranks)
            raise input_error(message, "add some, set strategy.ranks or evaluate=false", key="strategy.ranks")
        is_training = split == "train"
        if timed is None:
            count = len(strategy.shard(samples, _make_generator(job) if is_training else None))
            drop_last = is_training and job["drop_last"]
            loaders.append(SyntheticBatches(count, job, task, _pins_memory(job, cuda), drop_last))
        else:
            loaders.append(make_loader(timed, job, strategy, cuda, is_training))
    return loaders


def open_split(dataset: Document, folder: StrPath, split: str) -> TimedDataset:
    spec = dataset["open"]
    spec = spec if "_target_" in spec else spec[dataset["layout"]]
    return TimedDataset(
        lambda transform: instantiate_spec(spec, str(folder), split, transform),
        preprocessing(dataset, split),
        skip=dataset.get("on_bad") == "skip",
        folder=str(folder),
    )


def make_loader(
    samples: TimedDataset, job: Document, strategy: Single, cuda: bool, is_training: bool = True
) -> TimedLoader:
    """Return the loader for training, shuffled by the seed in a new order each epoch, or for evaluation, in order."""
    shuffled = _make_generator(job) if is_training else None  # the same order on all ranks
    seeds = _make_generator(job, strategy.rank)
    options: Dict[str, object] = {"num_workers": job["workers"], "generator": seeds}
    options["pin_memory"] = _pins_memory(job, cuda)
    if job["workers"] > 0:  # torch refuses these options without workers
        options.update(prefetch_factor=job["prefetch"], worker_init_fn=partial(_begin_process, os.getpid()))
        options["persistent_workers"] = is_training and job["persistent_workers"]  # none idles in training
        options["multiprocessing_context"] = "fork"  # nothing has to be pickled
    generators = [seeds] if shuffled is None else [shuffled, seeds]
    drop_last = is_training and job["drop_last"]
    return TimedLoader(samples, strategy.shard(samples, shuffled), job["batch"], drop_last, generators, **options)


def _pins_memory(job: Document, cuda: bool) -> bool:
    return cuda if job["pin_memory"] == "auto" else bool(job["pin_memory"] and torch.cuda.is_available())


def _make_generator(job: Document, rank: int = 0) -> torch.Generator:
    # A DataLoader draws a seed when it starts its workers. From the shuffling generator, that would make the order
    # depend on `workers`; from the default one, the model's weights.
    return torch.Generator().manual_seed(rank_seed(job["seed"], rank))


def _begin_process(parent: int, _number: int) -> None:
    """Initialize a DataLoader worker: end with the parent and ignore Ctrl-C; torch has seeded it already."""
    die_with_parent()
    if os.getppid() != parent:  # the parent ended before die_with_parent took effect
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
