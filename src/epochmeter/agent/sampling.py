"""Which short steps and batches are timed in detail: one of so many that timing takes a small part of the time.

The choice has no rhythm of the script's: in each block of n, the place of the timed one follows a low-discrepancy
sequence, so that every place in a period of the script, such as that of gradient accumulation, gets its share. No
random numbers are drawn.
"""

import functools
import math
from typing import List, Optional

from epochmeter.shared.events import RECORD, UNTIMED
from epochmeter.worker.timeline import monotonic_ns

PHASES_BUDGET, LOADING_BUDGET = 0.0015, 0.0005
"""Fractions of the time that timing the phases of steps, and the loading of batches, may take."""
PHASES_NS, DEVICE_NS, LOADING_NS = 110 * 1000, 60 * 1000, 40 * 1000
"""Time that a timed step takes longer than one that is not timed, on the host, whose others are brief
(`agent.brief_steps`), and on a GPU; and the time of the details of a batch. They are of cold caches, on a machine where
writing an event takes `WRITE_NS` with warm ones. `benchmarks/cost/hooks.py` measures them; that of a GPU is assumed."""
WRITE_NS, WRITES = 145, 20  # and the number of such writes that are timed
FIRST_STEPS = 32  # steps of a thread that are all timed: many scripts try a few steps only
FIRST_BATCHES = 4  # batches of a loader that are
LOOKED_PASSES, LOOKED_EVERY = 2, 16  # first passes over a loader that are looked at, and later one of so many
MAX_EVERY = 64  # steps or batches of which at least one is timed
OF_PASS = 4  # about so many steps of a pass are timed, if no more are: fewer tell little about the others
RECENT = 5  # periods, whose median decides
GOLDEN = 0.6180339887498949
"""The fractional parts of its multiples are evenly distributed, also among every n-th of them."""


@functools.lru_cache(maxsize=None)
def slowness() -> float:
    """Return how slow this machine is, compared with the one on which the times above were measured."""
    room, pack_into, took_ns = bytearray(RECORD.size), RECORD.pack_into, []
    for _ in range(RECENT):
        begun_ns = monotonic_ns()
        for _ in range(WRITES):
            pack_into(room, 0, monotonic_ns(), begun_ns, 0.0, 0, 0, 0, 0, 0, 1)
        took_ns.append((monotonic_ns() - begun_ns) / WRITES)
    return max(1.0, min(took_ns) / WRITE_NS)


class Gaps:
    """The numbers of units, which are steps or batches, between those that are timed.

    Args:
        cost_ns: How long timing one takes.
        budget: Fraction of the time that this may take.
        first: Number of units that are all timed at first.

    Attributes:
        max_every: Number of units of which at least one is timed; None: `MAX_EVERY`.
    """

    def __init__(self, cost_ns: int, budget: float, first: int) -> None:
        self.cost_ns, self._budget = cost_ns, budget
        self.max_every: Optional[int] = None
        self._first = first
        self._periods_ns: List[float] = []  # the recent ones
        self._place = 0.0  # in its block of the unit that is timed, as a fraction of the block
        self._rest = 0  # units of the last block after it

    def next(self, period_ns: Optional[float]) -> int:
        """Return how many units are not timed before the next one that is.

        Args:
            period_ns: Time of a unit at present; None: it is not known, as at the begin of a pass.
        """
        periods = self._periods_ns
        if period_ns is not None:
            periods.append(period_ns)
            if len(periods) > RECENT:
                del periods[0]
        if self._first:
            self._first -= 1
            return 0
        median_ns = sorted(periods)[len(periods) // 2] if periods else math.inf
        every = min(self.max_every or MAX_EVERY, -int(-self.cost_ns * slowness() // max(1.0, self._budget * median_ns)))
        if every <= 1:
            self._rest = 0
            return 0
        self._place = (self._place + GOLDEN) % 1.0
        before = int(self._place * every)
        gap, self._rest = self._rest + before, every - 1 - before
        return gap


class LoadingGaps(Gaps):
    """The numbers of batches of a loader between those that are timed, also over several passes.

    Attributes:
        passes: Number of passes that have begun.
    """

    def __init__(self) -> None:
        super().__init__(LOADING_NS, LOADING_BUDGET, FIRST_BATCHES)
        self.passes = 0

    @property
    def looks(self) -> bool:
        """Whether other threads are looked at in the first batch of the present pass."""
        return self.passes <= LOOKED_PASSES or self.passes % LOOKED_EVERY == 0


class StepSampling:
    """Chooses the steps of a thread whose phases are timed, at the arrival of their batches.

    One pass over data at a time decides: of passes side by side or within each other, the one that delivers more often.
    After a pass within its steps, such as an evaluation, a pass goes on where it was.

    Attributes:
        untimed: Flag of events for the present step: `UNTIMED`, or 0 if its phases are timed.
        left: Number of further batches of the deciding pass that are not timed.
        decider: Number of the pass that decides; 0: none does.
        rival: Number of another pass that has delivered a batch since the deciding one has; 0: there is none.
    """

    def __init__(self) -> None:
        self.untimed = self.left = self.decider = self.rival = 0
        self._gaps = Gaps(PHASES_NS, PHASES_BUDGET, FIRST_STEPS)
        self._decided_ns: Optional[int] = None
        self._decided = 1  # number of steps since then
        self._interrupted = 0, 0, 0  # `decider`, `untimed` and `left` as another pass began to decide

    def use_device(self) -> None:
        """Note that a GPU is used, on which no steps are brief, and whose timestamps take time as well."""
        self._gaps.cost_ns = DEVICE_NS

    def choose(self, number: int, now_ns: int, length: Optional[int] = None) -> None:
        """Decide for a step of a pass, unless the step is a part of one for which another pass has decided.

        Args:
            number: Of the pass.
            now_ns: The time, always of the same moment of a step.
            length: Number of batches of the pass; None if it is not known.
        """
        if self.decider != number and self.decider and self.rival != number:
            self.rival = number
            return
        if self.decider != number:
            self._begin(number)
            self._gaps.max_every = min(MAX_EVERY, max(1, length // OF_PASS)) if length else None
        self.rival = 0
        if self.left:
            self.left -= 1
        elif self.untimed:
            self.untimed = 0  # it is the turn of this one
        else:
            self._skip(now_ns)

    def _begin(self, number: int) -> None:
        """Let a pass decide."""
        interrupted, untimed, left = self._interrupted
        if self.decider:
            self._interrupted = self.decider, self.untimed, self.left
        self.decider, self._decided_ns, self.left = number, None, 0
        if interrupted == number:
            self.untimed, self.left = untimed, left

    def end(self, number: int) -> None:
        """Note that a pass has ended: what follows is timed until the next batch."""
        if self.decider == number:
            self.untimed = self.left = self.decider = self.rival = 0

    def _skip(self, now_ns: int) -> None:
        """Choose the steps that are not timed, from the present one on."""
        decided_ns, self._decided_ns = self._decided_ns, now_ns
        gap = self._gaps.next(None if decided_ns is None else (now_ns - decided_ns) / self._decided)
        self._decided = gap + 1
        if gap:
            self.untimed, self.left = UNTIMED, gap - 1
