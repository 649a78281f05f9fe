"""Overhead of measuring with two gloo ranks: epoch time of epochmeter over that of a script for torchrun.

The script uses DistributedDataParallel, DistributedSampler and a plain DataLoader, and sums loss and accuracy. The same
two processes run both in turn, and the slower rank counts, so that other load affects both. LeNet on digits, no
DataLoader workers, on the CPU: steps of about a millisecond, for which the overhead is largest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common.jobs import composed
from common.output import print_table, sized
from common.pairs import COLUMNS, Ratio, ratio
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from epochmeter.config.installation import ROOT
from epochmeter.config.schema import Dataset, Storage
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.clock import Clock
from epochmeter.worker.communication import ExposedCommunication
from epochmeter.worker.data.loader import make_loader, open_split
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.timeline import HostTimeline
from epochmeter.worker.trainer import Trainer

RANKS, WITHIN, MOST = 2, 0.005, 120
RECIPES = {
    "LeNet, batch 16": ["model=lenet", "dataset=digits", "batch=16"],
    "LeNet, batch 64": ["model=lenet", "dataset=digits", "batch=64"],
}


class Bench:
    """One recipe, trained for an epoch in two ways; both return the duration of the slower rank in seconds."""

    def __init__(self, job: dict, strategy, device: torch.device) -> None:
        dataset, storage = Dataset.from_dict(job["dataset"]), Storage.from_dict(job["storage"])
        folder = prepare_dataset(dataset, storage, ROOT, print)["folder"]
        task = instantiate_spec(job["task"])
        self.strategy = strategy
        self.loader = make_loader(open_split(job["dataset"], folder, "train"), job, strategy, False)
        self.trainer = Trainer(job, task, strategy, device)
        self.clock, self.communication = Clock(HostTimeline()), ExposedCommunication(HostTimeline())
        torch.manual_seed(job["seed"])
        self.model = DistributedDataParallel(instantiate_spec(job["model"]))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        samples = instantiate_spec(
            job["dataset"]["open"]["files"], folder, "train", preprocessing(job["dataset"], "train")
        )
        self.sampler = DistributedSampler(samples)
        self.by_hand = DataLoader(samples, batch_size=job["batch"], sampler=self.sampler)
        self.epochs = 0

    def measured(self) -> float:
        begun = self._begin()
        self.clock.open()
        self.communication.open()
        self.trainer.train_epoch(self.clock.batches(self.loader, self.communication.moving(self.trainer.move)))
        self.clock.close()
        self.communication.close()
        return self._slower(time.perf_counter() - begun)

    def bare(self) -> float:
        begun = self._begin()
        self.epochs += 1
        self.sampler.set_epoch(self.epochs)
        self.model.train()
        total, right = torch.zeros(()), torch.zeros((), dtype=torch.long)
        for images, labels in self.by_hand:
            self.optimizer.zero_grad()
            outputs = self.model(images)
            loss = cross_entropy(outputs, labels)
            loss.backward()
            self.optimizer.step()
            total += loss.detach() * len(labels)
            right += (outputs.argmax(1) == labels).sum()
        return self._slower(time.perf_counter() - begun)

    def _begin(self) -> float:
        self.strategy.broadcast(None)
        return time.perf_counter()

    def _slower(self, seconds: float) -> float:
        return max(self.strategy.all_gather(seconds))


def rank(path: str) -> None:
    """Run one rank; the first writes the ratios to `path`."""
    torch.set_num_threads(1)
    recipes = list(RECIPES.items())[sized(0, 1) :]
    jobs = {name: composed("strategy=ddp", "workers=0", *recipe) for name, recipe in recipes}
    strategy = instantiate_spec(next(iter(jobs.values()))["strategy"])
    device = strategy.set_up("cpu")
    rows = {}
    for name, job in jobs.items():
        bench = Bench(job, strategy, device)
        for warm_up in (bench.measured, bench.bare):
            warm_up()
        step_s = bench.bare() / len(bench.loader)
        rows[name] = (step_s, ratio(bench.measured, bench.bare, WITHIN, MOST))
    if strategy.rank == 0:
        Path(path).write_text(json.dumps(rows))
    strategy.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "rows.json")
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={RANKS}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run([sys.executable, *torchrun, __file__, path, *sys.argv[1:]], env=environment, check=True)
        rows = json.loads(Path(path).read_text())
    print_table(
        "Two gloo ranks on the CPU: epoch time of epochmeter / of a script for torchrun",
        ("digits, workers=0, one thread per rank", "ms per step", *COLUMNS),
        [[name, f"{1e3 * step_s:.2f}", *Ratio(*result).cells()] for name, (step_s, result) in rows.items()],
    )


if __name__ == "__main__":
    rank(sys.argv[1]) if "RANK" in os.environ else main()
