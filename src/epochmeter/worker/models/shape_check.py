"""Check that a model fits the dataset and the batch size, before training.

Shapes are computed on torch's meta device. Not every model runs there, so a failure is confirmed on the CPU.
"""

import copy

import torch

from epochmeter.worker.device import map_tensors

SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 299, 384, 512)
"""Image sizes (pixels per side) that are tried to suggest one that works."""


def check_inputs(model, job, task):
    """Check that a model trains on the dataset's samples.

    Raises:
        ValueError: It does not; the message names the setting to change.
    """
    dataset = job["dataset"]
    try:
        outputs, targets = dry_run(model, job, task, 2)
    except Exception as error:
        raise ValueError(
            "model {} does not accept the {} of dataset {}: {}. {}, or use another model.".format(
                job["model"]["name"],
                "images, {0} x {1} x {1},".format(dataset["channels"], dataset["size"])
                if _size_options(job)
                else "samples",
                dataset["name"],
                _first_line(error),
                sizes_that_fit(model, job, task)
                if _size_options(job)
                else "Set the input shape that the model expects",
            )
        ) from error
    if all(isinstance(part, torch.Tensor) for part in (outputs, targets)):  # the shape of other types is not checked
        check_outputs(outputs, targets, job)
    if job["target_accuracy"] is not None and not has_accuracy(task, outputs, targets):
        raise ValueError(
            "target_accuracy={}: task {} has no accuracy. Set target_loss.".format(
                job["target_accuracy"], job["task"]["name"]
            )
        )


def check_outputs(answers, targets, job):
    """Check that a model's output shape matches the dataset's targets.

    Raises:
        ValueError: It does not; the message names the setting to change.
    """
    dataset = job["dataset"]
    key = next((key for key in ("classes", "words") if key in dataset), None)
    if key is None and targets.is_floating_point() and answers.shape != targets.shape:
        raise ValueError(
            "model {} outputs {} numbers per sample, but dataset {} has {}. Use another model.".format(
                job["model"]["name"], answers[0].numel(), dataset["name"], targets[0].numel()
            )
        )
    if key and answers.shape[:-1] == targets.shape and answers.shape[-1] < dataset[key]:
        raise ValueError(
            "model {0} outputs scores for {1} {2}, but dataset {3} has {4}. Set model.{2}={4}.".format(
                job["model"]["name"], answers.shape[-1], key, dataset["name"], dataset[key]
            )
        )


def has_accuracy(task, answers, targets):
    """Whether a task has an accuracy; tried on zeros in the shapes of these outputs and targets."""
    zeros = map_tensors(lambda shaped: torch.zeros(shaped.shape, dtype=shaped.dtype), (answers, targets))
    return task.correct(*zeros) is not None


def check_smallest(model, job, task, fewest):
    """Check that a model trains on one sample if it gets a batch of one; batch normalization does not.

    Args:
        model: The model.
        job: The run's configuration.
        task: The task.
        fewest: For each batch size in an epoch, the smallest number of its samples that a model replica gets.

    Raises:
        ValueError: It does not; the message names the setting to change.
    """
    sizes = [size for size, samples in fewest.items() if samples == 1]
    if not sizes:
        return
    try:
        dry_run(model, job, task, 1)
    except Exception as error:
        which, what = singleton_batch_hint(job["batch"], max(sizes))
        raise ValueError(
            "model {} cannot train on a single sample, but {}: {}. {}.".format(
                job["model"]["name"], which, _first_line(error), what
            )
        ) from error


def singleton_batch_hint(batch, size):
    """Return which batches leave a model replica a single sample, and the setting to change."""
    if size == batch == 1:
        return "batch=1", "Set batch=2 or more"
    if size == batch:
        which = "with batch={} a GPU gets one sample".format(batch)
        return which, "Set a multiple of the number of GPUs, at least twice that"
    which = "with batch={} an epoch's last batch has {}".format(
        batch, "one sample" if size == 1 else "{} samples, of which a GPU gets one".format(size)
    )
    return which, "Set drop_last=true, or another batch"


def sizes_that_fit(model, job, task):
    """Return a hint with the smallest image size that the model accepts; sizes above the configured one are tried
    first.
    """
    shapes, configured = on_meta(model), job["dataset"]["size"]

    def fits(size):
        try:
            forward_train(shapes, dict(job["dataset"], size=size), task, 2, "meta")
        except Exception:
            return False
        return True

    smallest = next((size for size in sorted(SIZES, key=lambda size: size < configured) if fits(size)), None)
    if smallest is None:
        return "Set dataset.size"
    refused = max((size for size in (*SIZES, configured) if size < smallest), default=0)
    while smallest - refused > 1:
        middle = (refused + smallest) // 2
        refused, smallest = (refused, middle) if fits(middle) else (middle, smallest)
    larger = " or more" if fits(smallest + 1) and fits(2 * smallest) else ""
    return "Set dataset.size={}{}".format(smallest, larger)


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


def _size_options(job):
    return "size" in job["dataset"]


def _first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
