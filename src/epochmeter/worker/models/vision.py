"""torchvision's classifiers by name, adapted to the channels and classes of the dataset."""

import inspect
from difflib import get_close_matches
from functools import partial

import torch
from torch import nn
from torchvision import models

INCEPTION = ("googlenet", "inception_v3")
"""Architectures with auxiliary classifiers, whose outputs accompany the main one in training."""
NORMS = {"batch": None, "instance": partial(nn.InstanceNorm2d, affine=True)}
STEMS = ("imagenet", "cifar")


def classifier(architecture, channels, classes, norm="batch", stem="imagenet", aux_logits=True):
    """Build a torchvision classifier with random weights.

    Args:
        architecture: Name of the function in `torchvision.models`.
        channels: Channels of the images; the first convolution is adapted to them.
        norm: `batch`, which is torchvision's, or `instance`, for the architectures that accept a norm layer.
        stem: `imagenet`, which is torchvision's, or `cifar`, for ResNets: see `small_stem`.
        aux_logits: Whether networks of the Inception family have their auxiliary classifiers.
    """
    make_model = find_architecture(architecture)
    if norm not in NORMS or stem not in STEMS:
        raise ValueError("model.norm={}: give batch or instance; model.stem={}: imagenet or cifar.".format(norm, stem))
    options = {"aux_logits": aux_logits, "init_weights": True} if architecture in INCEPTION else {}
    if NORMS[norm]:
        options["norm_layer"] = NORMS[norm]
    try:
        model = make_model(num_classes=classes, **options)
    except TypeError as error:
        if not NORMS[norm]:
            raise
        raise ValueError(
            "model.norm={}: torchvision's {} has a fixed norm. Set model.norm=batch.".format(norm, architecture)
        ) from error
    if stem == "cifar":
        small_stem(model, architecture)
    return model if channels == 3 else with_channels(model, channels)


def list_architectures():
    """Return the functions that make classifiers in `torchvision.models`, by name; old versions cannot list them."""
    return {
        name: value
        for name, value in vars(models).items()
        if inspect.isfunction(value) and name.islower() and "._" not in value.__module__
    }


def find_architecture(name):
    """Return a function of `torchvision.models`; ValueError, with similar names, if it has no such classifier."""
    classifiers = list_architectures()
    if name not in classifiers:
        raise ValueError(
            "`model.name={}` is not a classifier of the installed torchvision. Did you mean {}?".format(
                name, ", ".join(get_close_matches(name, classifiers) or sorted(classifiers))
            )
        )
    return classifiers[name]


def small_stem(model, architecture):
    """Give a ResNet the stem for 32 x 32 pixels: a 3 x 3 convolution of stride 1, no max pooling.

    He et al., Deep residual learning for image recognition, CVPR 2016, section 4.2, use it in their networks for
    CIFAR-10. torchvision's stem reduces each side to a quarter of its pixels.
    """
    if not isinstance(model, models.ResNet):
        raise ValueError(
            "model.stem=cifar: only torchvision's ResNets have this option; {} is not one. "
            "Set model.stem=imagenet.".format(architecture)
        )
    first = model.conv1
    model.conv1 = nn.Conv2d(first.in_channels, first.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # torchvision's initialization
    model.maxpool = nn.Identity()


def with_channels(model, channels):
    """Return the model with its first convolution changed to accept `channels` instead of 3."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, _for_channels(module, channels))
            return model
    raise ValueError("cannot adapt the model to {} channels: it has no convolution.".format(channels))


def _for_channels(convolution, channels):
    """Return the convolution with `channels` inputs, whose weights repeat those of the first three."""
    kept = ("out_channels", "kernel_size", "stride", "padding", "dilation")
    options = {name: getattr(convolution, name) for name in kept}
    adapted = nn.Conv2d(channels, bias=convolution.bias is not None, **options)
    with torch.no_grad():
        adapted.weight.copy_(convolution.weight[:, [channel % convolution.in_channels for channel in range(channels)]])
        if adapted.bias is not None:
            adapted.bias.copy_(convolution.bias)
    return adapted
