"""Windows: one epoch of training or one evaluation each, between two readings of the controller's counters."""

import math
import signal
from array import array
from itertools import islice
from typing import Any, Callable, Iterable, Optional, Tuple

from epochmeter.shared.protocol import RankWindow, Recorded, WindowClosed, WindowMeasured, WindowOpening
from epochmeter.shared.record import RANK_INTERVALS, Record
from epochmeter.shared.types import FloatArray
from epochmeter.worker.clock import Clock
from epochmeter.worker.communication import ExposedCommunication, rank_rows
from epochmeter.worker.connection import RankedConnection
from epochmeter.worker.data.loader import Loader
from epochmeter.worker.device import peak_memory, synchronize_and_reset_peaks
from epochmeter.worker.loop import EpochStats
from epochmeter.worker.phases import StepPhases
from epochmeter.worker.strategy import Single
from epochmeter.worker.trainer import Trainer


class SuspendCounter:
    """Count SIGCONT signals in `count`, as when a cluster suspends and resumes its job; clocks do not show it."""

    def __init__(self) -> None:
        self.count = 0
        signal.signal(signal.SIGCONT, self._on_continue)
        signal.siginterrupt(signal.SIGCONT, False)  # restart interrupted system calls, as without a handler

    def _on_continue(self, number: int, frame: object) -> None:
        self.count += 1


class WindowRunner:
    """Open and close windows together with the controller and all ranks, each with its own clock and device.

    The first rank records the steps: their times are its own, their losses are means over the samples of all ranks.
    Training ends before the step `stop`, counted over all epochs. The loss is printed after every `log_every` steps.
    """

    def __init__(
        self,
        record: Record,
        connection: RankedConnection,
        clock: Clock,
        phases: StepPhases,
        trainer: Trainer,
        strategy: Single,
        suspends: SuspendCounter,
        communication: ExposedCommunication,
        stop: float = math.inf,
        log_every: Optional[int] = None,
    ) -> None:
        self._record, self._connection, self._strategy = record, connection, strategy
        self._clock, self._phases, self._trainer, self._suspends = clock, phases, trainer, suspends
        self._communication, self._stop, self._log_every = communication, stop, log_every

    def epoch(self, number: int, loader: Loader) -> bool:
        """Train an epoch, or its steps before `stop`; return whether it was the last."""
        steps = len(loader)
        remaining = self._stop - number * steps
        if remaining >= steps:
            return self._measure("epoch", number, loader, self._trainer.train_epoch) or remaining == steps
        self._measure("epoch", number, loader, self._trainer.train_epoch, int(remaining))
        return True

    def val(self, number: int, loader: Loader) -> bool:
        """Evaluate after an epoch; return whether it was the last."""
        self._strategy.broadcast_buffers(self._trainer.model)
        return self._measure("val", number, loader, self._trainer.evaluate_epoch)

    def _measure(
        self,
        name: str,
        epoch: int,
        loader: Loader,
        run: Callable[[Iterable[Any]], EpochStats],
        steps: Optional[int] = None,
    ) -> bool:
        """Measure a pass over the loader, or its first steps only; return whether training ends with it."""
        clock, device, length = self._clock, self._trainer.device, len(loader)
        opening = WindowOpening(name, epoch, steps or length)
        if steps is not None:
            opening = opening._replace(partial=True, epoch_steps=length)
        synchronize_and_reset_peaks(device)
        self._connection.request(opening)
        suspends = self._suspends.count
        move = self._trainer.move
        if name == "epoch":
            move = self._communication.moving(self._phases.moving(move))
        clock.open()
        if name == "epoch":
            self._phases.open()
            self._communication.open()
        batches: Iterable[Any] = clock.batches(islice(loader, steps), move)
        if name == "epoch" and self._log_every:
            batches = self._connection.logging(batches, self._log_every, self._trainer.last_loss)
        stats = run(batches)
        clock.close()
        paused = self._suspends.count > suspends
        times = (clock.opened_ns, clock.closed_ns)
        _, *nodes = self._connection.request_all(WindowClosed(*times))
        parts = dict(clock.parts(), samples=stats.samples, **peak_memory(device))
        loaded = loader.parts(clock.rows)
        totals = stats.totals()
        rank_steps = 0
        if name == "epoch":
            self._communication.close()
            self._phases.close()
            parts.update(self._phases.parts(parts["compute_s"]))
            parts.update(loaded, learning_rate=self._trainer.learning_rate())
            if self._trainer.unit:
                parts[self._trainer.unit] = stats.samples if self._trainer.unit == "images" else totals.weight
            self._write_steps(clock.rows, stats)
            if self._communication.is_on:
                waits_s = self._communication.waits_s(steps or length)
                parts["communication_s"] = math.fsum(waits_s)
                rank_steps = self._write_ranks(rank_rows(clock.rows, waits_s))
        elif "skipped_samples" in loaded:  # they are missing from the score
            parts["skipped_samples"] = loaded["skipped_samples"]
        measured = RankWindow(
            *times, self._strategy.node, parts, list(loader.bad), paused,
            totals.weight, totals.loss_sum, totals.correct, self._strategy.rank,
        )  # fmt: skip
        ranks = self._strategy.all_gather(measured)
        recorded: Recorded = self._connection.request(WindowMeasured(ranks, nodes, rank_steps))
        return recorded.stop

    def _write_steps(self, rows: FloatArray, stats: EpochStats) -> None:
        steps = zip(*self._strategy.all_gather(list(zip(stats.losses(), stats.weights()))))
        if self._strategy.rank == 0:
            self._record.append_steps(rows)
            self._record.append_losses(array("f", map(_mean_loss, steps)))

    def _write_ranks(self, rows: FloatArray) -> int:
        """Write the steps of all ranks; return their number, which is that of the rank with the fewest."""
        of_ranks = self._strategy.all_gather(rows)
        count = min(map(len, of_ranks))
        if self._strategy.rank == 0:
            self._record.append_rank_rows(array("f", [value for rows in of_ranks for value in rows[:count]]))
        return count // len(RANK_INTERVALS)


def _mean_loss(step: Iterable[Tuple[float, float]]) -> float:
    """Return the mean loss of a step over the samples of all ranks; NaN if all samples are ignored."""
    return sum(loss * weight for loss, weight in step) / (sum(weight for _, weight in step) or math.nan)
