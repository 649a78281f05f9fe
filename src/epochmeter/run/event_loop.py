"""The controller's loop over the training process's messages: it reads the counters at the borders of windows."""

from collections.abc import Iterator
from functools import partial

from epochmeter.console.console import Terminal
from epochmeter.power.window_energy import take_reading
from epochmeter.results.run_info import training_facts
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.plan import Plan
from epochmeter.run.recording import Recording, check_metered
from epochmeter.run.window_record import node_window
from epochmeter.run.worker_process import WorkerProcess
from epochmeter.shared import protocol
from epochmeter.shared.protocol import WindowOpening
from epochmeter.tracking.publisher import Tracker

FIRST_WAIT_S = 10.0
"""Time limit of the first window's wait for MLflow, which includes its import; later ones wait for a second at most."""


class EventLoop:
    """The loop of the first node, which records and publishes each window."""

    def __init__(
        self, worker: WorkerProcess, plan: Plan, instruments: WindowInstruments,
        recording: Recording, tracker: Tracker, terminal: Terminal,
    ) -> None:  # fmt: skip
        self._worker, self._plan, self._instruments = worker, plan, instruments
        self._recording, self._tracker, self._terminal = recording, tracker, terminal
        self._cache_notes: list[str] = []
        self._peaks_ns: int | None = None  # the last border of a measurement of the device's peaks

    def run(self, messages: Iterator[protocol.Message]) -> None:
        """Handle messages until training has ended."""
        try:
            for message in messages:
                match message:
                    case protocol.PeaksBorder():
                        self._check_peaks()
                    case protocol.Built():
                        self._start(message)
                    case WindowOpening():
                        self._open_window(message)
                    case protocol.Progress():
                        self._recording.progress(self._opened, message, partial(take_reading, self._instruments.meter))
                    case protocol.LossRead():
                        self._terminal.loss(message.step, message.loss)
                    case protocol.Translated():
                        self._terminal.stage(f"Translating for BLEU: {message.sentences:,} of {message.of:,} sentences")
                    case protocol.WindowClosed():
                        self._close_window()
                    case protocol.WindowMeasured():
                        self._record_window(message)
                    case protocol.Trained():
                        self._plan.run.moments["saves_ns"] = [*message.saves_ns]
                        self._plan.run.bleu, self._plan.run.no_bleu = message.bleu, message.no_bleu
                        self._terminal.stage("Saving results and recording the profiler's trace")
                        self._worker.reply()
                        break
        finally:
            self._recording.save()
        self._recording.end()

    def _check_peaks(self) -> None:
        """Reply what other processes did on the device while its peaks were measured."""
        self._instruments.own_processes(self._worker.pids)
        at_ns, others = self._instruments.mark_others(self._peaks_ns)
        self._worker.reply(protocol.Disturbance("; ".join(others)))
        self._peaks_ns = at_ns
        self._plan.run.moments.setdefault("peaks_ns", [at_ns, at_ns])[1] = at_ns

    def _start(self, built: protocol.Built) -> None:
        if built.imported_ns is not None:
            self._plan.run.moments["imported_ns"] = built.imported_ns
        self._recording.begin(built, self._worker.pids)
        self._terminal.stage("Waiting for MLflow")
        self._tracker.flush(FIRST_WAIT_S)
        self._terminal.stage("Loading samples")
        self._worker.reply()

    def _open_window(self, opened: WindowOpening) -> None:
        job, is_epoch = self._plan.job, opened.window == "epoch"
        self._opened = opened = opened._replace(epochs=job.epochs)
        self._terminal.stage("Preparing the page cache")
        self._cache_notes = self._instruments.data_source.prepare(opened.epoch) if is_epoch else []
        self._terminal.window_opened(opened.window, opened.epoch, job.epochs, opened.steps)
        if is_epoch:
            self._recording.forecast(opened)
        self._before = self._instruments.read_start()
        self._worker.reply()
        self._recording.open_window(opened, self._before)

    def _close_window(self) -> None:
        self._after = self._instruments.read_end()
        self._worker.reply()
        self._instruments.own_processes(self._worker.pids)
        self._instruments.mark_end()
        self._recording.close_window(self._opened, self._after)

    def _record_window(self, measured: protocol.WindowMeasured) -> None:
        reply = self._recording.add(self._opened, measured, self._before, self._after, self._cache_notes)
        self._instruments.discard_before(self._after.at_ns)
        self._recording.save()
        if not self._is_last(reply):  # otherwise, the end of the run is published in a moment
            self._tracker.follow()
        self._worker.reply(reply)

    def _is_last(self, reply: protocol.Recorded) -> bool:
        """Return whether no window follows the one that was recorded now."""
        job, opened = self._plan.job, self._opened
        is_last_epoch = reply.stop or opened.epoch + 1 == job.epochs
        return is_last_epoch and (opened.window == "val" or not job.evaluate)


def run_secondary_event_loop(
    messages: Iterator[protocol.Message], worker: WorkerProcess, plan: Plan, instruments: WindowInstruments
) -> None:
    """Handle the messages of another node's ranks: its counters are read when the first node's are."""
    for message in messages:
        reply: protocol.Reply = protocol.Proceed()
        match message:
            case protocol.Built():
                plan.run.training = training_facts(message.training)
                plan.describe()
                check_metered(plan, instruments.meter)
                instruments.own_processes(worker.pids)
            case WindowOpening():
                if message.window == "epoch":
                    instruments.data_source.prepare(message.epoch)
                before = instruments.read_start()
            case protocol.WindowClosed():
                reply = node_window(plan.node.name, message, before, instruments.read_end(), instruments)
        worker.reply(reply)
        if isinstance(message, protocol.Trained):
            return
