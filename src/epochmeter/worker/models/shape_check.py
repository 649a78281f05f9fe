"""Check that a model fits the dataset and the batch size, before training."""

import copy
from typing import TYPE_CHECKING, Any, Dict, Tuple

import torch

from epochmeter.shared.problem import input_error
from epochmeter.shared.types import Document
from epochmeter.worker.device import map_tensors
from epochmeter.worker.errors import first_line

if TYPE_CHECKING:
    from epochmeter.worker.tasks import Task


def check_inputs(model: torch.nn.Module, job: Document, task: "Task") -> None:
    """Raise ValueError, with the setting to change, if a model does not train on the dataset's samples."""
    name, dataset = job["model"]["name"], job["dataset"]
    try:
        outputs, targets = dry_run(model, job, task, 2)
    except Exception as error:
        samples, remedy = "samples", "the input shape that the model expects"
        if "size" in dataset:
            samples = "images, {0} x {1} x {1},".format(dataset["channels"], dataset["size"])
            remedy = "another dataset.size"
        message = "model {} does not accept the {} of dataset {}: {}"
        message = message.format(name, samples, dataset["name"], first_line(error))
        raise input_error(message, "set {}, or use another model".format(remedy)) from error
    if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor):
        _check_outputs(outputs, targets, name, dataset)
    target = job["target_accuracy"]
    if target is not None:
        zeros = map_tensors(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype), (outputs, targets))
        if task.correct(*zeros) is None:
            task_name = job["task"]["name"]
            message = "target_accuracy={}: task {} has no accuracy".format(target, task_name)
            raise input_error(message, "set target_loss", key="target_accuracy")


def _check_outputs(outputs: torch.Tensor, targets: torch.Tensor, model: str, dataset: Document) -> None:
    key = next((key for key in ("classes", "words") if key in dataset), None)
    if key is None and targets.is_floating_point() and outputs.shape != targets.shape:
        message = "model {} outputs {} numbers per sample, but dataset {} has {}"
        message = message.format(model, outputs[0].numel(), dataset["name"], targets[0].numel())
        raise input_error(message, "use another model", key="model")
    if key and outputs.shape[:-1] == targets.shape and outputs.shape[-1] < dataset[key]:
        message = "model {} outputs scores for {} {}, but dataset {} has {}"
        message = message.format(model, outputs.shape[-1], key, dataset["name"], dataset[key])
        raise input_error(message, "set model.{}={}".format(key, dataset[key]), key="model." + key)


def check_smallest(model: torch.nn.Module, job: Document, count: int, task: "Task", replicas: int) -> None:
    """Raise ValueError if a batch of one sample occurs on which a model does not train; a rank has `count` samples."""
    batch, rest = job["batch"], 0 if job["drop_last"] else count % job["batch"]
    for size, remedy in ((batch, "a batch with 2 or more samples per device"), (rest, "drop_last=true")):
        share = -(-size // replicas)
        if not 0 < size <= count or (size % share or share) != 1:
            continue
        try:
            dry_run(model, job, task, 1)
        except Exception as error:
            cause = "with batch={} a batch of {} leaves a device only one: {}".format(batch, size, first_line(error))
            message = "model {} cannot train on a single sample, but {}".format(job["model"]["name"], cause)
            raise input_error(message, "set {}".format(remedy), key="batch") from error


def dry_run(model: torch.nn.Module, job: Document, task: "Task", count: int) -> Tuple[Any, Any]:
    """Return the model's outputs in training mode for `count` samples, and their targets; the model is unchanged."""
    try:
        return _train_forward(on_meta(model), job["dataset"], task, count, "meta")
    except Exception:  # not every model runs there
        return _train_forward(copy.deepcopy(model).cpu(), job["dataset"], task, count, "cpu")


def on_meta(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of the model on the meta device: shapes without memory."""
    tensors = [*model.parameters(), *model.buffers()]
    copies: Dict[int, Any] = {id(tensor): tensor.detach().to("meta") for tensor in tensors}
    for parameter in model.parameters():
        copies[id(parameter)] = torch.nn.Parameter(copies[id(parameter)], parameter.requires_grad)
    return copy.deepcopy(model, copies)


def _train_forward(model: torch.nn.Module, dataset: Document, task: "Task", count: int, device: str) -> Tuple[Any, Any]:
    example = task.example(dataset, count, torch.Generator())
    inputs, targets = map_tensors(lambda tensor: tensor.to(device), example, "to", device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        outputs = model.train()(inputs)
    return outputs[0] if isinstance(outputs, tuple) else outputs, targets
