"""A model on its device, with what it learns by."""

from trainmeter.build import build
from trainmeter.worker.device import each
from trainmeter.worker.loop import Tally, evaluate, train
from trainmeter.worker.models.facts import facts
from trainmeter.worker.models.fits import check_inputs
from trainmeter.worker.precision import precise


class Learner:
    """Learns from batches, or is judged by them; `move` brings a batch to its device."""

    def __init__(self, job, task, strategy, device):
        self.device = device
        self.model = build(job["model"])
        check_inputs(self.model, job, task)
        self.model.to(device)
        self._job, self._task = job, task
        self._trained = strategy.wrap(self.model, device)
        self._optimizer = build(job["optimizer"], self.model.parameters())
        self._schedule = build(job["scheduler"], self._optimizer)
        self._autocast, self._scaler = precise(job["precision"], device)

    def move(self, batch):
        return each(lambda tensor: tensor.to(self.device, non_blocking=True), batch)

    def learn(self, batches, steps=64):
        """One pass of training, of about so many steps; the tally of what was seen."""
        tally = Tally(self._task, self.device, steps)
        train(self._trained, batches, self._task, self._optimizer, tally, self._autocast, self._scaler)
        return tally

    def judge(self, batches, steps=64):
        """One pass without learning; the tally of what was seen."""
        tally = Tally(self._task, self.device, steps)
        evaluate(self.model, batches, self._task, tally, self._autocast)
        return tally

    def advance(self):
        """An epoch has ended: the schedule of the learning rate goes on."""
        self._schedule.step()

    def facts(self):
        """What the model is, and what learning by it computes and keeps."""
        return facts(self.model, self._job, self._task)
