"""Values of objects by their identity, which keep no object alive and use neither its hash nor its comparison."""

import weakref
from typing import Any, Callable, Dict, Generic, Optional, Tuple, TypeVar

Value = TypeVar("Value")


class WeakValues(Generic[Value]):
    """Maps objects to values until they are deleted; an object without weak references, such as a list, has none."""

    def __init__(self) -> None:
        self._entries: "Dict[int, Tuple[weakref.ref[Any], Value]]" = {}  # by `id`

    def get(self, thing: object) -> Optional[Value]:
        """Return the value of an object; None if it has none."""
        pair = self._entries.get(id(thing))
        return pair[1] if pair is not None and pair[0]() is thing else None

    def set(self, thing: object, value: Value) -> None:
        key = id(thing)
        try:
            self._entries[key] = weakref.ref(thing, lambda _: self._entries.pop(key, None)), value
        except TypeError:
            self._entries.pop(key, None)

    def setdefault(self, thing: object, make: Callable[[], Value]) -> Value:
        """Return the value of an object, which is made if it has none."""
        value = self.get(thing)
        if value is None:
            value = make()
            self.set(thing, value)
        return value
