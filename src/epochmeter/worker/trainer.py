"""Trainer: model, optimizer and learning rate schedule on a device."""

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.device import batch_mover, sample_count
from epochmeter.worker.loop import EpochStats, evaluate, train
from epochmeter.worker.models.model_stats import compute_model_stats
from epochmeter.worker.models.shape_check import check_inputs
from epochmeter.worker.precision import autocast_and_scaler
from epochmeter.worker.schedules import scaled_optimizer


class Trainer:
    """Train and evaluate a model; `model` is without wrappers, and `move` copies a batch to the device."""

    def __init__(self, job, task, strategy, device):
        self.device = device
        self.model = instantiate_spec(job["model"])
        check_inputs(self.model, job, task)
        self._autocast, self._scaler = autocast_and_scaler(job["precision"], device)
        images = torch.channels_last if job["channels_last"] else torch.preserve_format
        self.move = batch_mover(device, images)
        self.model.to(device, memory_format=images)
        self._job, self._task = job, task
        self.unit = getattr(task, "unit", None)  # of the throughput, in addition to samples: `images` or `tokens`
        self._train_model, self._eval_model = strategy.wrap(self.model, device)
        if job["compile"]:
            self._train_model, self._eval_model = compile_model(self._train_model), compile_model(self._eval_model)
        self.optimizer = instantiate_spec(scaled_optimizer(job, strategy.ranks), self.model.parameters())
        self._schedule = instantiate_spec(job["scheduler"], self.optimizer)
        self._parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self._schedule}
        self._parts["scaler"] = self._scaler  # loaded in this order, as a schedule may read its optimizer

    def train_epoch(self, batches):
        """Train on batches that are on the device, and return their `EpochStats`."""
        self._stats = EpochStats(self._task, sample_count)
        train(self._train_model, batches, self._task, self.optimizer, self._stats, self._autocast, self._scaler)
        return self._stats

    def evaluate_epoch(self, batches):
        self._stats = EpochStats(self._task, sample_count)
        evaluate(self._eval_model, batches, self._task, self._stats, self._autocast)
        return self._stats

    def last_loss(self):
        return self._stats.last_loss()

    def learning_rate(self):
        return float(self.optimizer.param_groups[0]["lr"])

    def step_scheduler(self):
        self._schedule.step()

    def state(self):
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load(self, state):
        for name, part in self._parts.items():
            part.load_state_dict(state[name])

    def model_stats(self):
        return compute_model_stats(self.model, self._job, self._task, self.device)


def compile_model(model):
    """Return the model compiled by torch; ValueError if torch is older than 2.0."""
    if not hasattr(torch, "compile"):
        remedy = "Set compile=false, or set device.python to an interpreter with a newer torch."
        message = "compile=true, but torch {} has no torch.compile (new in 2.0). {}"
        raise ValueError(message.format(torch.__version__, remedy))
    return torch.compile(model)
