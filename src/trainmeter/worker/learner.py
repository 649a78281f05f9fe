"""A model on its device, with what it learns by."""

import copy

import torch

from trainmeter.build import build
from trainmeter.worker.loop import Tally, evaluate, train


class Learner:
    """Learns from batches, or is judged by them; `move` brings a batch to its device."""

    def __init__(self, job, device):
        self.device = device
        self.model = build(job["model"])
        check_inputs(self.model, job)
        self.model.to(device)
        self._criterion = torch.nn.CrossEntropyLoss()
        self._optimizer = build(job["optimizer"], self.model.parameters())

    def move(self, batch):
        inputs, targets = batch
        return inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)

    def learn(self, batches):
        """One pass of training; the tally of what was seen."""
        tally = Tally(self.device)
        train(self.model, batches, self._criterion, self._optimizer, tally)
        return tally

    def judge(self, batches):
        """One pass without learning; the tally of what was seen."""
        tally = Tally(self.device)
        evaluate(self.model, batches, self._criterion, tally)
        return tally

    def facts(self):
        """Counts and bytes of the model."""
        parameters = list(self.model.parameters())
        tensors = parameters + list(self.model.buffers())
        return {
            "parameters": sum(p.numel() for p in parameters if p.requires_grad),
            "weight_bytes": sum(t.numel() * t.element_size() for t in tensors),
        }


def check_inputs(model, job):
    """Refuses a model that cannot take the dataset's images, before anything is measured; ValueError.

    Shapes are worked out on torch's meta device, which computes nothing. Not all that trains can be run there, so a
    refusal is confirmed by two samples on the CPU.
    """
    size, channels = job["dataset"]["size"], job["dataset"]["channels"]
    images = torch.zeros(2, channels, size, size)
    try:
        _run(copy.deepcopy(model).to("meta"), images.to("meta"))
    except Exception:
        try:
            _run(model, images)
        except Exception as error:
            raise ValueError(
                "model {} cannot take the images of dataset {}, {} x {} x {}: {}. Set dataset.size, or take another "
                "model.".format(
                    job["model"]["name"], job["dataset"]["name"], channels, size, size, str(error).splitlines()[0]
                )
            ) from error


def _run(model, images):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.eval()
        model(images)
