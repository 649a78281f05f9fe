"""Instantiate objects from specifications: `_target_` is a dotted path, the other keys are arguments."""

import importlib
import inspect
from functools import partial
from typing import Any, Callable, Dict

from epochmeter.shared.problem import input_error
from epochmeter.shared.types import Document


def instantiate_spec(spec: Document, *args: object, **kwargs: object) -> Any:
    """Call a specification's target; ValueError as `bind_spec`."""
    return bind_spec(spec, *args, **kwargs)()


def bind_spec(spec: Document, *args: object, **kwargs: object) -> Callable[[], Any]:
    """Return the call of a target; ValueError if it cannot be imported, or does not accept the arguments."""
    target, keywords = import_object(spec["_target_"]), dict(target_arguments(spec), **kwargs)
    try:
        inspect.signature(target).bind(*args, **keywords)
    except ValueError:  # some C functions have no signature
        pass
    except TypeError as error:
        parameters = list(inspect.signature(target).parameters)[len(args) :]
        message = "{} does not accept these arguments: {}".format(spec["_target_"], error)
        raise input_error(message, "its parameters are {}".format(", ".join(parameters))) from error
    return partial(target, *args, **keywords)


def target_arguments(spec: Document) -> Dict[str, object]:
    """Return the keys of a specification that are arguments: all except `_target_` and `name`."""
    return {key: value for key, value in spec.items() if key not in ("_target_", "name")}


def import_object(path: str) -> Any:
    """Import the class or function at a dotted path such as `torch.optim.SGD`; ValueError if there is none."""
    module, _, attribute = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise input_error(
            f"cannot import _target_ {path!r}: {error}", "give the dotted path of a class or function"
        ) from error
