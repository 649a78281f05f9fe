"""Training steps of a thread outside of passes over data: windows of a number of steps."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from epochmeter.segmentation.windows import EPOCH, Window, rows_of_steps
from epochmeter.shared.events import BACKWARD, STEP
from epochmeter.shared.units import NANOSECOND

COUNTED = "{} steps outside of passes over a DataLoader"
NO_PARTS = "no training step in a pass over a torch DataLoader: an epoch is {} {}, and waits for data are not measured"


class OutsideSteps:
    """The training steps of one thread outside of passes, since the last window of them.

    A step is an optimizer step, or a backward pass in a script that has made no optimizer step.

    Attributes:
        kind: Of the events that are steps.
        total: Number of steps, also of those that are in no window.
        left_out: Number of steps that are in no window, since they were around epochs that are passes over data.
    """

    def __init__(self) -> None:
        self.total = 0
        self.left_out = 0
        self.kind = BACKWARD
        self._ends_ns, self._learning_rates = array("q"), array("d")

    def __len__(self) -> int:
        return len(self._ends_ns)

    @property
    def possible_borders_ns(self) -> list[int]:
        """The first and the last end of steps that are in no window."""
        return [self._ends_ns[0], self._ends_ns[-1]] if self._ends_ns else []

    def add(self, kind: int, ended_ns: int, learning_rate: float) -> None:
        """Add a training event."""
        if kind == STEP and self.kind != STEP:
            self.kind = STEP
            self.discard()  # its steps were backward passes
            self.total = self.left_out = 0
        if kind == self.kind:
            self._ends_ns.append(ended_ns)
            self._learning_rates.append(learning_rate)
            self.total += 1

    def leave_out(self) -> None:
        """Forget the steps that are in no window, but count them as left out."""
        self.left_out += len(self)
        self.discard()

    def discard(self) -> None:
        """Forget the steps that are in no window."""
        self._forget(len(self))

    def since(self, begun_ns: int) -> "array[int]":
        """Return the times of the ends of the steps after a moment."""
        return self._ends_ns[bisect_right(self._ends_ns, begun_ns) :]

    def windows(self, limit: int, begins_ns: Sequence[int] = (), *, is_final: bool = False) -> Iterator[Window]:
        """Yield windows of `limit` steps, each from the end of the step before; finally, a partial one of the rest.

        A window ends before the first step of another training; `begins_ns` has the ends of these steps.
        """
        while len(self) > (1 if is_final else limit):
            count = min(limit, len(self) - 1)
            places = (bisect_left(self._ends_ns, begun_ns) for begun_ns in begins_ns)
            of_other = next((place for place in places if 0 < place <= count), None)
            count = count if of_other is None else of_other - 1
            if count:
                yield self._window(count, limit)
            self._forget(count if of_other is None else of_other)

    def _forget(self, count: int) -> None:
        del self._ends_ns[:count], self._learning_rates[:count]

    def _window(self, count: int, limit: int) -> Window:
        opened_ns, closed_ns = self._ends_ns[0], self._ends_ns[count]
        ends_ns = self._ends_ns[1 : count + 1]
        rows = rows_of_steps(opened_ns, ends_ns)
        parts = {"e2e_s": (closed_ns - opened_ns) * NANOSECOND, "steps": float(count)}
        if not math.isnan(learning_rate := self._learning_rates[count]):
            parts["learning_rate"] = learning_rate
        return Window(
            EPOCH, COUNTED.format(count), opened_ns, closed_ns, parts, rows, count < limit, limit,
            reason=NO_PARTS.format(limit, unit_of(self.kind, limit)), step_ends_ns=ends_ns,
        )  # fmt: skip


def unit_of(kind: int, count: int) -> str:
    """Return what a number of steps is called, which are events of a kind."""
    if kind == STEP:
        return "optimizer step" if count == 1 else "optimizer steps"
    return "backward pass" if count == 1 else "backward passes"
