"""Measured stretches: one pass of training or of evaluation, between two readings of the steward's counters."""

import math
from array import array

from epochmeter.worker.device import memory, settle


class Windows:
    """Opens and closes windows in step with the steward and with all ranks, each by its own clock, on its own device.

    The first rank keeps the steps: their times are its own, their losses the means over the samples of all. Training
    ends before the step `until`, counted over all epochs, be that within one.
    """

    def __init__(self, record, link, clock, learner, strategy, pauses, until=math.inf):
        self._record = record
        self._link = link
        self._clock = clock
        self._learner = learner
        self._strategy = strategy
        self._pauses = pauses
        self._until = until

    def epoch(self, number, loader):
        """Trains an epoch, or what is left of one; whether it was the last."""
        whole = len(loader)
        left = self._until - number * whole
        if left >= whole:
            return self._measure("epoch", number, loader, self._learner.learn) or left == whole
        loader.cut(left)
        self._measure("epoch", number, loader, self._learner.learn, partial=True, whole=whole)
        loader.cut(None)
        return True

    def val(self, number, loader):
        """Evaluates after an epoch; whether that was the last."""
        self._strategy.agree(self._learner.model)
        return self._measure("val", number, loader, self._learner.judge)

    def _measure(self, name, epoch, loader, run, **told):
        clock, device = self._clock, self._learner.device
        settle(device)
        self._link.ask("open", window=name, epoch=epoch, steps=len(loader), **told)
        pauses = self._pauses.count
        clock.open()
        tally = run(clock.batches(loader, self._learner.move))
        clock.close()
        paused = self._pauses.count > pauses
        times = {"opened_ns": clock.opened_ns, "closed_ns": clock.closed_ns}
        _, *nodes = self._link.ask_all("closed", **times)
        parts = dict(clock.parts(), samples=tally.samples, **memory(device))
        loaded = loader.parts(clock.rows)
        if name == "epoch":
            parts.update(loaded, learning_rate=self._learner.learning_rate())
            self._keep(clock.rows, tally)
        elif "skipped_samples" in loaded:  # what a score leaves out is told, too
            parts["skipped_samples"] = loaded["skipped_samples"]
        told = dict(times, node=self._strategy.node, parts=parts, bad=list(loader.bad), paused=paused, **tally.sums())
        return self._link.ask("measured", ranks=self._strategy.gather(told), nodes=nodes)["stop"]

    def _keep(self, rows, tally):
        steps = zip(*self._strategy.gather(list(zip(tally.losses(), tally.weights()))))
        if self._strategy.rank == 0:
            self._record.append_steps(rows)
            self._record.append_losses(array("f", [mean(step) for step in steps]))


def mean(ranks):
    """The loss of all samples of a step, from each rank's loss and weight."""
    return sum(loss * weight for loss, weight in ranks) / sum(weight for _, weight in ranks)
