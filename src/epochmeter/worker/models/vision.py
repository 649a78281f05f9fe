"""torchvision's classifiers by name, adapted to the channels and classes of the dataset."""

import inspect
from difflib import get_close_matches
from functools import partial

import torch
from torch import nn
from torchvision import models

INCEPTION = ("googlenet", "inception_v3")  # architectures with auxiliary outputs in training
NORMS = {"batch": None, "instance": partial(nn.InstanceNorm2d, affine=True)}
STEMS = ("imagenet", "cifar")


def classifier(architecture, channels, classes, norm="batch", stem="imagenet", aux_logits=True):
    """Build a classifier of `torchvision.models` with random weights, and a first convolution for these channels.

    `norm` is `batch`, which is torchvision's, or `instance`, for the architectures that accept a norm layer; `stem` is
    `imagenet`, or for ResNets `cifar`; `aux_logits` are the auxiliary classifiers of the Inception family.
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
        message = "torchvision's {} does not accept these options: {}\n  hint: set model.norm=batch"
        raise ValueError(message.format(architecture, error)) from error
    if stem == "cifar":
        if not isinstance(model, models.ResNet):
            raise ValueError("model.stem=cifar: {} is not a ResNet. Set model.stem=imagenet.".format(architecture))
        small_stem(model)
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
    if name in classifiers:
        return classifiers[name]
    similar = ", ".join(get_close_matches(name, classifiers) or sorted(classifiers))
    message = "`model.name={}` is not a classifier of the installed torchvision. Did you mean {}?"
    raise ValueError(message.format(name, similar))


def small_stem(model):
    """Give a ResNet the stem for 32 x 32 pixels of He et al., Deep residual learning, CVPR 2016, section 4.2."""
    first = model.conv1
    model.conv1 = nn.Conv2d(first.in_channels, first.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # torchvision's initialization
    model.maxpool = nn.Identity()


def with_channels(model, channels):
    """Return the model whose first convolution has `channels` inputs; the weights repeat those of the first three."""
    name, first = next((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    kept = ("out_channels", "kernel_size", "stride", "padding", "dilation")
    options = {option: getattr(first, option) for option in kept}
    adapted = nn.Conv2d(channels, bias=first.bias is not None, **options)
    with torch.no_grad():
        adapted.weight.copy_(first.weight[:, [channel % first.in_channels for channel in range(channels)]])
        if adapted.bias is not None:
            adapted.bias.copy_(first.bias)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, adapted)
    return model
