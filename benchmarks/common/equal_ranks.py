"""Steps of gloo ranks that are equal, measured as in the loop of `train.py`, without the start of a run for each."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from epochmeter.worker.clock import Clock
from epochmeter.worker.communication import ExposedCommunication, rank_rows
from epochmeter.worker.timeline import HostTimeline

BATCH, WIDTH, PAUSE_S = 32, 64, 0.5


class Load(NamedTuple):
    """What each rank does: steps of an epoch, epochs after the warm-up, and how long each step sleeps."""

    ranks: int
    steps: int
    epochs: int = 5
    sleep_s: float = 0.0


def steps_of(load: Load, runs: int, port: int) -> list[np.ndarray]:
    """Return the rows of each run: rank, step, interval. The runs have the same processes, one after another."""
    context: Any = multiprocessing.get_context("fork")
    queue = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, load, runs, port, queue)) for rank in range(load.ranks)]
    for process in ranks:
        process.start()
    rows = dict(queue.get(timeout=1200) for _ in range(runs * load.ranks))
    for process in ranks:
        process.join()
    return [np.stack([rows[run, rank] for rank in range(load.ranks)]) for run in range(runs)]


def _rank(rank: int, load: Load, runs: int, port: int, queue: Any) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=load.ranks)
    for run in range(runs):
        queue.put(((run, rank), np.concatenate(_epochs(load))))
        time.sleep(PAUSE_S)
    distributed.barrier()
    distributed.destroy_process_group()


def _epochs(load: Load) -> Sequence[np.ndarray]:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.randn(load.steps * BATCH, WIDTH), BATCH)  # type: ignore[arg-type]  # a sequence
    clock, waits, epochs = Clock(HostTimeline()), ExposedCommunication(HostTimeline()), []
    for _ in range(1 + load.epochs):
        distributed.barrier()
        clock.open()
        waits.open()
        for batch in clock.batches(loader, waits.moving(lambda batch: batch)):
            time.sleep(load.sleep_s)
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        clock.close()
        waits.close()
        rows = rank_rows(clock.rows, waits.waits_s(load.steps))
        epochs.append(np.array(rows, dtype=np.float64).reshape(load.steps, -1))
    return epochs[1:]
