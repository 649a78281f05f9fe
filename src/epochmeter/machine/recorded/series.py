"""Values that change with time: how they are recorded, and how they are repeated when the recording ends.

At its end a recording begins again. Counters then continue: the increase of the whole recording is added each time, so
that no counter runs backwards, and the power of a replay has no step that the machine did not have.
"""

import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
STEADY = 8  # least number of values of a counter that advances steadily
Leaf = tuple[Any, ...]
"""The place of a number in a nested value."""
IsCounter = Callable[[Leaf, float], bool]


@dataclass
class Series:
    """The changes of a value: seconds since the begin of the recording, and the value from then on (None: failed)."""

    times_s: list[float] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, at_s: float, value: Any) -> None:
        """Add a sample; only changes are kept."""
        if not self.values or value != self.values[-1]:
            self.times_s.append(round(at_s, 6))
            self.values.append(value)

    def to_fields(self) -> dict[str, list[Any]]:
        return {"times_s": self.times_s, "values": self.values}


class Repeated:
    """A series that is repeated without end, with the counters in it continued.

    Args:
        duration_s: The duration of the recording.
        is_counter: Whether a number that never decreases is a counter, by its place and its first value; None: none is.
        modulus: The range of a counter that overflows; None if it does not.
    """

    def __init__(
        self, series: Series, duration_s: float, *, is_counter: IsCounter | None = None, modulus: int | None = None
    ) -> None:
        if not series.times_s or len(series.times_s) != len(series.values) or not duration_s > 0:
            raise ValueError("a series without values")
        if any(later < earlier for earlier, later in pairwise(series.times_s)):
            raise ValueError("a series whose times decrease")
        self.times_s, self.duration_s, self._modulus = series.times_s, duration_s, modulus
        self._values = _unrolled(series.values, modulus) if modulus else series.values
        found = _increases(series.times_s, self._values, duration_s) if is_counter else ()
        self._increases = {leaf: increase for leaf, first, increase in found if is_counter and is_counter(leaf, first)}

    def __len__(self) -> int:
        return len(self.times_s)

    def value(self, number: int, repetition: int) -> Any:
        """Return one of the values in a repetition, from 0 on."""
        value = self._values[number]
        if repetition and isinstance(value, str):
            value = _changed(value, lambda place, found: found + round(self._increases.get((place,), 0) * repetition))
        elif repetition and value is not None:
            for leaf, increase in self._increases.items():
                value = _with_added(value, leaf, increase * repetition)
        modulus = self._modulus
        return _changed(value, lambda place, found: found % modulus) if modulus and value else value

    def at(self, elapsed_s: float) -> Any:
        """Return the value at a time since the begin of the replay."""
        repetition, within_s = divmod(max(0.0, elapsed_s), self.duration_s)
        number = bisect_right(self.times_s, within_s) - 1
        if number < 0 and repetition:  # until its first sample, it has the last value of the repetition before
            return self.value(len(self) - 1, int(repetition) - 1)
        return self.value(max(0, number), int(repetition))


def _increases(
    times_s: Sequence[float], values: Sequence[Any], duration_s: float
) -> Iterator[tuple[Leaf, float, float]]:
    """Yield the numbers that never decrease, but increase: each with its first value and its increase in the duration.

    The first change may be of any time since the one before, and after the last one the recording continues. So the
    increase of a counter with many changes is that between these two, times duration / time between them.
    """
    known = [(at_s, value) for at_s, value in zip(times_s, values, strict=True) if value is not None]
    leaves = _numbers if all(isinstance(value, str) for _, value in known) else _leaves
    columns = [dict(leaves(value)) for _, value in known]
    for leaf, first in columns[0].items() if columns else ():
        numbers = [column.get(leaf, math.nan) for column in columns]  # of another form: no counter
        if numbers[-1] > first and all(later >= earlier for earlier, later in pairwise(numbers)):
            between_s = known[-1][0] - known[1][0]
            is_steady = len(known) >= STEADY and between_s > duration_s / 2
            steady = (numbers[-1] - numbers[1]) * duration_s / between_s if is_steady else 0.0
            yield leaf, first, max(steady, numbers[-1] - first)  # it does not run backwards


def _numbers(text: str) -> Iterator[tuple[Leaf, float]]:
    yield from (((place,), int(found)) for place, found in enumerate(NUMBER.findall(text)))


def _leaves(value: Any, leaf: Leaf = ()) -> Iterator[tuple[Leaf, float]]:
    """Yield the numbers in nested values, without those in texts."""
    if isinstance(value, dict | list):
        for key, nested in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(nested, (*leaf, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield leaf, value


def _with_added(value: Any, leaf: Leaf, increase: float) -> Any:
    """Return a nested value with a number increased."""
    if not leaf:
        return round(value + increase) if isinstance(value, int) else value + increase
    copied = value.copy()
    copied[leaf[0]] = _with_added(value[leaf[0]], leaf[1:], increase)
    return copied


def _changed(text: str, change: Callable[[int, int], int]) -> str:
    """Return a text with its numbers changed; `change` gets the place and the value of each."""
    places = itertools.count()
    return NUMBER.sub(lambda found: str(change(next(places), int(found[0]))), text)


def _unrolled(texts: Sequence[str | None], modulus: int) -> list[str | None]:
    """Return the texts of a counter without its overflows."""
    rounds, last, unrolled = 0, 0, list[str | None]()
    for text in texts:
        if text is None or not text.strip().isdigit():
            unrolled.append(text)
            continue
        rounds += int(text) < last
        last = int(text)
        unrolled.append(f"{last + rounds * modulus}\n")
    return unrolled
