"""A specification becomes an object: its `_target_` names what to call, its other keys are the arguments.

Runs on a board's own Python: 3.6 and the standard library.
"""

import importlib


def build(spec, *args, **kwargs):
    """Calls what `spec["_target_"]` names with the other keys of `spec`, `args` and `kwargs`.

    What is passed and what is not, `arguments` says.
    """
    return locate(spec["_target_"])(*args, **dict(arguments(spec), **kwargs))


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
            "_target_ asked for {!r}, which cannot be had: {}. Give the dotted path of a class or function "
            "that imports.".format(path, error)
        ) from error
