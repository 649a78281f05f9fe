"""Check that a model fits the dataset and the batch size, before training.

Shapes are computed on torch's meta device. Not every model runs there, so a failure is confirmed on the CPU.
"""

import copy

import torch

from epochmeter.worker.device import map_tensors
from epochmeter.worker.errors import first_line


def check_inputs(model, job, task):
    """Raise ValueError, with the setting to change, if a model does not train on the dataset's samples."""
    dataset = job["dataset"]
    try:
        outputs, targets = dry_run(model, job, task, 2)
    except Exception as error:
        has_images = "size" in dataset
        samples = "images, {0} x {1} x {1},".format(dataset["channels"], dataset["size"]) if has_images else "samples"
        raise ValueError(
            "model {} does not accept the {} of dataset {}: {}. Set {}, or use another model.".format(
                job["model"]["name"],
                samples,
                dataset["name"],
                first_line(error),
                "another dataset.size" if has_images else "the input shape that the model expects",
            )
        ) from error
    if all(isinstance(part, torch.Tensor) for part in (outputs, targets)):  # the shape of other types is not checked
        check_outputs(outputs, targets, job)
    if job["target_accuracy"] is None:
        return
    zeros = map_tensors(lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype), (outputs, targets))
    if task.correct(*zeros) is None:
        raise ValueError(
            "target_accuracy={}: task {} has no accuracy. Set target_loss.".format(
                job["target_accuracy"], job["task"]["name"]
            )
        )


def check_outputs(outputs, targets, job):
    """Raise ValueError, with the setting to change, if a model's outputs do not match the dataset's targets."""
    dataset = job["dataset"]
    key = next((key for key in ("classes", "words") if key in dataset), None)
    if key is None and targets.is_floating_point() and outputs.shape != targets.shape:
        raise ValueError(
            "model {} outputs {} numbers per sample, but dataset {} has {}. Use another model.".format(
                job["model"]["name"], outputs[0].numel(), dataset["name"], targets[0].numel()
            )
        )
    if key and outputs.shape[:-1] == targets.shape and outputs.shape[-1] < dataset[key]:
        raise ValueError(
            "model {0} outputs scores for {1} {2}, but dataset {3} has {4}. Set model.{2}={4}.".format(
                job["model"]["name"], outputs.shape[-1], key, dataset["name"], dataset[key]
            )
        )


def check_smallest(model, job, count, task, replicas):
    """Raise ValueError if a batch of one sample occurs on which a model does not train, as with batch normalization.

    This rank has `count` samples per epoch, and `replicas` copies of the model share a batch.
    """
    full, rest = divmod(count, job["batch"])
    sizes = [job["batch"]] * bool(full) + [rest] * bool(rest and not job["drop_last"])
    shares = {size: -(-size // replicas) for size in sizes}
    single = [size for size, share in shares.items() if (size % share or share) == 1]
    if not single:
        return
    try:
        dry_run(model, job, task, 1)
    except Exception as error:
        raise ValueError(
            "model {} cannot train on a single sample, but with batch={} a batch of {} leaves a device only one: {}. "
            "Set {}.".format(
                job["model"]["name"],
                job["batch"],
                max(single),
                first_line(error),
                "a batch with 2 or more samples per device" if job["batch"] in single else "drop_last=true",
            )
        ) from error


def dry_run(model, job, task, count):
    """Return the model's outputs in training mode for `count` samples, and their targets; the model is unchanged."""
    try:
        return forward_train(on_meta(model), job["dataset"], task, count, "meta")
    except Exception:
        return forward_train(copy.deepcopy(model).cpu(), job["dataset"], task, count, "cpu")


def on_meta(model):
    """Return a copy of the model on the meta device: shapes without memory."""
    tensors = list(model.parameters()) + list(model.buffers())
    copies = {id(tensor): tensor.detach().to("meta") for tensor in tensors}
    copies.update(
        (id(parameter), torch.nn.Parameter(copies[id(parameter)], parameter.requires_grad))
        for parameter in model.parameters()
    )
    return copy.deepcopy(model, copies)


def forward_train(model, dataset, task, count, device):
    """Return the model's outputs for random samples on `device`, and their targets."""
    example = task.example(dataset, count, torch.Generator())
    inputs, targets = map_tensors(lambda tensor: tensor.to(device), example, "to", device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        outputs = model.train()(inputs)
    return outputs[0] if isinstance(outputs, tuple) else outputs, targets
