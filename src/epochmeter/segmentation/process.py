"""The windows of one process of a script, from the events of its threads."""

import heapq
import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from epochmeter.segmentation.communication import CollectiveWaits, rank_rows
from epochmeter.segmentation.device_times import DeviceTimes, TimedEvent
from epochmeter.segmentation.kinds import GIVEN_RULE, PassKinds
from epochmeter.segmentation.loaders import UsedLoaders
from epochmeter.segmentation.loads import Loads, PassLoads
from epochmeter.segmentation.passes import Ending, Interval, Loader, Pass
from epochmeter.segmentation.phases import COMPILED
from epochmeter.segmentation.steps import OutsideSteps, unit_of
from epochmeter.segmentation.thread import Thread
from epochmeter.segmentation.timeline import phase_stretches, timeline_rows
from epochmeter.segmentation.trainings import Trainings
from epochmeter.segmentation.windows import (
    EPOCH,
    EVALUATION,
    Window,
    no_samples,
    parts_of,
    phases_of_pass,
    rows_of_steps,
    samples_of,
    samples_of_step,
    step_times,
)
from epochmeter.shared import events
from epochmeter.shared.events import Event
from epochmeter.shared.phases import FORWARD
from epochmeter.shared.units import NANOSECOND

OF_PASS = (events.BATCH, events.END, events.FAILED, events.DROPPED)
OF_LOADING = (events.LOADED, events.COLLATED, events.LOAD_FAILED)
ON_BATCH = (events.COUNTED, events.TOKENS)
OF_RANKS = (events.GRADIENTS_READY, events.COLLECTIVE, events.BACKWARD)
OF_METER = (events.OPENED, events.CLOSED, events.EXPECTED)

READ_AHEAD_RULE = "a pass in another thread, with one training step per batch"
READ_AHEAD = "another thread requests the batches, so that waits for data are not known"
READ_AHEAD_UNMATCHED = f"{READ_AHEAD}, and the training steps are not one per batch"
WITHIN_COUNTED = "it was between steps that are counted outside of passes"
OUTSIDE = "not measured: {} {} outside of measured epochs"
CONCURRENT = "another thread trained at the same time: its epochs were not measured"
AROUND = "steps are batches of a DataLoader within {}, which may be others than the script's: set `measure.loader={}`"
OTHER_BATCHES = (
    "steps request batches of several loaders: only the first one has steps, samples and data stalls, and its passes "
    "are the epochs; if a class combines the loaders, name it in `measure.loader=MODULE:CLASS`"
)
UNMEASURED = "{} is not measured: set `measure.loader={}`"
OTHER_DATA = (
    "passes over data other than a torch DataLoader are not measured: name the class that the script iterates over in "
    "`measure.loader=MODULE:CLASS`, or use `Meter.batches` in the script"
)
LOADER_PROBLEM = "`measure.loader` is not measured: {}"
UNTIMED = "the batches of a DataLoader were not timed where they are loaded: {}"
UNUSED = "keys of a `Meter` have no effect in a script that `measure.py` has started, give them to that command: {}"
LOST = "{:g} events were lost: the disk was full, or the controller was stopped"
LOST_AT_END = (
    "at least {:g} events were lost, up to the script's end: the disk was full, or a thread had more than "
    f"{events.MAX_SEGMENTS * events.SEGMENT_RECORDS} events without a controller"
)
NO_WAITS = "how long a rank waits for the others is not known: {}"
UNREAD = "the device's times of {} events are unknown: the process was killed"


class Discarded(NamedTuple):
    """A pass that is no window, and why."""

    times: Interval
    reason: str


class ProcessWindows:
    """Derives the windows of one process.

    Args:
        steps_per_window: Steps of an epoch in passes without a length, and outside of passes.

    Attributes:
        windows: Those that were found, in the order of their ends; the reader removes them.
        discarded: Passes that are no windows.
        notes: What could not be measured, and why, each once.
        problem: The error of the agent that ended measuring; empty without one.
        expected_epochs: Number of epochs at the script's end; None if it is not known.
        loaders: Those of the windows.
        operators: Facts on operators that were recorded, by their number, with `samples` as soon as these are known.
    """

    def __init__(self, steps_per_window: int) -> None:
        self.steps_per_window = steps_per_window
        self.windows: deque[Window] = deque()
        self.discarded: list[Discarded] = []
        self.notes: list[str] = []
        self.problem = ""
        self.expected_epochs: int | None = None
        self.loaders = UsedLoaders()
        self.operators: dict[int, dict[str, Any]] = {}
        self._kinds = PassKinds()
        self._loads = Loads()
        self._trainings = Trainings()
        self._threads: dict[int, Thread] = {}
        self._device_times: dict[int, DeviceTimes] = {}
        self._outside: dict[int, OutsideSteps] = {}
        self._collectives: dict[int, CollectiveWaits] | None = None  # by thread; None: waits for ranks are not known
        self._owners: dict[int, int] = {}  # pass -> thread
        self._loaders: dict[int, Loader] = {}
        self._names: dict[int, str] = {}
        self._loader_problem, self._unmeasured, self._around = "", list[str](), list[str]()  # at the script's end
        self._unexplained: list[tuple[int, Pass]] = []  # passes that only read data, with their threads
        self._waiting: dict[int, list[Window]] = {}  # evaluations of a thread that may be between counted steps
        self._main: int | None = None  # the thread of the last epoch
        self._closed_ns = 0  # the end of the last window of that thread
        self._last_ns = 0  # time of the last event
        self._has_meter = self._has_pass_epoch = False

    # Facts and events of the process

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Add facts on an object of the process."""
        match facts:
            case {"kind": "loader", "object": int(number), "loader": int(first)}:
                data, samples, batch_size, workers = map(facts.get, ("data", "samples", "batch", "workers"))
                self._loaders[number] = Loader(first, data, samples, batch_size, workers, facts)
            case {
                "kind": "transforms",
                "loader": int(number),
                "begun_ns": int(begun_ns),
                "times_ns": dict() as times_ns,
            }:
                self._loads.add_transforms(self.loader(number), begun_ns, times_ns)
            case {"kind": "name", "object": int(number), "name": str(name)}:
                self._names[number] = name
            case {"kind": "optimizer", "object": int(number), "earlier": [*earlier]}:
                self._trainings.join([number, *earlier])
            case {"kind": "untimed", "text": str(text)}:
                self._note(UNTIMED.format(text))
            case {"kind": "unused", "keys": [*keys]}:
                self._note(UNUSED.format(", ".join(f"`{key}=`" for key in keys)))
            case {"kind": "operators", "object": int(number)}:
                self.operators[number] = dict(facts)
            case {"kind": "collectives", "reason": str(reason)}:
                self._collectives = None if reason else {}
                if reason:
                    self._note(NO_WAITS.format(reason))
            case {"kind": "problem", "text": str(text)}:
                self.problem = text
                self._note(text)
            case {"kind": "loaders", "problem": str(problem), "unmeasured": [*unmeasured], "around": [*around]}:
                self._loader_problem, self._unmeasured, self._around = problem, unmeasured, around

    def add_loads(self, of_workers: Iterable[Event]) -> None:
        """Add the next events of DataLoader workers, before those of the threads that got their batches."""
        for event in of_workers:
            self._loads.add(event, self.loader(event.object))

    def add(self, of_threads: Mapping[int, Iterable[Event]], *, is_final: bool = False) -> None:
        """Add the next events of each thread; with `is_final`, they are the last ones of the process."""
        timed = [
            [(event.event.time_ns, thread, event) for event in self._timed(thread, of_thread, is_final=is_final)]
            for thread, of_thread in of_threads.items()
        ]
        for _, thread, event in heapq.merge(*timed, key=lambda timed_event: timed_event[0]):
            self._add(thread, event)
        if is_final:
            self._finish()

    def lose(self, count: float) -> None:
        """Note that at least this many events after the last one were lost, if any."""
        if count:
            self._note(LOST_AT_END.format(count))

    def settle(self) -> None:
        """End what has ended up to now, since the script asks for a measurement."""
        for thread in self._threads.values():
            thread.settle()

    @property
    def epochs(self) -> int:
        """Number of epochs so far."""
        return self._kinds.epochs

    @property
    def trainings(self) -> Sequence[int]:
        """The present number of each training by the number that its windows had when they ended."""
        return self._trainings.final_numbers

    @property
    def has_trained(self) -> bool:
        """Whether there was a training step."""
        outside = (steps.total for steps in self._outside.values())
        return bool(self.epochs or self._kinds.has_optimizer or any(outside))

    @property
    def current(self) -> Pass | None:
        """The pass that is going on in a thread that trains, or else in the first one."""
        going_on = [thread.current for thread in self._threads.values() if thread.current]
        return next((current for current in going_on if current.trains), going_on[0] if going_on else None)

    @property
    def possible_borders_ns(self) -> list[int]:
        """Moments that may be borders of later windows, the last event among them; empty without an event."""
        borders = [border for thread in self._threads.values() for border in thread.possible_borders_ns]
        borders += [border for outside in self._outside.values() for border in outside.possible_borders_ns]
        borders += [ended.called_ns for _, ended in self._unexplained]
        waiting = [window for windows in self._waiting.values() for window in windows]
        borders += [border for window in waiting for border in (window.opened_ns, window.closed_ns)]
        return [*borders, self._last_ns] if self._last_ns else []

    def _timed(self, thread: int, of_thread: Iterable[Event], *, is_final: bool) -> Iterable[TimedEvent]:
        return self._device_times.setdefault(thread, DeviceTimes()).timed(of_thread, is_final=is_final)

    def _add(self, number: int, timed: TimedEvent) -> None:
        event, thread = timed.event, self._thread(number)
        self._last_ns = max(self._last_ns, event.time_ns)
        if event.kind in OF_RANKS and self._collectives is not None:
            self._collectives.setdefault(number, CollectiveWaits()).add(timed)
        if event.kind == events.STEP:
            self._kinds.has_optimizer = True
            self._trainings.add_step(number, event.object, timed.device_ns)
        elif event.kind == events.PASS:
            self._explain()
            self._owners[event.object] = number
            self._has_meter |= bool(event.flags & events.IS_EXPLICIT)
        elif event.kind in OF_LOADING:
            self._loads.add(event, self.loader(event.object))
        elif event.kind in OF_PASS:
            thread = self._owner(event, number)
        elif event.kind in ON_BATCH:
            self._owner(event, number).note(event)
        elif event.kind in OF_METER:
            self._has_meter = True
            self._expect(event)
        elif event.kind == events.LOST:
            self._note(LOST.format(event.value))
        thread.add(timed)

    def _expect(self, event: Event) -> None:
        if event.kind == events.EXPECTED:
            self.settle()
            self.expected_epochs = None if math.isnan(event.value) else self.epochs + int(event.value)

    def _owner(self, event: Event, number: int) -> Thread:
        """Return the thread of a pass; a request in another thread moves the pass there."""
        owner = self._owners.get(event.object, number)
        if owner != number and event.kind != events.DROPPED:
            self._owners[event.object] = number
            if moved := self._thread(owner).take(event.object):
                self._thread(number).give(moved)
            return self._thread(number)
        return self._thread(owner)

    def _thread(self, number: int) -> Thread:
        if number not in self._threads:
            self._threads[number] = Thread(self, number)
            self._outside[number] = OutsideSteps()
        return self._threads[number]

    def _finish(self) -> None:
        for thread in self._threads.values():
            thread.finish()
        self._explain()
        for number, outside in self._outside.items():
            if self._counts_outside:
                self._add_counted(number, is_final=True)
            else:
                outside.leave_out()
            self._add_waiting(number)
        self._note_left_out()
        self._advise()
        if unread := sum(times.unread for times in self._device_times.values()):
            self._note(UNREAD.format(unread))

    def _advise(self) -> None:
        """Note how to measure the passes that were not, or not as the script takes their batches."""
        if self._loader_problem:
            self._note(LOADER_PROBLEM.format(self._loader_problem))
        for path in self._around:
            self._note(AROUND.format(path.replace(":", "."), path))
        if self._counts_outside and self.has_trained and not self._loader_problem:
            for path in self._unmeasured:
                self._note(UNMEASURED.format(path.replace(":", "."), path))
            if not self._unmeasured:
                self._note(OTHER_DATA)

    # What the threads need and find

    def loader(self, number: int) -> Loader:
        """Return the loader of a number."""
        return self._loaders.get(number, Loader(number))

    def name(self, number: int) -> str:
        """Return the name of a number that the script gave to a window."""
        return self._names.get(number, "")

    def train_outside(self, thread: int, kind: int, ended_ns: int, learning_rate: float) -> None:
        """Add a training event outside of passes."""
        self._outside[thread].add(kind, ended_ns, learning_rate)
        for window in self._waiting.pop(thread, []):
            self.discarded.append(Discarded(Interval(window.opened_ns, window.closed_ns), WITHIN_COUNTED))
        if self._counts_outside and not self._may_read_for(thread):
            self._add_counted(thread)

    def end_named(self, thread: int, name: str, times: Interval) -> None:
        """Add a window that the script has named."""
        parts = {"e2e_s": (times.ended_ns - times.begun_ns) * NANOSECOND}
        self._add_window(thread, Window(name, GIVEN_RULE, *times, parts))

    def end_pass(self, thread: int, ended: Pass) -> None:
        """Add the window of a pass that has ended, or the reason why it is none."""
        loads = self._loads.take(ended)
        name, rule = self._kinds.name(ended)
        if name is None:
            self.discarded.append(Discarded(Interval(ended.opened_ns, ended.closed_ns), rule))
            if not (ended.trains or ended.has_forward) and len(ended.batches):
                self._unexplained.append((thread, ended))
            return
        ended.unused = self._kinds.unused(thread, ended) if name == EPOCH else 0
        window = self._window(thread, name, rule, ended, loads)
        self._kinds.note(name, thread, ended)
        self.loaders.note(name, ended)
        if name == EPOCH:
            if ended.has_others:
                self._note(OTHER_BATCHES)
            self._end_outside(thread)
            if ended.ending is Ending.CUT or ended.is_piece:
                self.expected_epochs = None  # an epoch of the script has several windows
        if name == EVALUATION and self._counts_outside and len(self._outside[thread]):
            self._waiting.setdefault(thread, []).append(window)
        else:
            self._add_window(thread, window)

    def _window(self, thread: int, name: str, rule: str, ended: Pass, loads: PassLoads | None) -> Window:
        times = step_times(ended, has_optimizer=self._kinds.has_optimizer)
        count = len(times.delivered)
        parts = parts_of(ended, times) | (loads.parts(count) if loads else {})
        stretches = None
        if name == EPOCH and ended.trains:
            phases = phases_of_pass(ended, times)
            stretches = phase_stretches(ended, times, phases)
            parts |= phases.parts
            for reason in phases.reasons:
                self._note(reason)
            if FORWARD in phases.parts and ended.hides_forwards:
                self._note(COMPILED)
        counted = ended.counted[0] if ended.counted and name == EPOCH else None
        if counted in self.operators:
            batches = self.operators[counted]["batches"]
            self.operators[counted]["samples"] = samples_of_step(ended, batches)
        return Window(
            name,
            rule,
            ended.opened_ns,
            ended.closed_ns,
            parts,
            times.rows(),
            is_partial=name == EPOCH and self._kinds.is_partial(thread, ended),
            length=self.steps_per_window if ended.is_piece else ended.length,
            first_gap_s=int(times.gaps[0]) * NANOSECOND,
            reason="" if "samples" in parts or name != EPOCH else no_samples(ended),
            loading=loads.document(count) if loads else {},
            counted=counted,
            step_ends_ns=array("q", times.ended.astype("q").tobytes()) if name == EPOCH else (),
            timeline=timeline_rows(ended, times) if name == EPOCH else array("f"),
            stretches=stretches,
        )

    def _add_window(self, thread: int, window: Window) -> None:
        """Add a window, unless the thread of the last epoch has trained at the same time."""
        if self._main is not None and thread != self._main and window.opened_ns < self._busy_until_ns():
            self._note(CONCURRENT)
            return
        if window.name == EPOCH:
            self._main = thread
        if thread == self._main:
            self._closed_ns = window.closed_ns
        if window.name in (EPOCH, EVALUATION):
            training = self._trainings.of_window(thread, window.opened_ns, window.closed_ns)
            window = replace(window, training=training)
        self.windows.append(self._with_communication(thread, window))

    def _with_communication(self, thread: int, window: Window) -> Window:
        """Return an epoch with the time in which its thread waits for other ranks, if there are any."""
        if self._collectives is None or not len(window.step_ends_ns):
            return window
        waits = self._collectives.setdefault(thread, CollectiveWaits())
        *steps_ns, rest_ns = waits.take([window.opened_ns, *window.step_ends_ns, window.closed_ns])
        waited_ns = np.array(steps_ns)
        parts = {**window.parts, "communication_s": float(waited_ns.sum() + rest_ns) * NANOSECOND}
        return replace(window, parts=parts, rank_rows=rank_rows(window.rows, waited_ns))

    def _busy_until_ns(self) -> float:
        """Return until when the thread of the last epoch has trained; infinity if it trains now."""
        assert self._main is not None
        current = self._threads[self._main].current
        return math.inf if current and current.trains else self._closed_ns

    # Steps outside of passes

    @property
    def _counts_outside(self) -> bool:
        return not (self._has_meter or self._has_pass_epoch)

    def _add_counted(self, thread: int, *, is_final: bool = False) -> None:
        outside, limit = self._outside[thread], self.steps_per_window
        begins_ns = self._trainings.begins_ns(thread) if is_final or len(outside) > limit else []
        for window in outside.windows(limit, begins_ns, is_final=is_final):
            self._kinds.epochs += 1
            self._add_window(thread, window)

    def _add_waiting(self, thread: int) -> None:
        for window in self._waiting.pop(thread, []):
            self._add_window(thread, window)

    def _end_outside(self, thread: int) -> None:
        """Note the steps outside of passes before an epoch, such as those on one batch to try the model."""
        self._has_pass_epoch = True
        self._add_waiting(thread)
        self._outside[thread].leave_out()

    def _note_left_out(self) -> None:
        """Note the steps of all threads that are in no window."""
        for kind in (events.STEP, events.BACKWARD):
            if count := sum(outside.left_out for outside in self._outside.values() if outside.kind == kind):
                self._note(OUTSIDE.format(count, unit_of(kind, count)))

    def _may_read_for(self, thread: int) -> bool:
        """Return whether another thread may request the batches on which a thread trains."""
        others = [other for number, other in self._threads.items() if number != thread]
        return any(other.only_reads for other in others) or any(number != thread for number, _ in self._unexplained)

    def _explain(self) -> None:
        """Find the training, in other threads, on the batches of passes that only read them."""
        for reading, reader in self._threads.items():
            if reader.only_reads and self._trains_outside_of(reading):
                reader.settle()
        unexplained, self._unexplained = self._unexplained, []
        for thread, ended in unexplained:
            for number, outside in self._outside.items():
                if number != thread and len(outside):
                    self._add_read_ahead(ended, number, outside)

    def _trains_outside_of(self, thread: int) -> bool:
        """Return whether another thread trains outside of passes."""
        return any(len(outside) for number, outside in self._outside.items() if number != thread)

    def _add_read_ahead(self, ended: Pass, thread: int, outside: OutsideSteps) -> None:
        """Add an epoch whose batches another thread has read, if the training thread made one step per batch."""
        ends_ns = outside.since(ended.called_ns)
        if not ends_ns:
            return
        if len(ends_ns) != len(ended.batches):
            self._note(READ_AHEAD_UNMATCHED)
            return
        outside.discard()
        self._kinds.epochs += 1
        self._has_pass_epoch = True
        opened_ns, closed_ns = ended.called_ns, ends_ns[-1]
        parts = {"e2e_s": (closed_ns - opened_ns) * NANOSECOND, "steps": float(len(ends_ns))}
        samples = samples_of(ended, len(ends_ns))
        parts |= {} if math.isnan(samples) else {"samples": samples}
        rows = rows_of_steps(opened_ns, ends_ns)
        window = Window(
            EPOCH, READ_AHEAD_RULE, opened_ns, closed_ns, parts, rows, length=ended.length, reason=READ_AHEAD,
            step_ends_ns=ends_ns,
        )  # fmt: skip
        self._add_window(thread, window)

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
