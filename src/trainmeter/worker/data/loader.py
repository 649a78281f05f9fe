"""Samples in batches, made by loader processes as the job configures them."""

import signal

import torch
from torch.utils.data import DataLoader, RandomSampler

from trainmeter.build import build
from trainmeter.worker.data.transforms import preprocessing
from trainmeter.worker.link import die_with_parent


def open_split(dataset, folder, split):
    """The samples of a split, `train` or `val`, of a dataset that is ready in `folder`."""
    return build(dataset["open"], str(folder), split, preprocessing(dataset))


def train_loader(samples, job, cuda):
    """Batches in an order that the seed alone decides, a new one each epoch; the last one may be smaller.

    Loader processes live on between epochs if the job says so.
    """
    order = RandomSampler(samples, generator=_seeded(job))
    persistent = job["persistent_workers"] and job["workers"] > 0
    return DataLoader(samples, sampler=order, persistent_workers=persistent, **_how(job, cuda))


def val_loader(samples, job, cuda):
    """Batches in the samples' own order; its processes end with the window: none idles in training."""
    return DataLoader(samples, **_how(job, cuda))


def _how(job, cuda):
    how = {
        "batch_size": job["batch"],
        "num_workers": job["workers"],
        "pin_memory": cuda if job["pin_memory"] == "auto" else job["pin_memory"],
        "generator": _seeded(job),
    }
    if job["workers"] > 0:  # without loader processes torch refuses to be told how they are
        how.update(prefetch_factor=job["prefetch"], worker_init_fn=_begin_process)
    return how


def _seeded(job):
    """Random numbers for one use alone.

    A loader draws a seed for its processes when it starts them. Were these the numbers that shuffle, the
    order would depend on `workers`; were they the model's, the model would.
    """
    return torch.Generator().manual_seed(job["seed"])


def _begin_process(_number):
    """A loader process ends with its parent and leaves Ctrl-C to it; torch has seeded it already."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
