"""A model on its device, with what it learns by."""

import torch

from epochmeter.shared.instantiate import build
from epochmeter.worker.compiling import compiled
from epochmeter.worker.device import count, mover
from epochmeter.worker.loop import Tally, evaluate, train
from epochmeter.worker.models.model_stats import facts
from epochmeter.worker.models.shape_check import check_inputs
from epochmeter.worker.precision import precise
from epochmeter.worker.schedules import scaled


class Learner:
    """Learns from batches, or is judged by them; `move` brings a batch to its device."""

    def __init__(self, job, task, strategy, device):
        self.device = device
        self.model = build(job["model"])
        check_inputs(self.model, job, task)
        self._autocast, self._scaler = precise(job["precision"], device)
        images = image_format(job, task)
        self.move = mover(device, images)
        self.model.to(device, memory_format=images)
        self._job, self._task = job, task
        self._tally = Tally(task, device)
        self._trained, self._judged = strategy.wrap(self.model, device)
        if job["compile"]:
            self._trained, self._judged = compiled(self._trained), compiled(self._judged)
        self._optimizer = build(scaled(job, strategy.ranks), self.model.parameters())
        self._schedule = build(job["scheduler"], self._optimizer)

    def learn(self, batches):
        """One pass of training; the tally of what was seen."""
        self._tally = tally = Tally(self._task, self.device, count)
        train(self._trained, batches, self._task, self._optimizer, tally, self._autocast, self._scaler)
        return tally

    def judge(self, batches):
        """One pass without learning; the tally of what was seen."""
        self._tally = tally = Tally(self._task, self.device, count)
        evaluate(self._judged, batches, self._task, tally, self._autocast)
        return tally

    def last_loss(self):
        """Return the loss of the last step; this waits for the device."""
        return self._tally.last_loss()

    def learning_rate(self):
        """Of the optimizer's first group of parameters, now."""
        return float(self._optimizer.param_groups[0]["lr"])

    def advance(self):
        """An epoch has ended: the schedule of the learning rate goes on."""
        self._schedule.step()

    def state(self):
        """All that it has learned, and what it learns by: the bare model's, whatever it is wrapped in."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load(self, state):
        """Goes on from what `state` gave."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self):
        # In this order: a schedule may look at its optimizer.
        return {
            "model": self.model,
            "optimizer": self._optimizer,
            "schedule": self._schedule,
            "scaler": self._scaler,
        }

    def facts(self):
        """What the model is, and what learning by it computes and keeps."""
        return facts(self.model, self._job, self._task)


def image_format(job, task):
    """How images lie in memory, as the job says; ValueError where their channels are to be last, and there are none."""
    if not job["channels_last"]:
        return torch.preserve_format
    inputs, _ = task.example(job["dataset"], 1, torch.Generator())
    if not isinstance(inputs, torch.Tensor) or inputs.dim() != 4:
        raise ValueError(
            "channels_last=true is for images, and dataset {} has none. Leave it out.".format(job["dataset"]["name"])
        )
    return torch.channels_last
