"""A specification becomes an object: its `_target_` names what to call, its other keys are the arguments.

Runs on a board's own Python: 3.6 and the standard library.
"""

import importlib
import inspect


def build(spec, *args, **kwargs):
    """Calls what `spec["_target_"]` names with the other keys of `spec`, `args` and `kwargs`.

    What is passed and what is not, `arguments` says. ValueError for a key that it does not take, or lacks.
    """
    target, given = fitting(spec, *args, **kwargs)
    return target(*args, **given)


def fitting(spec, *args, **kwargs):
    """What `spec["_target_"]` names, and what to call it with beside `args`; ValueError where it does not take that."""
    target, given = locate(spec["_target_"]), dict(arguments(spec), **kwargs)
    try:
        taken = inspect.signature(target)
    except (TypeError, ValueError):  # of some that are not written in Python none is told
        return target, given
    try:
        taken.bind(*args, **given)
    except TypeError as error:
        raise ValueError(
            "{} was given what it does not take: {}. It takes {}.".format(
                spec["_target_"], error, ", ".join(list(taken.parameters)[len(args) :])
            )
        ) from error
    return target, given


def arguments(spec):
    """The keys of a specification that are arguments: all but the target and the name it goes by."""
    return {key: value for key, value in spec.items() if key not in ("_target_", "name")}


def locate(path):
    """The class or function at a dotted path such as `torch.optim.SGD`; ValueError where there is none."""
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"_target_ asked for {path!r}, which cannot be had: {error}. Give the dotted path of a class or function "
            "that imports."
        ) from error
