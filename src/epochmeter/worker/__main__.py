"""The training process: `python -m epochmeter.worker RUN_FOLDER` trains the job in the folder's job.json.

What it does, with the controller's part in brackets:

    build model, data, optimizer
    for each epoch:
        wait for the device; request WindowOpening [counters read]
        train; wait for the device; request WindowClosed [counters read]
        request WindowMeasured [recorded, published]
        the same for the evaluation
        write the checkpoint, if one is due
    save the weights, record a trace
"""

import itertools
import math
import os
import sys
import time
import traceback
from functools import partial

import torch

from epochmeter.shared.instantiate import build
from epochmeter.shared.protocol import Built, Finished, RankFailed, TraceFailed, Trained
from epochmeter.shared.record import Record
from epochmeter.worker import rng
from epochmeter.worker.checkpoint import Checkpoint
from epochmeter.worker.clock import Clock
from epochmeter.worker.connection import (
    ControllerConnection,
    RankedConnection,
    die_with_parent,
    dump_stack_on_signal,
)
from epochmeter.worker.data.loader import loaders, notes
from epochmeter.worker.device import choose_algorithms, description, timeline
from epochmeter.worker.errors import failure, is_of_another_rank, message, words
from epochmeter.worker.models.shape_check import check_smallest
from epochmeter.worker.strategy import own_seed
from epochmeter.worker.suspend_counter import Pauses
from epochmeter.worker.trainer import Learner
from epochmeter.worker.windows import Windows

PATIENCE_S = 5.0
"""How long a rank waits before it exits after another rank failed, so that the controller sees the failed one first."""


def main(folder):
    die_with_parent()
    dump_stack_on_signal()
    rank = int(os.environ.get("RANK", 0))
    is_first_of_node = os.environ.get("LOCAL_RANK", "0") == "0"
    connection = ControllerConnection(os.environ["EPOCHMETER_SOCKET"], rank, is_first_of_node)
    record = Record(folder)
    try:
        work(record, connection)
    except Exception as error:
        traceback.print_exc()
        connection.send(RankFailed(failure(error), message(error, record.job()), rank))
        if is_of_another_rank(error):
            time.sleep(PATIENCE_S)
        raise SystemExit(1) from error


def work(record, connection):
    """Train the record's job."""
    job = record.job()
    rng.seed(job["seed"])
    choose_algorithms(job["deterministic"], job["cudnn_benchmark"])
    strategy, task = build(job["strategy"]), build(job["task"])
    device = strategy.device(job["device"]["accelerator"])
    training, *validation = loaders(job, record.run()["dataset"], task, strategy, device.type == "cuda")
    learner = Learner(job, task, strategy, device)
    check_smallest(learner.model, job, task, {size: strategy.smallest(size) for size in training.sizes})
    if strategy.rank:  # the model is the same for all ranks, what it drops is each one's own
        rng.seed(own_seed(job["seed"], strategy.rank))
    ranks = RankedConnection(connection, strategy)
    observe = partial(ranks.progress, last_loss=learner.last_loss) if job["show_loss"] else ranks.progress
    clock = Clock(timeline(device), synchronous=job["timing"] == "synchronous", observe=observe)
    windows = Windows(record, ranks, clock, learner, strategy, Pauses(), until=end_of(job))

    described = dict(description(device), **strategy.facts())
    facts = learner.facts()
    checkpoint = Checkpoint(record, learner, (training, *validation), strategy, job["checkpoint"]["every"])
    trained, ended = checkpoint.resume()  # the last before training: whatever is done in between may draw numbers
    ranks.request(Built(facts, described, notes(job, training)))
    for epoch in range(trained, trained if ended else job["epochs"]):
        last = windows.epoch(epoch, training)
        learner.advance()
        if validation and not last:
            last = windows.val(epoch, *validation)
        checkpoint.write(epoch + 1, ended=last)
        if last:
            break
    first = strategy.rank == 0
    if job["save_model"] and first:
        torch.save(learner.model.state_dict(), str(record.folder / "weights.pt"))
    ranks.request(Trained())
    trace = str(record.folder / "trace.json.gz") if first else None
    why_not = leave_trace(trace, build(job["profiler"]), learner, training)
    if why_not:  # on any rank
        connection.send(TraceFailed(why_not))
    connection.send(Finished())
    strategy.leave()


def end_of(job):
    """Return the step, counted over all epochs, before which training ends; infinity if it ends with its epochs."""
    throughput = job["throughput"]
    return throughput["stop"] if throughput["exit"] else math.inf


def leave_trace(path, profiler, learner, loader):
    """Trace a few steps after everything is measured; return why there is no trace, which fails no run, or None."""
    endless = (learner.move(batch) for _ in itertools.count() for batch in loader)
    try:
        profiler.take(path, endless, learner.learn)
    except Exception as error:
        traceback.print_exc()
        return None if is_of_another_rank(error) else "no trace: {}".format(words(error))
    return None


if __name__ == "__main__":
    main(sys.argv[1])
