"""Cost of the timers in the loader: epoch time of LeNet on digits with them over the time without.

Batch size 16. Without DataLoader workers the timers' time adds to the epoch; with one, training may overlap it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from common.jobs import composed
from common.output import print_table
from common.pairs import COLUMNS, ratio
from torch.amp import GradScaler
from torch.utils.data import DataLoader

from epochmeter.config.installation import ROOT
from epochmeter.config.schema import Dataset, Storage
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.data.images import ImageFiles
from epochmeter.worker.data.loader import make_loader, open_split
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.loop import EpochStats, train
from epochmeter.worker.precision import NullContext
from epochmeter.worker.strategy import Single

WITHIN, MOST = 0.004, 150


def epochs(job: dict, workers: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return two functions that time an epoch: with the timed loader, and with torch's own loader.

    Both train the same model on the same samples in order, and start their DataLoader workers each time.
    """
    dataset, storage = Dataset.from_dict(job["dataset"]), Storage.from_dict(job["storage"])
    folder = prepare_dataset(dataset, storage, ROOT, print)["folder"]
    timed = make_loader(
        open_split(job["dataset"], folder, "train"), {**job, "workers": workers}, Single(1), False, is_training=False
    )
    plain = ImageFiles(folder, "train", preprocessing(job["dataset"], "train"))
    how = {"prefetch_factor": job["prefetch"]} if workers else {}
    bare = DataLoader(plain, batch_size=job["batch"], num_workers=workers, **how)
    model = instantiate_spec(job["model"])
    optimizer = instantiate_spec(job["optimizer"], model.parameters())
    task = instantiate_spec(job["task"])

    def epoch(batches: Iterable) -> float:
        begun = time.perf_counter()
        train(model, batches, task, optimizer, EpochStats(task), NullContext(), GradScaler(enabled=False))
        return time.perf_counter() - begun

    return lambda: epoch(timed), lambda: epoch(bare)


def main() -> None:
    torch.set_num_threads(1)
    job = composed("cache=keep")
    print_table(
        "Cost of the timers in the loader: epoch time with / without",
        ("workers", *COLUMNS),
        [[str(workers), *ratio(*epochs(job, workers), WITHIN, MOST).cells()] for workers in (0, 1)],
    )


if __name__ == "__main__":
    main()
