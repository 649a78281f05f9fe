"""A pass over a script's data: its batches, and the times of their steps."""

import math
import operator
from array import array
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from epochmeter.segmentation.device_times import TimedEvent
from epochmeter.segmentation.phases import Spans
from epochmeter.shared.events import (
    BACKWARD,
    FORWARD_ENDED,
    HAS_GRADIENTS,
    HIDES_FORWARDS,
    IS_EXPLICIT,
    STEP,
    UNTIMED,
    Event,
)

DROP_LIMIT_NS = 10_000_000
"""Longest time between the last step of a loop and the deletion of its iterator, whose time is then a part of it."""
STEPS_OF_KIND = 1 << 32  # in the kind of a step: optimizer steps; backward passes count one
MIN_BATCHES = 2  # batches that a loop trains on at least


@dataclass(frozen=True)
class Loader:
    """The data that a script iterates over.

    Attributes:
        number: Number of the loader.
        data: Number of its dataset; None if it is not a torch DataLoader.
        samples: Samples of a complete pass; None if the loader does not state them.
        batch_size: Samples of each batch except the last, if the loader states them.
        workers: Its processes; None if it is not a torch DataLoader.
        facts: All facts that the agent wrote (`agent.facts.loader_facts`).
    """

    number: int
    data: int | None = None
    samples: int | None = None
    batch_size: int | None = None
    workers: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> int:
        """Number of the dataset if it is known, so that it does not depend on the object of the loader."""
        return self.number if self.data is None else self.data


class Interval(NamedTuple):
    """A time interval on the monotonic clock."""

    begun_ns: int
    ended_ns: int

    def overlap_ns(self, begun_ns: int, ended_ns: int) -> int:
        """Return the time that it has in common with another interval."""
        return max(0, min(self.ended_ns, ended_ns) - max(self.begun_ns, begun_ns))


@dataclass
class Training:
    """Training events: optimizer steps, and backward passes.

    `ended_ns` is when the device had finished the last of them; 0 if there was none.
    """

    steps: int = 0
    backwards: int = 0
    ended_ns: int = 0
    learning_rate: float = math.nan  # of the last optimizer step; NaN if it is not known

    def count(self, kind: int, ended_ns: int) -> None:
        """Add a training event, which the device had finished at a time."""
        self.ended_ns = max(self.ended_ns, ended_ns)
        self.steps += kind == STEP
        self.backwards += kind == BACKWARD


class Batches:
    """The batches of a pass, one entry each, in ns of the monotonic clock.

    Attributes:
        requested_ns: When it was requested, and the device had finished all earlier work.
        delivered_ns: When the device could begin to work on it.
        waits_ns: How long the host waited for it.
        arrived_ns: When it was delivered to the host.
        trained_ns: When the device had finished the last training event of its step; 0 if there was none.
        is_timed: Whether the phases of its step were timed.
        kinds: A number of the training events in its step: steps with the same ones have the same number.
        samples: NaN if they are not known.
        tokens: Without padding; NaN if they are not known; absent after the last batch that has tokens.
        positions: Tokens with padding, likewise; 0 without a mask.
    """

    def __init__(self) -> None:
        self.requested_ns, self.delivered_ns = array("q"), array("q")
        self.waits_ns, self.arrived_ns, self.trained_ns = array("q"), array("q"), array("q")
        self.is_timed, self.kinds = array("B"), array("q")
        self.samples, self.tokens, self.positions = array("d"), array("d"), array("d")

    def __len__(self) -> int:
        return len(self.requested_ns)

    def add(self, timed: TimedEvent) -> None:
        """Add a batch that has arrived."""
        self.requested_ns.append(timed.device_begun_ns)
        self.delivered_ns.append(timed.device_ns)
        self.waits_ns.append(timed.event.time_ns - timed.event.begun_ns)
        self.arrived_ns.append(timed.event.time_ns)
        self.trained_ns.append(0)
        self.is_timed.append(not timed.event.flags & UNTIMED)
        self.kinds.append(0)
        self.samples.append(timed.event.value)

    def add_training(self, kind: int) -> None:
        """Note a training event in the step of the last batch."""
        self.kinds[-1] += STEPS_OF_KIND if kind == STEP else 1

    def add_tokens(self, tokens: float, positions: int) -> None:
        """Add the tokens of the last batch."""
        if len(self.tokens) < len(self):
            missing = len(self) - 1 - len(self.tokens)
            self.tokens.extend([*missing * [math.nan], tokens])
            self.positions.extend([*missing * [math.nan], positions])


class BeforeNext(NamedTuple):
    """What was known of a pass as another one began.

    Attributes:
        training: All training in it.
        trained_ns: The end of the training in its last step; 0 if there was none.
        has_forward: Whether a forward pass was seen.
    """

    training: Training
    trained_ns: int
    has_forward: bool


class Ending(Enum):
    """How a pass ended."""

    EXHAUSTED = "its loader had no further batch"
    DROPPED = "its iterator was deleted"
    LEFT = "its iterator was not used any more"
    CUT = "it went on as another pass"


@dataclass(eq=False)
class Pass:
    """A pass over data, from the call of `iter` on.

    Attributes:
        number: Number of its iterator in the log.
        called_ns: When `iter` was called.
        ready_ns: When the iterator was made.
        length: Number of batches of a complete pass; None if it is not known.
        flags: Those of its event.
        name: Name that the script gave to it.
        is_continued: Whether it lacks the first batches of its iterator, which were those of another pass.
        is_piece: Whether it is a part of an endless pass.
        is_untouched: Whether no batch was requested so far.
        is_apart: Whether another pass requested a batch between the call of `iter` and the first request.
        is_repeated: Whether its subclass of DataLoader has begun to deliver its data again.
        training: All training in it.
        step: Training since its last request.
        has_pending: Whether the last backward pass was followed by no optimizer step so far.
        trained_batches: Number of batches with training in their steps.
        lag: How many batches the script requests in advance; None before it trains.
        unused: Number of batches that the script had requested in advance, as it left the pass, and has not trained on.
        late: Training after the end of the pass, on batches that were requested in advance: kinds and ends.
        late_rate: The last learning rate in it.
        has_late_forward: Whether a forward pass was seen after the end.
        is_read_at_once: Whether the script has read all batches before it trained.
        has_forward: Whether a forward pass was seen.
        has_untimed: Whether there is a step whose forward passes are not timed.
        outer: The pass in whose step it began; it is a part of that one if `is_inner`, else that is not known yet.
        within: The passes that requested a batch in its present step.
        requests: Its requests in the present step of `outer`.
        requested_ns: The first of these.
        delivered_ns: The end of the last of these.
        failures: Number of its requests that had an error.
        has_others: Whether batches of other passes are within its steps, in no loop that is overhead.
        loops: Times within its steps that are overhead: loops that do not train, and failed requests.
        work: Garbage collections and saves: kinds of the events, and times.
        spans: Forward passes, backward passes and optimizer steps.
        before_next: What was known of it as another pass began after its last request; None if none did.
        opened_ns: When its window begins.
        closed_ns: When its window ends; 0 before.
        ending: How it ended; None before.
        ended: Its last request, or the deletion of its iterator; None if it was left.
        counted: Number of the facts on operators that were recorded in one of its steps, and of its last batch.
    """

    number: int
    loader: Loader
    called_ns: int
    ready_ns: int
    length: int | None
    flags: int
    name: str = ""
    is_continued: bool = False
    is_piece: bool = False
    is_untouched: bool = True
    is_apart: bool = False
    is_repeated: bool = False
    batches: Batches = field(default_factory=Batches)
    training: Training = field(default_factory=Training)
    step: Training = field(default_factory=Training)
    has_pending: bool = False
    trained_batches: int = 0
    lag: int | None = None
    unused: int = 0
    late: list[tuple[int, int]] = field(default_factory=list)
    late_rate: float = math.nan
    has_late_forward: bool = False
    is_read_at_once: bool = False
    has_forward: bool = False
    has_untimed: bool = False
    outer: "Pass | None" = None
    is_inner: bool = False
    within: list["Pass"] = field(default_factory=list)
    requests: int = 0
    requested_ns: int = 0
    delivered_ns: int = 0
    failures: int = 0
    has_others: bool = False
    loops: list[Interval] = field(default_factory=list)
    work: list[tuple[int, Interval]] = field(default_factory=list)
    spans: Spans = field(default_factory=Spans)
    before_next: BeforeNext | None = None
    opened_ns: int = 0
    closed_ns: int = 0
    ending: Ending | None = None
    ended: Interval | None = None
    counted: tuple[int, int] | None = None

    @property
    def is_explicit(self) -> bool:
        """Whether the script gave the data to a `Meter`."""
        return bool(self.flags & IS_EXPLICIT)

    @property
    def has_gradients(self) -> bool:
        """Whether gradients were enabled as it began."""
        return bool(self.flags & HAS_GRADIENTS)

    @property
    def hides_forwards(self) -> bool:
        """Whether a forward pass would not have been seen."""
        return bool(self.flags & HIDES_FORWARDS)

    @property
    def trains(self) -> bool:
        """Whether there was training in it."""
        return self.training.ended_ns > 0

    @property
    def is_complete(self) -> bool:
        """Whether all batches of the loader were delivered."""
        return self.ending is Ending.EXHAUSTED or (self.length is not None and len(self.batches) >= self.length)

    @property
    def is_training_loop(self) -> bool:
        """Whether it has trained on several batches, or on the only one of its loader."""
        return self.trained_batches >= MIN_BATCHES or (self.is_complete and self.trains)

    @property
    def is_single(self) -> bool:
        """Whether the script took one batch of several, and has trained on it more than once."""
        return len(self.batches) == 1 and not self.is_complete and self.training.steps > 1

    @property
    def possible_borders_ns(self) -> list[int]:
        """Moments that may be borders of its window."""
        before_next = [self.before_next.training.ended_ns] if self.before_next else []
        borders = [self.called_ns, self.opened_ns, self.training.ended_ns, self.closed_ns, *before_next]
        return [border for border in borders if border] + [*self.batches.delivered_ns[-1:]]

    def is_over(self) -> bool:
        """Return whether the last batch was delivered and trained on, with as many optimizer steps as the others."""
        if not self.is_complete or self.lag or not self.step.ended_ns:
            return False
        earlier_steps, earlier_batches = self.training.steps - self.step.steps, len(self.batches) - 1
        return self.step.steps >= math.ceil(earlier_steps / max(1, earlier_batches))

    def is_cut(self, limit: int) -> bool:
        """Return whether the next batch belongs to another epoch; `limit` is that of a pass without a length."""
        is_endless = self.length is None and not self.is_explicit
        return self.is_repeated or (is_endless and len(self.batches) >= limit and self.trains)

    def add_batch(self, timed: TimedEvent) -> None:
        """Add a batch that has arrived."""
        self.batches.add(timed)
        self.step, self.before_next = Training(), None
        self.has_untimed |= bool(timed.event.flags & UNTIMED)
        if len(self.batches) > 1:
            self.late.clear()

    def train(self, timed: TimedEvent) -> None:
        """Add a training event in its present step."""
        if not self.batches:
            return  # of a pass whose first request failed
        if self.lag is None:
            self.lag = len(self.batches) - 1
        for training in (self.training, self.step):
            training.count(timed.event.kind, timed.device_ns)
        self.has_pending = timed.event.kind == BACKWARD
        if timed.event.kind == STEP:
            self.training.learning_rate = timed.event.value
        self.trained_batches += not self.batches.trained_ns[-1]
        self.batches.trained_ns[-1] = self.step.ended_ns
        self.batches.add_training(timed.event.kind)
        if len(self.batches) == 1 and not self.is_complete and self.before_next is None:
            self.late.append((timed.event.kind, timed.device_ns))

    def add_span(self, timed: TimedEvent) -> None:
        """Add a forward pass, a backward pass or an optimizer step, if the phases of its step are timed."""
        if self.ending is not None or not self.batches or self.batches.is_timed[-1]:
            self.spans.add(timed)
        is_forward = timed.event.kind == FORWARD_ENDED and bool(self.batches)
        self.has_forward |= is_forward and self.ending is None and self.before_next is None

    def note_within(self, event: Event) -> None:
        """Note a batch of another pass in the present step, after which its phases may not be timed any more."""
        if event.flags & UNTIMED and self.batches:
            self.batches.is_timed[-1] = False

    def prolong(self, ended_ns: int) -> None:
        """Note that the last training event of the present step ended later."""
        for training in (self.training, self.step):
            training.ended_ns = max(training.ended_ns, ended_ns)
        if self.batches:
            self.batches.trained_ns[-1] = self.step.ended_ns

    def note_next(self) -> None:
        """Note that another pass has begun, and keep what is needed if it follows this one and is no part of it."""
        if self.before_next is None and self.batches:
            self.before_next = BeforeNext(copy(self.training), self.batches.trained_ns[-1], self.has_forward)

    def leave(self, drop: Interval | None, at_ns: int | None) -> None:
        """End the pass, whose iterator was deleted or is not used any more, or at a moment that the script gave."""
        is_followed = self.before_next is not None
        if self.before_next:
            was_trained = bool(self.batches.trained_ns[-1])
            self.training, self.batches.trained_ns[-1] = self.before_next[:2]
            # In a later step that is not timed, a forward pass is not always seen before that of another pass.
            if len(self.batches) == 1 or not self.has_untimed:
                self.has_forward = self.before_next.has_forward
            self.trained_batches -= was_trained and not self.batches.trained_ns[-1]
        self.ending = Ending.LEFT if drop is None else Ending.DROPPED
        active_ns = self.training.ended_ns or (self.batches.delivered_ns[-1] if self.batches else self.opened_ns)
        self.closed_ns = active_ns if self.trains or at_ns is None else at_ns
        if drop and not is_followed and drop.begun_ns - active_ns <= self._drop_limit_ns():
            self.ended, self.closed_ns = drop, max(active_ns, drop.ended_ns)

    def _drop_limit_ns(self) -> int:
        """Return how long after its last known activity the iterator of a loop is deleted, if the loop has just ended.

        The end of an evaluation's last step is not known: it may be as long as the longest other one.
        """
        if self.trains:
            return DROP_LIMIT_NS
        steps_ns: list[int] = [*map(operator.sub, self.batches.requested_ns[1:], self.batches.delivered_ns)]
        return max([DROP_LIMIT_NS, *steps_ns])

    def train_late(self, timed: TimedEvent) -> None:
        """Add a training event after the end of the pass."""
        self.late.append((timed.event.kind, timed.device_ns))
        if timed.event.kind == STEP:
            self.late_rate = timed.event.value

    @property
    def may_train_late(self) -> bool:
        """Whether the script may train after the end: on batches that it has requested, or on accumulated gradients."""
        if self.trains:
            return bool(self.lag) or not self.training.steps or self.has_pending
        return not (self.has_forward or self.hides_forwards)

    def is_own_training(self, kind: int) -> bool:
        """Return whether training after the end may be its own: on accumulated gradients, there are only steps."""
        is_of_gradients = self.trains and not self.lag and self.training.steps > 0
        return kind == STEP or not is_of_gradients

    @property
    def is_late_complete(self) -> bool:
        """Whether the script has trained on all batches that it had requested in advance."""
        late_steps, _ = late_counts(self.late)
        if self.trains and not self.training.steps:
            return late_steps > 0
        per_batch = math.ceil(self.training.steps / max(1, self.trained_batches))
        return self.lag is not None and late_steps >= self.lag * per_batch > 0

    def settle_late(self) -> list[tuple[int, int]]:
        """Take the training after the end into the pass; return the training events that do not belong to it.

        If the script has read all batches before it trained, there must be a step for each of them.
        """
        events, self.late = self.late, []
        self.has_forward |= self.has_late_forward and not events
        steps, backwards = late_counts(events)
        is_own = steps > 0 or bool(self.lag) if self.trains else (steps or backwards) == len(self.batches)
        if not is_own:
            return events
        self.is_read_at_once = not self.trains
        self.late = [event for event in events if event[0] == (STEP if steps else BACKWARD)]
        for kind, ended_ns in events:
            self.training.count(kind, ended_ns)
            self.closed_ns = max(self.closed_ns, ended_ns)
        if steps:
            self.training.learning_rate = self.late_rate
        return []


def late_counts(events: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the numbers of optimizer steps and of backward passes."""
    steps = sum(kind == STEP for kind, _ in events)
    return steps, len(events) - steps
