"""Trainer: model, optimizer and learning rate schedule on a device."""

from typing import TYPE_CHECKING, Any, Dict, Iterable, Optional, Union, cast

import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.shared.problem import input_error
from epochmeter.shared.types import Document
from epochmeter.worker.bleu import translate_greedily
from epochmeter.worker.device import batch_mover, sample_count
from epochmeter.worker.loop import EpochStats, evaluate, train
from epochmeter.worker.models.model_stats import ModelStats, compute_model_stats
from epochmeter.worker.models.shape_check import check_inputs
from epochmeter.worker.phases import StepPhases
from epochmeter.worker.precision import autocast_and_scaler
from epochmeter.worker.schedules import Constant, scaled_optimizer
from epochmeter.worker.strategy import Single
from epochmeter.worker.timeline import Timeline

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler  # from torch 2.0 on

    from epochmeter.worker.tasks import Task


class Trainer:
    """Train and evaluate a model; `model` is without wrappers, and `move` copies a batch to the device."""

    _stats: EpochStats

    def __init__(self, job: Document, task: "Task", strategy: Single, device: torch.device) -> None:
        self.device = device
        self.model: torch.nn.Module = instantiate_spec(job["model"])
        check_inputs(self.model, job, task)
        self._autocast, self._scaler = autocast_and_scaler(job["precision"], device)
        images = torch.channels_last if job["channels_last"] else torch.preserve_format
        self.move = batch_mover(device, images)
        self.model.to(device, memory_format=images)
        self._job, self._task = job, task
        self.unit: Optional[str] = getattr(task, "unit", None)
        """Of the throughput, in addition to samples: `images` or `tokens`."""
        self._train_model, self._eval_model = strategy.wrap(self.model, device)
        if job["compile"]:
            self._train_model, self._eval_model = compile_model(self._train_model), compile_model(self._eval_model)
        optimizer = scaled_optimizer(job, strategy.ranks)
        self.optimizer: torch.optim.Optimizer = instantiate_spec(optimizer, self.model.parameters())
        self._schedule: Union[LRScheduler, Constant] = instantiate_spec(job["scheduler"], self.optimizer)
        self._parts = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self._schedule,
            "scaler": self._scaler,
        }  # loaded in this order, as a schedule may read its optimizer

    def train_epoch(self, batches: Iterable[Any]) -> EpochStats:
        """Train on batches that are on the device, and return their `EpochStats`."""
        self._stats = EpochStats(self._task, sample_count)
        train(self._train_model, batches, self._task, self.optimizer, self._stats, self._autocast, self._scaler)
        return self._stats

    def evaluate_epoch(self, batches: Iterable[Any]) -> EpochStats:
        self._stats = EpochStats(self._task, sample_count)
        evaluate(self._eval_model, batches, self._task, self._stats, self._autocast)
        return self._stats

    def translate(self, sources: torch.Tensor) -> torch.Tensor:
        """Return the translations of (N, length) sources by a model of the task `Translation`, on the CPU."""
        self.model.eval()
        with self._autocast:
            return translate_greedily(self.model, sources.to(self.device)).cpu()

    def phases(self, timeline: Timeline) -> StepPhases:
        """Return what times the phases of training steps, on a timeline of its own."""
        return StepPhases(timeline, self._train_model, self.optimizer)

    def last_loss(self) -> float:
        return self._stats.last_loss()

    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def step_scheduler(self) -> None:
        self._schedule.step()

    def state(self) -> Dict[str, object]:
        return {name: component.state_dict() for name, component in self._parts.items()}

    def load(self, state: Document) -> None:
        for name, component in self._parts.items():
            component.load_state_dict(state[name])

    def model_stats(self) -> ModelStats:
        return compute_model_stats(self.model, self._job, self._task, self.device)


def compile_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model compiled by torch; ValueError if torch is older than 2.0."""
    if not hasattr(torch, "compile"):
        message = "compile=true, but torch {} has no torch.compile (new in 2.0)".format(torch.__version__)
        hint = "set compile=false, or set device.python to an interpreter with a newer torch"
        raise input_error(message, hint, key="compile")
    return cast("torch.nn.Module", torch.compile(model))  # torch states a function
