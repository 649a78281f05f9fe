"""Any of torchvision's classifiers, by its name there, for the channels and classes of the dataset."""

import torch
from torch import nn

from trainmeter.worker.models.classifiers import check_name

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

    check_name(architecture)
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
