"""The controller's loop while a script runs: it reads counters, derives windows from the script's events, records them.

The script does not wait for it. A border of a pass wakes it, so that the counters are read within a millisecond; the
energy of a window, whose borders may be known later, is interpolated between readings.
"""

import time
from collections import Counter
from contextlib import suppress

from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.power.readings import Readings
from epochmeter.power.window_energy import Reading, take_reading
from epochmeter.results.run_info import Training
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.node_windows import JoinedWindow, Nodes, with_lost
from epochmeter.run.plan import Plan
from epochmeter.run.profiling import traced_steps
from epochmeter.run.recording import Recording
from epochmeter.run.replaying import ended_note, precision_of
from epochmeter.run.script import ScriptProcess
from epochmeter.run.script_flops import count_flops
from epochmeter.run.worker_process import WorkerError
from epochmeter.segmentation.passes import Pass
from epochmeter.segmentation.saved_state import MAX_READ_FILES, save_state
from epochmeter.segmentation.script import ScriptWindows
from epochmeter.segmentation.windows import EPOCH, Window, parts_so_far
from epochmeter.shared import protocol
from epochmeter.shared.problem import problem_of
from epochmeter.shared.protocol import WindowOpening
from epochmeter.shared.units import NANOSECOND
from epochmeter.tracking.publisher import Tracker

POLL_S = 0.1  # period of reading the script's events, and the meter
MARK_S = 1.0  # shortest period of reading the other instruments between borders
PROGRESS_S = 0.5  # period of the reports of progress
PUBLISH_S = 10.0  # shortest time between two updates of the run in MLflow, which use the processor
NO_ENERGY = "the first rank has the energy of all ranks"
NOT_TRAINED = "before the first training, the energy of a window is only in the record"
COUNTED = "epoch {}: FLOPs were counted in one step, which took {:.2g} s more; `warmup_epochs=1` leaves that epoch out."
TRACED_IN_EPOCH = "the steps of a script are traced within an epoch, whose power samples are read at its end."


class ScriptLoop:
    """Follows a running script, and records its windows."""

    def __init__(
        self, script: ScriptProcess, windows: ScriptWindows, plan: Plan, instruments: WindowInstruments,
        recording: Recording, tracker: Tracker, nodes: Nodes, before: Reading,
    ) -> None:  # fmt: skip
        """`before` is a reading of the meter before the script has begun, or has got its `Meter`."""
        self._script, self._windows, self._plan, self._nodes = script, windows, plan, nodes
        self._instruments, self._recording, self._tracker = instruments, recording, tracker
        self._readings = Readings()
        self._readings.add(before, is_at_border=False)
        self._recorded: dict[str, protocol.Recorded] = {}  # by the names of windows
        self._epochs = self._passes = 0
        self._epochs_of: Counter[int] = Counter()  # by training
        self._cache_notes: list[tuple[int, str]] = []  # with their times, of passes that are not recorded so far
        self._opened: tuple[Pass, WindowOpening] | None = None  # the pass that is going on, if it trains
        self._traced_ns: list[int] = []  # times within traced steps that belong to no recorded window so far
        self._has_begun = self._is_complete = self._is_ending = self._has_flops = False
        self._marked_s = self._progressed_s = self._published_s = time.monotonic()

    def run(self) -> None:
        """Follow the script until it has ended; WorkerError if it has failed."""
        try:
            self._mark()
            while not self._is_complete and self._script.receive(POLL_S):
                self._read_counters()
                self._advance()
                if self._script.not_replayed:
                    self._end_replayed("")
            if not self._is_complete:
                self._mark()
                self._advance(is_final=True)
        finally:
            self._nodes.end()
            self._recording.end()
            self._renumber_trainings()
            self._count_flops()
            self._note_loaders()
        try:
            self._script.check_end()
        except WorkerError as error:
            if lost := self._nodes.lost():
                raise WorkerError(with_lost(problem_of(error), lost)) from error
            raise

    def _end_replayed(self, note: str) -> None:
        self._is_complete = True
        self._script.end_replayed(note)

    def _read_counters(self) -> None:
        now_s = time.monotonic()
        if self._script.is_at_border or now_s - self._marked_s >= MARK_S:
            self._mark()
        elif self._instruments.meter.domains:
            self._readings.add(take_reading(self._instruments.meter, fresh=False), is_at_border=False)

    def _mark(self) -> None:
        """Read all instruments now; the energy first."""
        self._instruments.own_processes(self._script.pids)
        self._readings.add(self._instruments.read_end(), is_at_border=self._script.is_at_border)
        self._instruments.mark_end()
        self._instruments.gpu_monitor.poll()
        self._marked_s = time.monotonic()

    def _advance(self, *, is_final: bool = False) -> None:
        """Read the new events, and record what has ended."""
        self._prepare_passes()
        questions, self._script.questions = self._script.questions, []
        asking = [question.process for _, question in questions]
        self._windows.read(at_rest=asking, ended=self._script.ended, is_final=is_final)
        self._note_traces()
        if self._windows.main and not self._has_begun:
            self._has_begun = True
            training = self._windows.main.training
            self._recording.begin(protocol.Built({}, training), self._script.pids)
        # Sensors report the power at the end of a window later; only a script that asks for its energy waits for them.
        settled_ns = time.monotonic_ns() - round(self._instruments.meter.settled_s / NANOSECOND)
        latest_ns = None if is_final or questions else settled_ns
        taken = self._windows.take(latest_ns, is_final=is_final)
        for joined in self._nodes.joined(taken, is_final=is_final):
            self._record(joined)
            may_end = self._plan.job.measure.replay and not is_final
            if may_end and (known := precision_of(self._plan.record, self._plan.job)):
                self._end_replayed(ended_note(*known))
                return
        self._follow()
        if self._script.is_ending and not self._is_ending:
            self._is_ending = True
            self._tracker.publish_beside()  # then only the summary is left for the end of the run
        for connection, question in questions:
            self._script.answer(connection, self._answer(question))
        self._discard_old()

    def _answer(self, question: protocol.Asked) -> protocol.Reply:
        """Return the measurement of a window; that of a rank other than the first has no energy."""
        if window := self._windows.last_of(question.process, question.window):
            metrics = {f"{window.name}/{key}": value for key, value in window.parts.items()}
            return protocol.Recorded(False, metrics, NO_ENERGY if self._windows.main else NOT_TRAINED)
        return self._recorded.get(question.window, protocol.Proceed())

    def _prepare_passes(self) -> None:
        """Bring the page cache into the configured state for the processes that wait for it."""
        for connection in self._script.openings:
            notes = self._instruments.data_source.prepare(self._passes)
            self._cache_notes += [(time.monotonic_ns(), note) for note in notes]
            self._passes += 1
            self._script.answer(connection, protocol.Proceed())
        self._script.openings.clear()

    def _note_traces(self) -> None:
        for message in self._script.traced[len(self._traced_ns) :]:
            if isinstance(message, protocol.Traced):
                code = EnergyCode.NO_PHASES.value
                self._plan.run.traced = {**traced_steps(message), "reason": TRACED_IN_EPOCH, "code": code}
                self._plan.describe()
                self._traced_ns.append(message.opened_ns)
            else:
                self._traced_ns.append(time.monotonic_ns())

    def _record(self, joined: JoinedWindow) -> None:
        measured, window = joined.measured, joined.measured.window
        assert self._windows.main
        self._count_flops()
        opening = opening_of(window, self._epochs, self._windows.main.windows.expected_epochs)
        before, after = self._readings.at(window.opened_ns), self._readings.at(window.closed_ns)
        self._recording.close_window(opening, after)
        if window.name == EPOCH:
            self._epochs += 1
            self._recording.forecast(opening)
            self._plan.record.append_steps(window.rows)
            self._plan.record.append_rank_rows(measured.rank_rows)
        notes = [note for at_ns, note in self._cache_notes if at_ns <= window.closed_ns]
        self._cache_notes = [(at_ns, note) for at_ns, note in self._cache_notes if at_ns > window.closed_ns]
        notes += [*joined.notes, *([f"{window.reason}."] if window.reason else [])]
        is_traced = any(window.opened_ns <= at_ns <= window.closed_ns for at_ns in self._traced_ns)
        is_loaded = any(window.opened_ns <= loaded.at_ns <= window.closed_ns for loaded in self._script.loaded)
        if window.counted is not None and opening.epoch >= self._plan.job.warmup_epochs:
            notes.append(COUNTED.format(opening.epoch + 1, window.parts.get("counting_s", 0.0)))
        message = protocol.WindowMeasured(measured.ranks, joined.nodes, measured.rank_steps)
        is_warmup = self._begins_training(window) or is_traced or is_loaded
        reply = self._recording.add(
            opening, message, before, after, notes, rule=window.rule, training=window.training,
            loading=window.loading, is_warmup=is_warmup, timeline=window.timeline, stretches=window.stretches,
        )  # fmt: skip
        self._recorded[window.name] = reply
        self._nodes.leave(measured, self._recording.last, reply.no_energy)
        if reply.stop and self._plan.job.budget.stop:
            self._script.stop()
        self._recording.save()
        self._opened = None
        if time.monotonic() - self._published_s >= PUBLISH_S:
            self._tracker.publish_beside()
            self._published_s = time.monotonic()

    def _begins_training(self, window: Window) -> bool:
        """Return whether an epoch is a warm-up of a later training; those of the first one are known by their number.

        If that training turns out to continue an earlier one, the epoch is still the first of another optimizer.
        """
        if window.name != EPOCH or not window.training:
            return False
        self._epochs_of[window.training] += 1
        return self._epochs_of[window.training] <= self._plan.job.warmup_epochs

    def _renumber_trainings(self) -> None:
        """Correct the trainings of recorded windows, since a later one turned out to continue an earlier one."""
        numbers = self._windows.main.windows.trainings if self._windows.main else []
        if [*numbers] != [*range(len(numbers))]:
            self._plan.record.renumber_trainings(numbers)

    def _count_flops(self) -> None:
        """Add the FLOPs of the script to the record, as soon as the window of the counted step is known."""
        if not self._has_flops:
            self._has_flops = count_flops(self._plan.run, self._windows)
            if self._has_flops:
                self._plan.describe()

    def _note_loaders(self) -> None:
        """Add to the record on which DataLoaders the script has trained and evaluated, and where its ranks are."""
        loaders = self._windows.main.windows.loaders.documents if self._windows.main else []
        facts: Training = {"loaders": [*loaders]} if loaders else {}
        if len(places := [*self._windows.places, *self._nodes.places]) > 1:
            facts["places"] = places
        if facts:
            self._plan.run.training = {**self._plan.run.training, **facts}
            self._plan.describe()

    def _follow(self) -> None:
        """Note a pass that trains, and report its progress."""
        main = self._windows.main
        current = main.windows.current if main else None
        if main is None or current is None or not current.trains:
            return
        if self._opened is None or self._opened[0] is not current:
            opening = WindowOpening(EPOCH, self._epochs, current.length or 0, epochs=main.windows.expected_epochs)
            self._opened = current, opening
            self._recording.open_window(opening, self._readings.at(current.opened_ns))
        now_s = time.monotonic()
        if now_s - self._progressed_s >= PROGRESS_S:
            self._progressed_s = now_s
            steps, ended_ns = len(current.batches) - 1, current.batches.requested_ns[-1]  # without the present one
            progress = protocol.Progress(steps, None, parts_so_far(current, steps))
            self._recording.progress(self._opened[1], progress, lambda: self._readings.at(ended_ns))

    def _discard_old(self) -> None:
        """Discard readings and logs that no later window needs."""
        borders_ns = [*self._windows.possible_borders_ns, *self._nodes.possible_borders_ns]
        self._readings.thin(time.monotonic_ns(), borders_ns)
        if borders_ns:
            self._readings.discard_before(min(borders_ns))
            self._instruments.discard_before(min(borders_ns))
        if self._windows.read_count >= MAX_READ_FILES:
            with suppress(OSError):  # without space, the logs are kept
                save_state(self._windows)


def opening_of(window: Window, earlier: int, expected: int | None) -> WindowOpening:
    """Return the opening of a script's window after `earlier` epochs; `expected`: number of all epochs, if known."""
    epoch = earlier if window.name == EPOCH else max(0, earlier - 1)
    length = window.length if window.is_partial else None
    return WindowOpening(window.name, epoch, int(window.parts.get("steps", 0)), window.is_partial, length, expected)
