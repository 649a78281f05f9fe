"""Objects in the places of a script's own, which have their attributes, special methods and class."""

import functools
from typing import Any, Callable, Tuple

from epochmeter.agent.frames import hidden, hide_frames

SPECIAL_METHODS = (
    *("__len__", "__length_hint__", "__bool__", "__contains__", "__getitem__", "__setitem__", "__reversed__"),
    *("__call__", "__enter__", "__exit__", "__eq__", "__hash__", "__repr__", "__str__", "__reduce_ex__"),
)


class Wrapper:
    """Has the attributes, special methods and class of another object, except to `type`.

    What the script sets is set in the other object. The attributes that `__init__` sets before `_wrapped` are the
    wrapper's own.

    Args:
        owner: What the subclass needs.
        wrapped: The other object.
    """

    _methods: Tuple[str, ...] = SPECIAL_METHODS
    """Special methods that are those of the other object, as far as the subclass defines none."""

    def __new__(cls, owner: object, wrapped: Any, *_: object) -> "Wrapper":
        own = {name for base in cls.__mro__[:-1] for name in vars(base)}
        names = tuple(name for name in cls._methods if hasattr(type(wrapped), name) and name not in own)
        kind: Any = cls  # hashable, unlike its objects
        wrapper: Wrapper = object.__new__(with_methods(kind, names))
        return wrapper

    def __init__(self, owner: object, wrapped: Any) -> None:
        self._wrapped = wrapped

    __class__: Any = property(lambda self: self._wrapped.__class__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_wrapped" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: object) -> None:
        own = self.__dict__
        if name in own or "_wrapped" not in own:
            own[name] = value
        else:
            setattr(self._wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._wrapped, name)


@functools.lru_cache(maxsize=None)
def with_methods(base: Any, names: Tuple[str, ...]) -> Any:
    """Return a subclass of a wrapper's class, with these special methods of the object that is wrapped."""
    return type(base.__name__, (base,), {name: forwarded(name) for name in names})


def forwarded(name: str) -> Callable[..., Any]:
    """Return a method of a wrapper that calls the method of the object that is wrapped."""

    @hidden
    def method(wrapper: Wrapper, *arguments: Any, **keywords: Any) -> Any:
        try:
            return getattr(wrapper._wrapped, name)(*arguments, **keywords)
        except BaseException as error:
            hide_frames(error)
            raise

    return method
