"""Check that a model fits the dataset and the batch size, before training."""

import copy

import torch

from epochmeter.worker.device import map_tensors
from epochmeter.worker.errors import first_line


def check_inputs(model, job, task):
    """Raise ValueError, with the setting to change, if a model does not train on the dataset's samples."""
    name, dataset = job["model"]["name"], job["dataset"]
    try:
        outputs, targets = dry_run(model, job, task, 2)
    except Exception as error:
        samples, remedy = "samples", "the input shape that the model expects"
        if "size" in dataset:
            samples = "images, {0} x {1} x {1},".format(dataset["channels"], dataset["size"])
            remedy = "another dataset.size"
        message = "model {} does not accept the {} of dataset {}: {}\n  hint: set {}, or use another model"
        raise ValueError(message.format(name, samples, dataset["name"], first_line(error), remedy)) from error
    if isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor):
        _check_outputs(outputs, targets, name, dataset)
    target = job["target_accuracy"]
    if target is not None:
        zeros = map_tensors(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype), (outputs, targets))
        if task.correct(*zeros) is None:
            task_name = job["task"]["name"]
            raise ValueError("target_accuracy={}: task {} has no accuracy. Set target_loss.".format(target, task_name))


def _check_outputs(outputs, targets, model, dataset):
    key = next((key for key in ("classes", "words") if key in dataset), None)
    if key is None and targets.is_floating_point() and outputs.shape != targets.shape:
        message = "model {} outputs {} numbers per sample, but dataset {} has {}. Use another model."
        raise ValueError(message.format(model, outputs[0].numel(), dataset["name"], targets[0].numel()))
    if key and outputs.shape[:-1] == targets.shape and outputs.shape[-1] < dataset[key]:
        message = "model {0} outputs scores for {1} {2}, but dataset {3} has {4}. Set model.{2}={4}."
        raise ValueError(message.format(model, outputs.shape[-1], key, dataset["name"], dataset[key]))


def check_smallest(model, job, count, task, replicas):
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
            message = "model {} cannot train on a single sample, but {}\n  hint: set {}"
            raise ValueError(message.format(job["model"]["name"], cause, remedy)) from error


def dry_run(model, job, task, count):
    """Return the model's outputs in training mode for `count` samples, and their targets; the model is unchanged."""
    try:
        return _train_forward(on_meta(model), job["dataset"], task, count, "meta")
    except Exception:  # not every model runs there
        return _train_forward(copy.deepcopy(model).cpu(), job["dataset"], task, count, "cpu")


def on_meta(model):
    """Return a copy of the model on the meta device: shapes without memory."""
    copies = {id(tensor): tensor.detach().to("meta") for tensor in [*model.parameters(), *model.buffers()]}
    for parameter in model.parameters():
        copies[id(parameter)] = torch.nn.Parameter(copies[id(parameter)], parameter.requires_grad)
    return copy.deepcopy(model, copies)


def _train_forward(model, dataset, task, count, device):
    example = task.example(dataset, count, torch.Generator())
    inputs, targets = map_tensors(lambda tensor: tensor.to(device), example, "to", device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        outputs = model.train()(inputs)
    return outputs[0] if isinstance(outputs, tuple) else outputs, targets
