"""The passes over data of one thread, in order: which is a part of which, and when each ends.

A pass that begins while another one has not ended is either within it, such as an evaluation after some steps, or
follows it, since the script has left the other one but holds its iterator. What happens next decides:

    the other pass                                                       the pass that begins
    was complete, with all steps on its last batch                       follows it
    is not requested again: its iterator is deleted, or the thread ends  follows it
    is requested again; it had not trained before a loop that trains     follows it; the rest of the other is a new pass
    is requested again, after another pass over the same data has        follows it; the rest of the other is a new pass
    trained and ended
    is requested again in all other cases                                is a part of it
"""

import math
from typing import Protocol

from epochmeter.segmentation.device_times import TimedEvent
from epochmeter.segmentation.passes import Ending, Interval, Loader, Pass
from epochmeter.shared import events
from epochmeter.shared.events import Event

MIN_LOOP = 2  # requests in one step of another pass that make a pass a loop
MAX_SINGLE_STEPS = 16  # optimizer steps on one batch, after which it is no pass


class Process(Protocol):
    """The process of a thread, which knows its objects, and to which ended passes and other steps go."""

    steps_per_window: int  # of a pass without a length

    def loader(self, number: int) -> Loader: ...
    def name(self, number: int) -> str: ...
    def end_pass(self, thread: int, ended: Pass) -> None: ...
    def end_named(self, thread: int, name: str, times: Interval) -> None: ...
    def train_outside(self, thread: int, kind: int, ended_ns: int, learning_rate: float) -> None: ...


class Thread:
    """Takes the events of one thread, and gives each pass that has ended to its process, in order of their ends."""

    def __init__(self, process: Process, number: int) -> None:
        self._process, self._number = process, number
        self._begun: dict[int, Pass] = {}  # all that have not ended, by number
        self._live: list[Pass] = []  # those with a request, in the order of their first
        self._fetched: Pass | None = None  # has ended, but the script may still train on its last batches
        self._named: list[tuple[tuple[int, float], int | None]] = []
        """Open windows of a `Meter`: name and number, and begin; None: within another one."""
        self._ended_ns = 0  # the end of the last pass or named window
        self._last_step: Event | None = None

    @property
    def current(self) -> Pass | None:
        """The pass that is going on, if there is one; it may turn out to be a part of an earlier one."""
        return self._live[0] if self._live else None

    @property
    def only_reads(self) -> bool:
        """Whether the thread requests batches, or has just done so, and does not train on them."""
        going_on = self.current or self._fetched
        return going_on is not None and not going_on.trains

    @property
    def possible_borders_ns(self) -> list[int]:
        """Moments that may be borders of windows that have not ended."""
        going_on = [*self._begun.values(), *filter(None, [self._fetched])]
        named = [opened_ns for _, opened_ns in self._named if opened_ns is not None]
        return named + [border for each in going_on for border in each.possible_borders_ns]

    def add(self, timed: TimedEvent) -> None:
        """Add the thread's next event."""
        event = timed.event
        match event.kind:
            case events.BATCH:
                self._deliver(timed)
            case events.STEP | events.BACKWARD:
                self._train(timed)
            case events.PASS:
                self._begin(event)
            case events.END:
                self._exhaust(timed)
            case events.FAILED:
                self._fail(timed)
            case events.DROPPED:
                self._drop(event)
            case events.REPEATED:
                self._repeat(event.object)
            case events.FORWARD:
                self._note_forward()
            case events.FORWARD_ENDED | events.GRADIENTS | events.COLLECTED | events.SAVED:
                self._note_time(timed)
            case events.OPENED:
                self._open_named(event)
            case events.CLOSED:
                self._close_named(event)

    def note(self, event: Event) -> None:
        """Note an event on the last batch of a pass."""
        found = self._begun.get(event.object)
        if found is None or not len(found.batches):
            return
        if event.kind == events.TOKENS:
            found.batches.add_tokens(event.value, event.begun_ns)
        else:
            found.counted = event.other, len(found.batches) - 1

    def finish(self) -> None:
        """End all passes, since the thread has ended."""
        while self._live:
            self._leave(self._live[0])
        self._end_fetched()
        self._begun.clear()

    def settle(self) -> None:
        """End a pass whose batches are all delivered, since the script asks for its measurement."""
        if self._fetched and (self._fetched.is_explicit or not self._fetched.lag):
            self._end_fetched()

    def take(self, number: int) -> Pass | None:
        """Remove and return a pass whose iterator is used in another thread from now on."""
        moved = self._begun.get(number)
        if moved is None:
            return None
        if moved in self._live:
            self._leave(moved)
            return continued(moved, moved.closed_ns)
        return self._begun.pop(number)

    def give(self, moved: Pass) -> None:
        """Add a pass that began in another thread."""
        self._begun[moved.number] = moved

    # Passes

    def _begin(self, event: Event) -> None:
        if any(opened_ns is not None for _, opened_ns in self._named):
            return  # a part of the named window
        length = None if event.value != event.value else int(event.value)
        name = self._process.name(event.detail) if event.detail else ""
        loader = self._process.loader(event.other)
        self._begun[event.object] = Pass(
            event.object, loader, event.begun_ns, event.time_ns, length, event.flags, name
        )  # fmt: skip

    def _deliver(self, timed: TimedEvent) -> None:
        if found := self._begun.get(timed.event.object):
            delivering = self._requested(found, timed)
            delivering.add_batch(timed)
            for other in self._live:
                if other is not delivering:
                    other.note_within(timed.event)

    def _exhaust(self, timed: TimedEvent) -> None:
        found = self._begun.get(timed.event.object)
        if found is None:
            return
        ended = self._requested(found, timed)
        ended.ending = Ending.EXHAUSTED
        ended.ended = Interval(timed.event.begun_ns, timed.event.time_ns)
        ended.closed_ns = max(timed.event.time_ns, ended.step.ended_ns)
        self._remove(ended)
        if ended.may_train_late and ended.outer is None and not ended.is_explicit:
            self._fetched = ended
        else:
            self._end(ended)

    def _fail(self, timed: TimedEvent) -> None:
        """Note an error of the loader: the script may request the next batch; the wait for this one is overhead."""
        if found := self._begun.get(timed.event.object):
            failed = self._requested(found, timed)
            failed.failures += 1
            failed.loops.append(Interval(timed.event.begun_ns, timed.event.time_ns))

    def _drop(self, event: Event) -> None:
        dropped = self._begun.get(event.object)
        if dropped is None:
            return
        if dropped in self._live and not dropped.is_inner:
            self._leave(dropped, Interval(event.begun_ns, event.time_ns))
        else:
            self._remove(dropped)

    def _repeat(self, number: int) -> None:
        """Note that a pass of a subclass repeats its data: an epoch ends if it has delivered all batches."""
        key = self._process.loader(number).number
        for repeated in self._live:
            if repeated.loader.number == key and repeated.length and len(repeated.batches) >= repeated.length:
                repeated.is_repeated = True

    def _requested(self, found: Pass, timed: TimedEvent) -> Pass:
        """Note a request of a pass; return the pass that the batch belongs to, which may be a new one."""
        self._set_apart(found)
        if found.is_untouched:
            self._first_request(found, timed)
            return found
        if found.is_inner and found.outer not in self._live:
            return self._continue(found, timed)  # the pass that it was a part of has ended
        if any(follows(later, found) for later in found.within):
            self._leave(found)
            return self._continue(found, timed)
        self._absorb_within(found)
        if found.outer is None and found.is_cut(self._process.steps_per_window):
            return self._cut(found, timed)
        if found.outer is not None:
            self._note_within(found, timed)
        return found

    def _set_apart(self, requested: Pass | None = None) -> None:
        """Note that the other passes without a request do not begin with the call of `iter`, but with that request."""
        for other in self._begun.values():
            other.is_apart |= other.is_untouched and other is not requested

    def _first_request(self, found: Pass, timed: TimedEvent) -> None:
        self._end_fetched()
        while (outer := self._outer) and has_ended(outer):
            self._leave(outer)
        found.is_untouched = False
        found.opened_ns = timed.event.begun_ns if found.is_apart else found.called_ns
        if outer is not None:
            found.outer = outer
            self._note_within(found, timed)
        self._live.append(found)

    @property
    def _outer(self) -> Pass | None:
        """The pass in whose step a pass would begin now."""
        return next((going_on for going_on in reversed(self._live) if not going_on.is_inner), None)

    def _note_within(self, inner: Pass, timed: TimedEvent) -> None:
        """Note a request of a pass in the present step of another one."""
        outer = inner.outer
        assert outer
        if not inner.is_inner:
            outer.note_next()
        if inner not in outer.within:
            outer.within.append(inner)
            inner.requests, inner.requested_ns = 0, timed.event.begun_ns
        inner.requests += 1
        inner.delivered_ns = timed.event.time_ns

    def _absorb_within(self, outer: Pass) -> None:
        """Make the passes within the last step parts of a pass that goes on."""
        for inner in outer.within:
            inner.is_inner = True
            if inner.requests >= MIN_LOOP and not inner.trains:
                outer.loops.append(Interval(inner.requested_ns, inner.closed_ns or inner.delivered_ns))
            else:
                outer.has_others = True
        outer.within.clear()

    def _cut(self, found: Pass, timed: TimedEvent) -> Pass:
        """End a pass that goes on as another one."""
        found.ending, found.closed_ns = Ending.CUT, timed.device_begun_ns
        self._remove(found)
        self._end(found)
        follower = continued(found, timed.event.begun_ns)
        follower.is_continued, follower.length = False, found.length
        follower.is_piece = not found.is_repeated
        self.give(follower)
        self._first_request(follower, timed)
        return follower

    def _continue(self, found: Pass, timed: TimedEvent) -> Pass:
        """Begin a new pass with the rest of the batches of one that was left."""
        self._remove(found)
        follower = continued(found, timed.event.begun_ns)
        self.give(follower)
        self._first_request(follower, timed)
        return follower

    def _leave(self, left: Pass, drop: Interval | None = None, at_ns: int | None = None) -> None:
        """End a pass whose iterator was deleted or is not used any more, or that the script ends at a moment."""
        left.leave(drop, at_ns)
        self._remove(left)
        following = [later for later in left.within if not later.is_inner]
        left.within.clear()
        for later in following:
            later.outer = left.outer
            if left.outer is not None and left.outer in self._live:
                left.outer.within.append(later)
        if left.is_single:
            for kind, ended_ns in left.late:
                self._process.train_outside(self._number, kind, ended_ns, math.nan)
        self._end(left)
        for later in following:
            if later.ending is not None:
                self._end(later)

    def _end(self, ended: Pass) -> None:
        """Give an ended pass to the process, unless it is a part of another one, or may become one."""
        if ended.is_inner or (ended.outer is not None and ended.outer in self._live):
            return
        ended.opened_ns = max(ended.opened_ns, self._ended_ns)
        ended.closed_ns = max(ended.opened_ns, ended.closed_ns)
        self._ended_ns = ended.closed_ns
        self._process.end_pass(self._number, ended)

    def _remove(self, ended: Pass) -> None:
        self._begun.pop(ended.number, None)
        if ended in self._live:
            self._live.remove(ended)

    def _end_fetched(self) -> None:
        """End a pass whose last batches were fetched before the script trained on them."""
        fetched, self._fetched = self._fetched, None
        if fetched is None:
            return
        others = fetched.settle_late()
        self._end(fetched)
        for kind, ended_ns in others:
            self._process.train_outside(self._number, kind, ended_ns, math.nan)

    # Training

    def _train(self, timed: TimedEvent) -> None:
        self._set_apart()
        self._note_time(timed)
        if self._encloses_last_step(timed.event):
            for going_on in self._live:
                going_on.prolong(timed.device_ns)
            return
        if self._live:
            for going_on in self._live:
                going_on.train(timed)
            (first, *others) = self._live
            if not others and first.is_single and first.training.steps > MAX_SINGLE_STEPS:
                self._leave(first)
            return
        if self._fetched is not None and not self._fetched.is_own_training(timed.event.kind):
            self._end_fetched()
        if self._fetched is not None:
            self._fetched.train_late(timed)
            if self._fetched.is_late_complete:
                self._end_fetched()
        elif not self._named:
            self._process.train_outside(self._number, timed.event.kind, timed.device_ns, timed.event.value)

    def _encloses_last_step(self, event: Event) -> bool:
        """Return whether a step of an optimizer has called the last one of the same optimizer, as of its base class."""
        last = self._last_step
        self._last_step = event if event.kind == events.STEP else last
        is_same = event.kind == events.STEP and last is not None and last.object == event.object
        return is_same and last is not None and 0 < event.begun_ns <= last.begun_ns

    def _note_forward(self) -> None:
        for going_on in self._live:
            going_on.has_forward = True
        if self._fetched is not None and not self._live:
            self._fetched.has_late_forward = True

    def _note_time(self, timed: TimedEvent) -> None:
        event = timed.event
        if event.kind in (events.COLLECTED, events.SAVED):
            for going_on in self._live:
                going_on.work.append((event.kind, Interval(event.begun_ns, event.time_ns)))
        else:
            for going_on in self._live or filter(None, [self._fetched]):
                going_on.add_span(timed)

    # Windows of a `Meter`

    def _open_named(self, event: Event) -> None:
        self._end_fetched()
        while self._live and self._live[-1].is_over():
            self._leave(self._live[-1])
        is_part = bool(self._named) or bool(self._live)
        self._named.append(((event.object, event.value), None if is_part else event.time_ns))

    def _close_named(self, event: Event) -> None:
        if not event.object:  # the script states the end of an epoch
            while self._live:
                self._leave(self._live[0], at_ns=event.time_ns)
            self._end_fetched()
            return
        opened = next((named for named in reversed(self._named) if named[0] == (event.object, event.value)), None)
        if opened is None:
            return
        self._named.remove(opened)  # not always the last one: coroutines may close theirs in another order
        opened_ns = opened[1]
        if opened_ns is not None:
            self._end_fetched()
            self._ended_ns = event.time_ns
            self._process.end_named(self._number, self._process.name(event.object), Interval(opened_ns, event.time_ns))


def follows(later: Pass, earlier: Pass) -> bool:
    """Return whether a pass that began in a step of another one is no part of it, although that is requested again."""
    if later.is_inner or not later.is_training_loop:
        return False
    had_trained = earlier.before_next is not None and earlier.before_next.training.ended_ns > 0
    return not had_trained or is_next_epoch(later, earlier)


def has_ended(earlier: Pass) -> bool:
    """Return whether a pass that begins now is no part of an earlier one, in whose step it would be."""
    return earlier.is_over() or any(is_next_epoch(later, earlier) for later in earlier.within)


def is_next_epoch(later: Pass, earlier: Pass) -> bool:
    """Return whether a pass has trained on the data of an earlier pass, and has ended."""
    is_loop = later.ending is not None and not later.is_inner and later.is_training_loop
    return is_loop and later.loader.key == earlier.loader.key


def continued(earlier: Pass, called_ns: int) -> Pass:
    """Return a pass with the rest of the batches of an earlier one."""
    left = None if earlier.length is None else max(0, earlier.length - len(earlier.batches))
    return Pass(
        earlier.number, earlier.loader, called_ns, called_ns, left, earlier.flags, earlier.name, is_continued=True
    )  # fmt: skip
