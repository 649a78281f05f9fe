"""Samples in batches, made by loader processes as the job configures them."""

import os
import signal
from functools import partial

import torch

from epochmeter.shared.instantiate import build
from epochmeter.worker import oom
from epochmeter.worker.connection import die_with_parent
from epochmeter.worker.data.faults import NoMemoryError
from epochmeter.worker.data.synthetic import ReadyBatches
from epochmeter.worker.data.timed_dataset import Timed, batches
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.strategy import own_seed

SPLITS = ("train", "val")


def loaders(job, facts, task, strategy, cuda):
    """Batches to train on and, where the job evaluates, batches to evaluate on, of the dataset that `facts` tell of.

    They are this rank's. What a job does not evaluate on is not even opened.
    """
    dataset = job["dataset"]
    splits = SPLITS if job["evaluate"] else SPLITS[:1]
    if job["ready_batches"] or dataset["layout"] == "tensors":
        _check_counts(job, {split: facts["splits"][split] for split in splits}, strategy.ranks)
        orders = [_seeded(job), None]
        counts = [len(strategy.shard(range(facts["splits"][split]), order)) for split, order in zip(splits, orders)]
        dropping = (job["drop_last"], False)
        made = [ReadyBatches(count, job, task, _pinned(job, cuda), drop) for count, drop in zip(counts, dropping)]
        return _stepping(job, made)
    samples = _opened(dataset, facts["folder"], splits)
    _check_counts(job, {split: len(each) for split, each in zip(splits, samples)}, strategy.ranks)
    made = [make(each, job, strategy, cuda) for make, each in zip((train_loader, val_loader), samples)]
    return _stepping(job, made)


def notes(job, training):
    """What there is to say of these batches before any is trained on."""
    batch, count = job["batch"], training.count
    if count >= batch:
        return []
    return ["batch={} is more than the {} samples that there are: an epoch is one step.".format(batch, count)]


def open_split(dataset, folder, split):
    """The samples of a split, `train` or `val`, of a dataset that is ready in `folder`, timed one by one."""
    how = dataset["open"]
    how = how if "_target_" in how else how[dataset["layout"]]
    return Timed(
        lambda transform: build(how, str(folder), split, transform),
        preprocessing(dataset, split),
        skip=dataset.get("on_bad") == "skip",
        folder=str(folder),
    )


def train_loader(samples, job, strategy, cuda):
    """Batches in an order that the seed alone decides, a new one each epoch; the last one may be smaller, or left out.

    Loader processes live on between epochs if the job says so.
    """
    shuffled = _seeded(job)  # the same numbers on all ranks
    order, how = strategy.shard(samples, shuffled), _how(job, strategy, cuda)
    how["persistent_workers"] = job["persistent_workers"] and job["workers"] > 0
    return batches(samples, order, job["batch"], job["drop_last"], [shuffled, how["generator"]], **how)


def val_loader(samples, job, strategy, cuda):
    """Batches in the samples' own order; its processes end with the window: none idles in training."""
    how = _how(job, strategy, cuda)
    return batches(samples, strategy.shard(samples, None), job["batch"], generators=[how["generator"]], **how)


def _opened(dataset, folder, splits):
    """The samples of each split; memory that does not hold them is told as the layout's, as there is no batch yet."""
    try:
        return [open_split(dataset, folder, split) for split in splits]
    except Exception as error:
        if not oom.is_exhausted(error):
            raise
        told = oom.told(error, "dataset.layout={}".format(dataset["layout"]))
        less = "Set dataset.layout=files, or take" if dataset["layout"] != "files" in dataset["open"] else "Take"
        raise NoMemoryError("{}. {} fewer samples.".format(told, less)) from error


def _check_counts(job, counts, ranks):
    if not counts["train"]:
        raise ValueError("dataset {} has no sample to train on, in train. Add some.".format(job["dataset"]["name"]))
    for split, count in counts.items():
        if 0 < count < ranks:
            raise ValueError(
                "dataset {} has {} samples in {}, too few for {} ranks. Add some, or set strategy.ranks.".format(
                    job["dataset"]["name"], count, split, ranks
                )
            )
    if not counts.get("val", True):
        raise ValueError(
            "dataset {} has no sample to evaluate on, in val. Add some, or train without by evaluate=false.".format(
                job["dataset"]["name"]
            )
        )


def _stepping(job, made):
    """The batches, of which there is at least one to train on."""
    training = made[0]
    if not len(training):
        raise ValueError(
            "batch={} is more than the {} samples that there are, and drop_last=true leaves a smaller one out: no step "
            "is left. Set batch={} or less, or drop_last=false.".format(job["batch"], training.count, training.count)
        )
    return made


def _how(job, strategy, cuda):
    how = {
        "num_workers": job["workers"],
        "pin_memory": _pinned(job, cuda),
        "generator": _seeded(job, strategy.rank),
    }
    if job["workers"] > 0:  # without loader processes torch refuses to be told how they are
        how.update(prefetch_factor=job["prefetch"], worker_init_fn=partial(_begin_process, os.getpid()))
        how["multiprocessing_context"] = "fork"  # they are this process's own, and nothing has to be pickled
    return how


def _pinned(job, cuda):
    return cuda if job["pin_memory"] == "auto" else job["pin_memory"] and torch.cuda.is_available()


def _seeded(job, rank=0):
    """Random numbers for one use alone, and for one rank where each is to have its own.

    A loader draws a seed for its processes when it starts them. Were these the numbers that shuffle, the
    order would depend on `workers`; were they the model's, the model would.
    """
    return torch.Generator().manual_seed(own_seed(job["seed"], rank))


def _begin_process(parent, _number):
    """A loader process ends with its parent and leaves Ctrl-C to it; torch has seeded it already."""
    die_with_parent()
    if os.getppid() != parent:  # which ended before it could be asked for
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
