"""The trainings of a process: which optimizer steps train the same model, and which begin to train another one.

Two optimizers belong to the same training if they have a parameter in common, if one of them steps between two steps of
the other, as in a GAN, or if both step in the same window. So the optimizer and the model of a later training are new,
and those of an earlier one do not step again. Whether they do is known at the end of the script only: until then, a
training may turn out to continue an earlier one, never the reverse.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NO_OPTIMIZER = 0  # stands for training that no optimizer of torch has made


@dataclass
class Span:
    """A time in which one thread has made no steps of another training."""

    first_ns: int
    last_ns: int
    optimizer: int


class Trainings:
    """Assigns the steps of optimizers, and windows, to trainings, which are counted from 0.

    Times are those of the device's work, in the order of the thread's steps.
    """

    def __init__(self) -> None:
        self._joined: dict[int, int] = {}  # optimizer -> another one of its training, up to the one that stands for it
        self._numbers: dict[int, int] = {}  # optimizer that stands for a training -> its number
        self._begun: list[int] = []  # an optimizer of each training, by the number that it had first
        self._spans: dict[int, list[Span]] = {}  # of each thread, in order
        self._has_stepped = False

    def join(self, optimizers: Iterable[int]) -> None:
        """Note that optimizers belong to the same training."""
        first, *others = map(self._representative, optimizers)
        for other in others:
            if (same := self._representative(other)) != first:
                numbers = [self._numbers.pop(each) for each in (first, same) if each in self._numbers]
                self._joined[same] = first
                self._numbers |= {first: min(numbers)} if numbers else {}

    def add_step(self, thread: int, optimizer: int, time_ns: int) -> None:
        """Add a step of an optimizer, which the device had finished at a time."""
        spans = self._spans.setdefault(thread, [])
        if spans and self._is_same(spans[-1].optimizer, optimizer):
            spans[-1].last_ns = max(spans[-1].last_ns, time_ns)
            return
        if not self._has_stepped:
            self._has_stepped = True
            self.join([optimizer, NO_OPTIMIZER])  # backward passes before the first step are part of its training
        spans.append(Span(time_ns, time_ns, optimizer))
        earlier = [place for place, span in enumerate(spans) if self._is_same(span.optimizer, optimizer)]
        self._merge(thread, earlier[0], len(spans))

    def of_window(self, thread: int, opened_ns: int, closed_ns: int) -> int:
        """Return the number of the training that a window belongs to: of its steps, or else of the steps before it."""
        spans = self._spans.get(thread, [])
        begun = len(spans)
        while begun and spans[begun - 1].first_ns > closed_ns:
            begun -= 1
        first = begun
        while first and spans[first - 1].last_ns > opened_ns:
            first -= 1
        if first < begun:
            self._merge(thread, first, begun)
            begun = first + 1
        return self._number(spans[begun - 1].optimizer if begun else NO_OPTIMIZER)

    def begins_ns(self, thread: int) -> list[int]:
        """Return the first step of each training of a thread."""
        return [span.first_ns for span in self._spans.get(thread, [])]

    @property
    def final_numbers(self) -> Sequence[int]:
        """The number of each training by the number that its windows had at first, from what is known now."""
        known = dict.fromkeys(map(self._representative, self._begun))
        places = {representative: place for place, representative in enumerate(known)}
        return [places[self._representative(optimizer)] for optimizer in self._begun]

    def _number(self, optimizer: int) -> int:
        representative = self._representative(optimizer)
        if representative not in self._numbers:
            self._numbers[representative] = len(self._begun)
            self._begun.append(optimizer)
        return self._numbers[representative]

    def _representative(self, optimizer: int) -> int:
        while optimizer in self._joined:
            optimizer = self._joined[optimizer]
        return optimizer

    def _is_same(self, one: int, other: int) -> bool:
        return one == other or self._representative(one) == self._representative(other)

    def _merge(self, thread: int, first: int, end: int) -> None:
        """Make the spans of a thread from a place up to another one a single one."""
        spans = self._spans[thread]
        merged = spans[first:end]
        self.join(span.optimizer for span in merged)
        last_ns = max(span.last_ns for span in merged)
        spans[first:end] = [Span(merged[0].first_ns, last_ns, merged[0].optimizer)]
