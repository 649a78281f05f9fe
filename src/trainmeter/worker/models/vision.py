"""Any of torchvision's classifiers, by its name there, for the channels and classes of the dataset."""

import inspect

from torch import nn


def classifier(architecture, channels, classes):
    """torchvision's `architecture` without weights, its first convolution made for `channels`."""
    from torchvision import models

    known = names(models)
    if architecture not in known:
        raise ValueError(
            "model.name={!r} is not a classifier of this torchvision; it has {}.".format(architecture, ", ".join(known))
        )
    make = getattr(models, architecture)
    # The auxiliary heads of the Inception family answer with a second output, which has no loss here.
    auxiliary = {"aux_logits": False, "init_weights": True} if architecture in ("googlenet", "inception_v3") else {}
    model = make(num_classes=classes, **auxiliary)
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
    return nn.Conv2d(
        channels,
        convolution.out_channels,
        convolution.kernel_size,
        stride=convolution.stride,
        padding=convolution.padding,
        bias=convolution.bias is not None,
    )
