"""A model on its device, with what it learns by."""

import copy

import torch

from trainmeter.build import build
from trainmeter.worker.device import each
from trainmeter.worker.loop import Tally, evaluate, train
from trainmeter.worker.precision import precise


class Learner:
    """Learns from batches, or is judged by them; `move` brings a batch to its device."""

    def __init__(self, job, task, strategy, device):
        self.device = device
        self.model = build(job["model"])
        check_inputs(self.model, job, task)
        self.model.to(device)
        self._task = task
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
        """Counts and bytes of the model."""
        parameters = list(self.model.parameters())
        tensors = parameters + list(self.model.buffers())
        return {
            "parameters": sum(p.numel() for p in parameters if p.requires_grad),
            "weight_bytes": sum(t.numel() * t.element_size() for t in tensors),
        }


def check_inputs(model, job, task):
    """Refuses a model that cannot take the dataset's samples, before anything is measured; ValueError.

    Shapes are worked out on torch's meta device, which computes nothing. Not all that trains can be run there, so a
    refusal is confirmed by two samples on the CPU.
    """
    inputs, _ = task.example(job["dataset"], 2, torch.Generator())
    try:
        _run(copy.deepcopy(model).to("meta"), each(lambda tensor: tensor.to("meta"), inputs))
    except Exception:
        try:
            _run(model, inputs)
        except Exception as error:
            size, channels = job["dataset"]["size"], job["dataset"]["channels"]
            raise ValueError(
                "model {} cannot take the images of dataset {}, {} x {} x {}: {}. Set dataset.size, or take another "
                "model.".format(
                    job["model"]["name"], job["dataset"]["name"], channels, size, size, str(error).splitlines()[0]
                )
            ) from error


def _run(model, inputs):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.eval()
        model(inputs)
