"""Whether a model fits what it is to learn from, found out before anything is measured.

Shapes are worked out on torch's meta device, which computes nothing. Not all that trains can be run there, so that a
refusal is confirmed by the same samples on the CPU.
"""

import copy

import torch

from epochmeter.worker.device import each

SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 299, 384, 512)
"""Pixels of a side that are tried where those asked for are refused, the usual ones among them."""


def check_inputs(model, job, task):
    """Refuses a model that cannot learn from the dataset's samples; ValueError says what to set."""
    dataset = job["dataset"]
    try:
        answers, targets = tried(model, job, task, 2)
    except Exception as error:
        raise ValueError(
            "model {} cannot take the {} of dataset {}: {}. {}, or take another model.".format(
                job["model"]["name"],
                "images, {0} x {1} x {1},".format(dataset["channels"], dataset["size"]) if _sized(job) else "samples",
                dataset["name"],
                _first_line(error),
                sizes_that_fit(model, job, task) if _sized(job) else "Set what the model is made for",
            )
        ) from error
    if all(isinstance(part, torch.Tensor) for part in (answers, targets)):  # the shape of other types is not checked
        check_answers(answers, targets, job)
    if job["target_accuracy"] is not None and not tells_right(task, answers, targets):
        raise ValueError(
            "target_accuracy={}: task {} knows no right and wrong. Give target_loss.".format(
                job["target_accuracy"], job["task"]["name"]
            )
        )


def check_answers(answers, targets, job):
    """Refuse a model whose output shape does not match the dataset's targets; ValueError with the key to set."""
    dataset = job["dataset"]
    known = next((key for key in ("classes", "words") if key in dataset), None)
    if known is None and targets.is_floating_point() and answers.shape != targets.shape:
        raise ValueError(
            "model {} answers with {} numbers a sample, and dataset {} has {}. Take another model.".format(
                job["model"]["name"], answers[0].numel(), dataset["name"], targets[0].numel()
            )
        )
    if known and answers.shape[:-1] == targets.shape and answers.shape[-1] < dataset[known]:
        raise ValueError(
            "model {0} has scores for {1} {2}, and dataset {3} has {4}. Set model.{2}={4}.".format(
                job["model"]["name"], answers.shape[-1], known, dataset["name"], dataset[known]
            )
        )


def tells_right(task, answers, targets):
    """Whether a task tells which answers are right: it is asked of some that have the shapes of these."""
    zeros = each(lambda shaped: torch.zeros(shaped.shape, dtype=shaped.dtype), (answers, targets))
    return task.right(*zeros) is not None


def check_smallest(model, job, task, fewest):
    """Refuses a model that cannot learn from one sample alone, as with batch norm, where it would get but one.

    `fewest`: of each size that a batch has in an epoch, how few of its samples a model gets at once.
    """
    alone = [size for size, samples in fewest.items() if samples == 1]
    if not alone:
        return
    try:
        tried(model, job, task, 1)
    except Exception as error:
        which, what = few(job["batch"], max(alone))
        raise ValueError(
            "model {} cannot learn from one sample alone, and {}: {}. {}.".format(
                job["model"]["name"], which, _first_line(error), what
            )
        ) from error


def few(batch, size):
    """Which batches, of so many samples, leave a model one sample alone, and what to set."""
    if size == batch == 1:
        return "batch=1", "Set batch=2 or more"
    if size == batch:
        which = "of batch={} some GPU gets but one".format(batch)
        return which, "Set a multiple of the number of GPUs, at least twice that"
    which = "with batch={} an epoch's last batch has {}".format(
        batch, "one sample" if size == 1 else "{} samples, of which some GPU gets but one".format(size)
    )
    return which, "Leave it out by drop_last=true, or set another batch"


def sizes_that_fit(model, job, task):
    """What to set so that a model can take the dataset's images: the smallest size that it can, larger ones first."""
    shapes, asked = on_meta(model), job["dataset"]["size"]

    def fits(size):
        try:
            learned(shapes, dict(job["dataset"], size=size), task, 2, "meta")
        except Exception:
            return False
        return True

    smallest = next((size for size in sorted(SIZES, key=lambda size: size < asked) if fits(size)), None)
    if smallest is None:
        return "Set dataset.size"
    refused = max((size for size in (*SIZES, asked) if size < smallest), default=0)
    while smallest - refused > 1:
        between = (refused + smallest) // 2
        refused, smallest = (refused, between) if fits(between) else (between, smallest)
    larger = " or more" if fits(smallest + 1) and fits(2 * smallest) else ""
    return "Set dataset.size={}{}".format(smallest, larger)


def tried(model, job, task, count):
    """The model's answers to so many samples as it learns, and the targets; the model is left as it is."""
    try:
        return learned(on_meta(model), job["dataset"], task, count, "meta")
    except Exception:
        return learned(copy.deepcopy(model).cpu(), job["dataset"], task, count, "cpu")


def on_meta(model):
    """A copy on the meta device: shapes without memory."""
    tensors = list(model.parameters()) + list(model.buffers())
    there = {id(tensor): tensor.detach().to("meta") for tensor in tensors}
    there.update((id(kept), torch.nn.Parameter(there[id(kept)], kept.requires_grad)) for kept in model.parameters())
    return copy.deepcopy(model, there)


def learned(model, dataset, task, count, device):
    example = task.example(dataset, count, torch.Generator())
    inputs, targets = each(lambda tensor: tensor.to(device), example, "to", device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        outputs = model.train()(inputs)
    return outputs[0] if isinstance(outputs, tuple) else outputs, targets


def _sized(job):
    return "size" in job["dataset"]


def _first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
