"""Attributes of torch and of a script's classes that the agent replaces, and restores."""

import functools
import operator
import pickle
import sys
from typing import Any, Callable

Restore = Callable[[], object]
"""Ends what a hook does."""


class ReplacedMethod:
    """A method of a class that is pickled as the original function.

    Other processes must be able to load a class that cloudpickle copies.
    """

    __wrapped__: Callable[..., Any]
    __qualname__: str

    def __init__(self, original: Callable[..., Any]) -> None:
        wrapper: Any = self
        functools.update_wrapper(wrapper, original)

    def __reduce_ex__(self, protocol: object) -> Any:
        pickler = sys._getframe(1).f_locals.get("self")
        override = getattr(pickler, "reducer_override", lambda function: NotImplemented)
        if self._is_pickled_by_name(pickler, override):
            return self.__qualname__
        reduced = override(self.__wrapped__)
        if reduced is not NotImplemented:
            return reduced  # as cloudpickle would have pickled the function
        return operator.itemgetter(0), ((self.__wrapped__,),)

    def _is_pickled_by_name(self, pickler: object, override: Callable[[Any], Any]) -> bool:
        """Return whether a pickler, whose `override` reduces what it pickles by value, would name the function."""
        path, _, name = self.__qualname__.rpartition(".")
        try:
            kind = operator.attrgetter(path)(sys.modules[self.__module__])
        except (AttributeError, KeyError):
            return False
        if vars(kind).get(name) is not self:
            return False
        if isinstance(pickler, pickle._Pickler) and self.__module__ == "__main__":
            return False  # dill copies the code of `__main__`
        return override(kind) is NotImplemented


def replace(owner: Any, name: str, replacement: object) -> Restore:
    """Replace an attribute, and return a function that restores it unless it was replaced again."""
    is_own, original = name in vars(owner), getattr(owner, name)
    original = vars(owner).get(name, original)  # not bound

    def restore() -> None:
        if vars(owner).get(name) is not replacement:
            return
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)

    setattr(owner, name, replacement)
    return restore
