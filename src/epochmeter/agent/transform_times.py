"""The time of each transform of a dataset: of a `Compose`, of an `nn.Sequential`, or of an attribute `transform`.

The transforms are replaced only while a sample is loaded that is timed, in the thread that loads it.
"""

import threading
from typing import Any, Callable, Dict, Iterator, List, Tuple

from torch import nn

from epochmeter.agent.frames import hidden, hide_frames
from epochmeter.agent.wrapper import SPECIAL_METHODS, Wrapper
from epochmeter.worker.timeline import perf_counter_ns

MAX_OWNERS = 64  # objects that are searched for transforms
NESTED = ("dataset", "datasets", "transforms")
"""Attributes with further objects that have transforms, such as the dataset of a `Subset`."""
WORDS = ("transform", "augment")
"""Parts of the names of attributes that are transforms."""


class TransformTimes:
    """Times the transforms of a dataset while they are installed."""

    def __init__(self, dataset: Any) -> None:
        self._times_ns: Dict[str, int] = {}
        self._thread = 0
        self._places = [*places_of(dataset)]
        kinds = [name_of(container[key]) for container, key in self._places]
        self._timed: List[TimedTransform] = []
        for number, ((container, key), kind) in enumerate(zip(self._places, kinds)):
            name = kind if kinds.count(kind) == 1 else "{} ({})".format(kind, kinds[: number + 1].count(kind))
            self._timed.append(TimedTransform(self._add, container[key], name))

    def install(self) -> None:
        """Put timed transforms into the places of those that are still there."""
        self._thread = threading.get_ident()
        for (container, key), timed in zip(self._places, self._timed):
            if has_key(container, key) and container[key] is timed._wrapped:
                container[key] = timed

    def remove(self) -> None:
        """Put the transforms back, also where the dataset has moved them."""
        containers = {id(container): container for container, _ in self._places}
        for container in containers.values():
            for key in list(range(len(container)) if isinstance(container, list) else container):
                if TimedTransform in type(container[key]).__mro__:
                    container[key] = container[key]._wrapped

    def take(self) -> Dict[str, int]:
        """Return the time of each transform since the last call, in ns."""
        times_ns, self._times_ns = self._times_ns, {}
        return times_ns

    def _add(self, name: str, time_ns: int) -> None:
        if threading.get_ident() == self._thread:
            self._times_ns[name] = self._times_ns.get(name, 0) + time_ns


class TimedTransform(Wrapper):
    """Takes the place of a transform; to `isinstance`, it is that transform.

    Args:
        add: Is called with the name and the time of each call.
        transform: The transform.
        name: Its name.
    """

    _methods = (*SPECIAL_METHODS, "__iter__", "__next__")

    def __init__(self, add: Callable[[str, int], None], transform: Any, name: str) -> None:
        self._add, self._name = add, name
        super().__init__(add, transform)

    def __getattr__(self, name: str) -> Any:
        if "_wrapped" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._wrapped, name)  # also the name of a function

    @hidden
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        begun_ns = perf_counter_ns()
        try:
            return self._wrapped(*arguments, **keywords)
        except BaseException as error:
            hide_frames(error)
            raise
        finally:
            self._add(self._name, perf_counter_ns() - begun_ns)


def places_of(dataset: Any) -> Iterator[Tuple[Any, Any]]:
    """Yield the containers, with the key in each, of the transforms of a dataset and of those within it."""
    owners: List[Any] = [dataset]
    seen = {id(dataset)}
    for owner in owners:
        attributes = getattr(owner, "__dict__", {})
        for name, value in list(attributes.items()) if type(attributes) is dict else ():
            if id(value) in seen or len(owners) > MAX_OWNERS:
                continue
            seen.add(id(value))
            has_name = any(word in name for word in WORDS)
            steps = steps_of(value, has_name)
            if steps is not None:
                for key in steps[1]:
                    yield steps[0], key
            elif name in NESTED:
                owners += value if isinstance(value, list) else [value]
            elif has_name and callable(value) and not isinstance(value, type):
                yield attributes, name


def steps_of(value: Any, has_name: bool) -> Any:
    """Return the container of the steps of a sequence of transforms, and their keys; None if it is no sequence."""
    if isinstance(value, nn.Sequential):
        return value._modules, list(value._modules)
    attributes = getattr(value, "__dict__", None)
    within = attributes.get("transforms") if type(attributes) is dict else None
    steps: Any = value if within is None and has_name else within
    is_list = type(steps) is list and steps and all(map(callable, steps))
    return (steps, range(len(steps))) if is_list else None


def has_key(container: Any, key: Any) -> bool:
    """Return whether a list or a dictionary has an item."""
    return key < len(container) if isinstance(container, list) else key in container


def name_of(transform: Any) -> str:
    """Return the name of a function, or of the class of another transform."""
    kind = type(transform)
    return str(getattr(transform, "__qualname__", kind.__name__))
