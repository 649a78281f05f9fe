"""A row of the table of rules for the next steps after a run (next_step_rules.py)."""

from collections.abc import Callable
from enum import IntEnum
from typing import Literal, NamedTuple

from epochmeter.results.measured_run import Gain, MeasuredRun

Kind = Literal["setting", "code", "command"]
"""Of a change: a key to add to the command of the run, a line of the script, or a command to run."""


class Change(NamedTuple):
    """What to change: a key to add to the command, a line of a script, or a command to run.

    `pattern` has `{}` for a value that depends on the run.
    """

    kind: Kind
    pattern: str
    value: Callable[[MeasuredRun], object] = lambda run: ""

    def written_for(self, run: MeasuredRun) -> str:
        return self.pattern.format(self.value(run)).rstrip()


class Rank(IntEnum):
    """The order of rules: first those without which the numbers may be wrong, last those that only measure more."""

    DOUBT = 0
    SPEED = 1
    MEASURE = 2


class Rule(NamedTuple):
    """A row of the table.

    Attributes:
        text: The advice in one sentence.
        why: Why it helps.
        applies: Whether the run is one to which it applies.
        own: The change to a training of this project; None: it does not apply to one.
        script: The change to a script, likewise.
        parts: The parts of the epoch that it shortens. Rules for the bottleneck come first.
        gain: The time that it saves at most; None if nothing bounds it. The rule does not apply to a run in which the
            bound is not known, or less than `MIN_GAIN`.
    """

    name: str
    text: str
    why: str
    applies: Callable[[MeasuredRun], bool]
    own: Change | None
    script: Change | None
    parts: tuple[str, ...] = ()
    gain: Callable[[MeasuredRun], Gain | None] | None = None
    rank: Rank = Rank.SPEED
