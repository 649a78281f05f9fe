"""torchvision's classifiers by name, adapted to the channels and classes of the dataset."""

import inspect
from difflib import get_close_matches
from functools import partial
from typing import Callable, Dict, Optional

import torch
from torch import nn
from torchvision import models

from epochmeter.shared.problem import input_error

INCEPTION = ("googlenet", "inception_v3")  # architectures with auxiliary outputs in training
NORMS: Dict[str, Optional[Callable[..., nn.Module]]] = {
    "batch": None,
    "instance": partial(nn.InstanceNorm2d, affine=True),
}
STEMS = ("imagenet", "cifar")


def classifier(
    architecture: str,
    channels: int,
    classes: int,
    norm: str = "batch",
    stem: str = "imagenet",
    aux_logits: bool = True,
) -> nn.Module:
    """Build a classifier of `torchvision.models` with random weights, and a first convolution for these channels.

    `norm` is `batch`, which is torchvision's, or `instance`, for the architectures that accept a norm layer; `stem` is
    `imagenet`, or for ResNets `cifar`; `aux_logits` are the auxiliary classifiers of the Inception family.
    """
    make_model = find_architecture(architecture)
    if norm not in NORMS or stem not in STEMS:
        message = "`model.norm={} model.stem={}` is not valid".format(norm, stem)
        raise input_error(message, "give model.norm=batch or instance, and model.stem=imagenet or cifar")
    options: Dict[str, object] = {}
    if architecture in INCEPTION:
        options.update(aux_logits=aux_logits, init_weights=True)
    if NORMS[norm]:
        options["norm_layer"] = NORMS[norm]
    try:
        model = make_model(num_classes=classes, **options)
    except TypeError as error:
        message = "torchvision's {} does not accept these options: {}".format(architecture, error)
        raise input_error(message, "set model.norm=batch", key="model.norm") from error
    if stem == "cifar":
        if not isinstance(model, models.ResNet):
            message = "model.stem=cifar: {} is not a ResNet".format(architecture)
            raise input_error(message, "set model.stem=imagenet", key="model.stem")
        small_stem(model)
    return model if channels == 3 else with_channels(model, channels)


def list_architectures() -> Dict[str, Callable[..., nn.Module]]:
    """Return the functions that make classifiers in `torchvision.models`, by name; old versions cannot list them."""
    return {
        name: value
        for name, value in vars(models).items()
        if inspect.isfunction(value) and name.islower() and "._" not in value.__module__
    }


def find_architecture(name: str) -> Callable[..., nn.Module]:
    """Return a function of `torchvision.models`; ValueError, with similar names, if it has no such classifier."""
    classifiers = list_architectures()
    if name in classifiers:
        return classifiers[name]
    similar = ", ".join(get_close_matches(name, classifiers) or sorted(classifiers))
    message = "`model.name={}` is not a classifier of the installed torchvision".format(name)
    raise input_error(message, "did you mean {}?".format(similar), key="model.name")


def small_stem(model: models.ResNet) -> None:
    """Give a ResNet the stem for 32 x 32 pixels of He et al., Deep residual learning, CVPR 2016, section 4.2."""
    first = model.conv1
    model.conv1 = nn.Conv2d(first.in_channels, first.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # torchvision's initialization
    model.maxpool = nn.Identity()


def with_channels(model: nn.Module, channels: int) -> nn.Module:
    """Return the model whose first convolution has `channels` inputs; the weights repeat those of the first three."""
    name, first = next((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    kept = ("out_channels", "kernel_size", "stride", "padding", "dilation")
    options = {option: getattr(first, option) for option in kept}
    adapted = nn.Conv2d(channels, bias=first.bias is not None, **options)
    with torch.no_grad():
        adapted.weight.copy_(first.weight[:, [channel % first.in_channels for channel in range(channels)]])
        if adapted.bias is not None and first.bias is not None:
            adapted.bias.copy_(first.bias)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, adapted)
    return model
