"""Any of torchvision's classifiers, by its name there, for the channels and classes of the dataset."""

import inspect
from difflib import get_close_matches

import torch
from torch import nn

INCEPTION = ("googlenet", "inception_v3")
"""The family that has auxiliary classifiers, whose outputs stand beside the main one while it trains."""


def instance_norm(features):
    """Each channel of each sample by itself, scaled and moved: as GroupNorm with a group for each channel does."""
    return nn.InstanceNorm2d(features, affine=True)


NORMS = {"batch": None, "instance": instance_norm}


def classifier(architecture, channels, classes, norm="batch"):
    """torchvision's `architecture` without weights, its first convolution made for `channels`.

    `norm`: `batch`, which is what torchvision has, or `instance`, where it lets one choose. ValueError for what it has
    not.
    """
    from torchvision import models

    known = names(models)
    if architecture not in known:
        near = get_close_matches(architecture, known, 5, 0.5)
        raise ValueError(
            "model.name={!r} is not a classifier of this torchvision; it has{} {}.".format(
                architecture,
                ", the nearest first," if near else "",
                ", ".join(near + [name for name in known if name not in near]),
            )
        )
    if norm not in NORMS:
        raise ValueError("model.norm={}: give one of {}.".format(norm, ", ".join(NORMS)))
    how = {"aux_logits": True, "init_weights": True} if architecture in INCEPTION else {}
    if NORMS[norm]:
        how["norm_layer"] = NORMS[norm]
    try:
        model = getattr(models, architecture)(num_classes=classes, **how)
    except TypeError as error:
        if not NORMS[norm]:
            raise
        raise ValueError(
            "model.norm={}: torchvision's {} has no other norm than its own. Set model.norm=batch.".format(
                norm, architecture
            )
        ) from error
    return model if channels == 3 else with_channels(model, channels)


def names(models):
    """The names of torchvision's classifiers: the lower-case functions of its modules that know a number of classes."""
    return sorted(
        name
        for name, make in vars(models).items()
        if name.islower() and inspect.isfunction(make) and _of_models(inspect.getmodule(make))
    )


def _of_models(module):
    """Whether a module of torchvision's makes classifiers; a private one only finds them in newer versions."""
    private = module.__name__.rpartition(".")[2].startswith("_")
    return not private and "num_classes" in inspect.getsource(module)


def with_channels(model, channels):
    """The model with its first convolution taking `channels` in place of 3."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            parent = model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], _for_channels(module, channels))
            return model
    raise ValueError("asked for {} channels, but this model has no convolution to adapt.".format(channels))


def _for_channels(convolution, channels):
    """The same convolution of so many channels, its weights those that the first three had, over and over."""
    made = nn.Conv2d(
        channels,
        convolution.out_channels,
        convolution.kernel_size,
        stride=convolution.stride,
        padding=convolution.padding,
        dilation=convolution.dilation,
        bias=convolution.bias is not None,
    )
    with torch.no_grad():
        made.weight.copy_(convolution.weight[:, [channel % convolution.in_channels for channel in range(channels)]])
        if made.bias is not None:
            made.bias.copy_(convolution.bias)
    return made
