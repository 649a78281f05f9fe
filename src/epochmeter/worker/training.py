"""The training process, which trains the job in the job.json of a run's folder.

Its steps, with the controller's part in brackets:

    build model, data, optimizer; measure the device's peaks
    for each epoch:
        wait for the device; request WindowOpening [counters read]
        train; wait for the device; request WindowClosed [counters read]
        request WindowMeasured [recorded, published]
        write the checkpoint, if one is due
        the same for the evaluation
    save the weights, record a trace

Afterwards, a program of NVIDIA Nsight may start a second one for a few steps.
"""

import itertools
import math
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Tuple, Union

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.shared.protocol import Built, Finished, PeaksBorder, RankFailed, Traced, TraceFailed, Trained
from epochmeter.shared.record import MEMORY, TRACE, Record
from epochmeter.shared.types import Document
from epochmeter.worker import rng
from epochmeter.worker.bleu import BleuError, check_bleu, measure_bleu
from epochmeter.worker.checkpoint import Checkpoint
from epochmeter.worker.clock import Clock
from epochmeter.worker.communication import ExposedCommunication
from epochmeter.worker.connection import ControllerConnection, RankedConnection
from epochmeter.worker.data.loader import Loader, make_loaders
from epochmeter.worker.device import choose_algorithms, describe_device, make_timeline
from epochmeter.worker.errors import describe_failure, is_peer_rank_error
from epochmeter.worker.memory import record_memory
from epochmeter.worker.models.shape_check import check_smallest
from epochmeter.worker.peaks import device_peaks
from epochmeter.worker.strategy import Single, rank_seed
from epochmeter.worker.timeline import monotonic_ns, wall_offset_ns
from epochmeter.worker.trace import NsightTrace, NullProfiler, TorchTrace, module_ranges
from epochmeter.worker.trainer import Trainer
from epochmeter.worker.windows import SuspendCounter, WindowRunner

if TYPE_CHECKING:
    from epochmeter.worker.tasks import Task

IMPORTED_NS = monotonic_ns()  # this module imports torch
EXIT_WAIT_S = 5.0
"""How long a rank waits before it exits after another rank failed, so that the controller sees the failed one first."""


def main(folder: str, connection: ControllerConnection, rank: int, under_nsight: bool) -> None:
    """Train, or train a few steps `under_nsight`; report a failure to the controller."""
    record = Record(folder)
    try:
        (train_under_nsight if under_nsight else run_training)(record, connection)
    except Exception as error:
        traceback.print_exc()
        connection.send(RankFailed(describe_failure(error, record.job()), rank))
        if is_peer_rank_error(error):
            time.sleep(EXIT_WAIT_S)
        raise SystemExit(1) from error


def build(record: Record, job: Document) -> Tuple[Single, Trainer, Loader, List[Loader]]:
    """Return the strategy, the trainer, the loader for training, and that for evaluation in a list, if there is one."""
    rng.seed_all(job["seed"])
    choose_algorithms(job["deterministic"], job["cudnn_benchmark"])
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    strategy: Single = instantiate_spec(job["strategy"])
    task: Task = instantiate_spec(job["task"])
    device = strategy.set_up(job["device"]["accelerator"])
    training, *validation = make_loaders(job, record.run()["dataset"], task, strategy, device.type == "cuda")
    trainer = Trainer(job, task, strategy, device)
    check_smallest(trainer.model, job, training.count, task, strategy.replicas)
    if strategy.rank:  # ranks start with the same weights, but have their own random numbers in training
        rng.seed_all(rank_seed(job["seed"], strategy.rank))
    return strategy, trainer, training, validation


def run_training(record: Record, connection: ControllerConnection) -> None:
    job = record.job()
    scores_bleu = job["task"].get("bleu") and record.run()["dataset"]["folder"] is not None
    if scores_bleu:
        check_bleu(job["dataset"])
    strategy, trainer, training, validation = build(record, job)
    ranks = RankedConnection(connection, strategy)
    observe = partial(ranks.progress, last_loss=trainer.last_loss) if job["log_loss"] else ranks.progress
    clock = Clock(make_timeline(trainer.device), synchronous=job["timing"] == "synchronous", observe=observe)
    stop = job["throughput"]["stop"] if job["throughput"]["exit"] else math.inf
    phases = trainer.phases(make_timeline(trainer.device))
    timeline = make_timeline(trainer.device) if strategy.ranks > 1 else None
    communication = ExposedCommunication(timeline, is_compiled=job["compile"])
    suspends, log_every = SuspendCounter(), job["log_every"]
    windows = WindowRunner(record, ranks, clock, phases, trainer, strategy, suspends, communication, stop, log_every)
    built = describe_training(record, job, strategy, trainer, lambda: connection.request(PeaksBorder()).text)
    checkpoint = Checkpoint(record, trainer, (training, *validation), strategy, job["checkpoint"]["every"])
    completed, ended = checkpoint.resume()  # just before training: other code may draw random numbers
    ranks.request(built)
    if not ended:
        train(range(completed, job["epochs"]), windows, trainer, checkpoint, training, *validation)
    saves_ns = checkpoint.saves_ns
    if job["save_model"] and strategy.rank == 0:
        begun_ns = monotonic_ns()
        torch.save(trainer.model.state_dict(), str(record.folder / "weights.pt"))
        saves_ns.append([begun_ns, monotonic_ns()])
    bleu, no_bleu = None, None
    if scores_bleu:
        folder = record.run()["dataset"]["folder"]
        try:
            bleu = measure_bleu(
                trainer.translate, job["dataset"], folder, job["batch"], strategy, ranks.note_translated
            )
        except BleuError as error:  # the training is complete
            no_bleu = str(error)
    ranks.request(Trained(saves_ns, bleu, no_bleu))
    record_profile(record, job, strategy, trainer, training, connection)
    connection.send(Finished())
    strategy.close()


def train(
    epochs: range,
    windows: WindowRunner,
    trainer: Trainer,
    checkpoint: Checkpoint,
    training: Loader,
    validation: Optional[Loader] = None,
) -> None:
    """Train and evaluate epochs until training ends; a resumed run begins with the evaluation after its checkpoint.

    A checkpoint precedes the evaluation, so that an epoch is not lost if its evaluation fails.
    """
    if validation and epochs.start and windows.val(epochs.start - 1, validation):
        return
    for epoch in epochs:
        last = windows.epoch(epoch, training)
        trainer.step_scheduler()
        checkpoint.write(epoch + 1, ended=last)
        if last or (validation and windows.val(epoch, validation)):
            return


def describe_training(
    record: Record, job: Document, strategy: Single, trainer: Trainer, disturbance: Callable[[], str]
) -> Built:
    """Return the statistics of the model and the facts of the device, with its measured peaks."""
    stats, facts = trainer.model_stats(), dict(describe_device(trainer.device), **strategy.describe())
    if stats.operators is not None:
        facts["operators"] = stats.operators
    facts["conventions"] = stats.conventions
    peaks = None
    if strategy.rank == 0:
        peaks = device_peaks(job, record.run().get("applied", {}), record.host(), trainer.device, disturbance)
    facts["peaks"] = strategy.broadcast(peaks)  # the other ranks wait, so that the device is idle
    return Built(stats.metrics, facts, IMPORTED_NS)


def record_profile(
    record: Record,
    job: Document,
    strategy: Single,
    trainer: Trainer,
    loader: Loader,
    connection: ControllerConnection,
) -> None:
    """Write the first rank's trace and memory; all ranks train the same steps. A failure is sent, and fails no run."""
    first = strategy.rank == 0
    profiler: Union[TorchTrace, NullProfiler] = instantiate_spec(job["profiler"])
    endless = endless_batches(trainer, loader)
    missing = "trace"
    try:
        with module_ranges(trainer.model if first and not job["compile"] else None):  # hooks would compile it again
            profiler.record_trace(str(record.folder / TRACE) if first else None, endless, trainer.train_epoch)
            if profiler.traced_ns:
                connection.send(Traced(*profiler.traced_ns, wall_offset_ns(), loader.load_times()))
            missing = "memory by kind"
            if profiler.records_memory:
                record_memory(str(record.folder / MEMORY) if first else None, trainer, next(endless))
    except Exception as error:
        traceback.print_exc()
        if not is_peer_rank_error(error):
            connection.send(TraceFailed(describe_failure(error, job).within("no {}".format(missing))))


def train_under_nsight(record: Record, connection: ControllerConnection) -> None:
    """Train the first steps again; Nsight, which started this process, profiles some of them."""
    job = record.job()
    strategy, trainer, training, _ = build(record, job)
    profiler: NsightTrace = instantiate_spec(job["profiler"])

    def observed(batches: Iterator[Any]) -> Iterator[Any]:
        for step, batch in enumerate(batches):
            connection.progress(step, monotonic_ns())  # this fails when the controller is gone
            yield batch

    trainer.train_epoch(observed(profiler.mark_steps(endless_batches(trainer, training))))
    connection.send(Finished())
    strategy.close()


def endless_batches(trainer: Trainer, loader: Loader) -> Iterator[Any]:
    """Return the batches of all passes over a loader, on the device."""
    return (trainer.move(batch) for _ in itertools.count() for batch in loader)
