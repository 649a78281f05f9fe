"""Instantiate objects from specifications: `_target_` is a dotted path, the other keys are arguments."""

import importlib
import inspect


def instantiate_spec(spec, *args, **kwargs):
    """Call a specification's target; ValueError if it cannot be imported, or does not accept the arguments."""
    target, keywords = resolve_target(spec, *args, **kwargs)
    return target(*args, **keywords)


def resolve_target(spec, *args, **kwargs):
    """Return a specification's target and its keyword arguments; ValueError as `instantiate_spec`.

    Its keys except `_target_` and `name` are keyword arguments; `kwargs` have precedence.
    """
    target, keywords = import_object(spec["_target_"]), dict(target_arguments(spec), **kwargs)
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # some C functions have no signature
        return target, keywords
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        raise ValueError(
            "{} does not accept these arguments: {}. Its parameters: {}.".format(
                spec["_target_"], error, ", ".join(list(signature.parameters)[len(args) :])
            )
        ) from error
    return target, keywords


def target_arguments(spec):
    """Return the keys of a specification that are arguments: all but `_target_` and `name`."""
    return {key: value for key, value in spec.items() if key not in ("_target_", "name")}


def import_object(path):
    """Import the class or function at a dotted path such as `torch.optim.SGD`; ValueError if there is none."""
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"cannot import _target_ {path!r}: {error}. Give the dotted path of a class or function."
        ) from error
