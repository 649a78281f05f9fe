"""The controller's loop over the training process's messages: it reads the counters at the borders of windows."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epochmeter.config.secrets import redact_tree
from epochmeter.console.console import Terminal
from epochmeter.machine import gpus
from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.power.knobs.requests import AUTO
from epochmeter.power.meter import Meter
from epochmeter.results.footprint import epoch_footprint, forecast_cost
from epochmeter.results.forecast import Forecaster, no_forecast_reason
from epochmeter.results.roofline import epoch_utilization
from epochmeter.results.summary import reaches_target
from epochmeter.run.instruments import WindowInstruments, write_gauges
from epochmeter.run.plan import Plan
from epochmeter.run.window import build_window, node_window
from epochmeter.run.worker_process import WorkerProcess
from epochmeter.shared import protocol
from epochmeter.shared.protocol import WindowOpening
from epochmeter.shared.record import step_count
from epochmeter.tracking.publisher import Tracker

if TYPE_CHECKING:
    from epochmeter.run.limit_probing import LimitProbing

TRACED_IN_EPOCH = "the steps of a script are traced within an epoch, whose power samples are read at its end."
SCRIPT_PUBLISH_S = 10.0  # shortest time between two updates of a script's run in MLflow: the script waits for them
GAUGES_WRITE_S = 10.0
"""Shortest time between two writes of gauges within a window, since they may delay reads of the same disk."""
FIRST_WAIT_S = 10.0
"""Time limit of the first window's wait for MLflow, which includes its import; later ones wait for a second at most."""


class EventLoop:
    """The loop of the first node, which records and publishes each window."""

    def __init__(
        self, worker: WorkerProcess, plan: Plan, instruments: WindowInstruments,
        settings: AppliedSettings, tracker: Tracker, terminal: Terminal,
    ) -> None:  # fmt: skip
        self._worker, self._plan, self._instruments = worker, plan, instruments
        self._settings, self._tracker, self._terminal = settings, tracker, terminal
        earlier = plan.record.windows()
        self._steps = step_count(earlier)  # of measured windows; a script may have recorded steps of later ones
        self._forecaster = Forecaster(
            earlier, plan.job.warmup_epochs, lambda count: plan.record.steps(self._steps - count, count)
        )
        self._forecast: dict[str, float] = {}
        self._probing: LimitProbing | None = None
        if plan.job.power_limit == AUTO and "power_limit" in plan.targets:  # not in a rehearsal
            from epochmeter.run import limit_probing  # imports SciPy, which takes time

            self._probing = limit_probing.LimitProbing(plan, instruments.meter, settings, terminal)
        self._cache_notes: list[str] = []
        self._is_traced = False  # whether the profiler, which may slow steps, was active in a script's open window
        self._unsaved: Mapping[str, Any] | None = None  # the last window's line, until it is written to the record
        self._published_s = self._gauges_written_s = time.monotonic()

    def run(self, messages: Iterator[protocol.Message]) -> None:
        """Handle messages until training has ended."""
        try:
            for message in messages:
                if not isinstance(message, WindowOpening):
                    self._save()
                match message:
                    case protocol.Built():
                        self._start(message)
                    case WindowOpening():
                        self._open_window(message)
                    case protocol.Progress():
                        self._show_progress(message)
                    case protocol.WindowClosed():
                        self._close_window(message)
                    case protocol.WindowMeasured():
                        self._record_window(message)
                    case protocol.Traced():  # of a script
                        self._is_traced = True
                        self._plan.describe(traced={**message._asdict(), "reason": TRACED_IN_EPOCH})
                    case protocol.TraceFailed():
                        self._is_traced = True
                    case protocol.Trained():
                        self._terminal.stage("Saving results and recording the profiler's trace")
                        self._worker.reply()
                        break
        finally:
            self._save()
        if self._probing:
            self._probing.end()

    def _start(self, built: protocol.Built) -> None:
        self._plan.describe(model=built.model, training=built.training)
        check_metered(self._plan, self._instruments.meter)
        self._instruments.own_processes(self._worker.pids)
        write_gauges(self._instruments.gauges, self._plan.record)
        self._terminal.stage("Waiting for MLflow")
        self._tracker.flush(FIRST_WAIT_S)
        self._terminal.stage("Loading samples")
        self._worker.reply(protocol.Proceed(self._instruments.has_border_counters))

    def _open_window(self, opened: WindowOpening) -> None:
        job, is_epoch = self._plan.job, opened.window == "epoch"
        if not job.measure.command:
            opened = opened._replace(epochs=job.epochs)
        self._opened = opened
        self._terminal.stage("Preparing the page cache")
        self._cache_notes = self._instruments.data_source.prepare(opened.epoch) if is_epoch else []
        self._terminal.window_opened(opened.window, opened.epoch, job.epochs, opened.steps)
        if is_epoch:
            self._forecast = self._make_forecast(opened)
            self._terminal.forecast(self._forecast, job.footprint.currency)
        self._before = self._instruments.read_start()
        if opened.is_awaited:
            self._worker.reply()
        self._save()
        if self._probing:
            self._probing.open_window(opened, self._before)

    def _make_forecast(self, opened: WindowOpening) -> dict[str, float]:
        """Return the forecast of a run's totals before an epoch; if there is none, the reason is recorded."""
        plan, epochs = self._plan, opened.epochs
        reason = no_forecast_reason(plan.job, epochs)
        if reason and opened.epoch and "forecast" not in plan.run:
            plan.describe(forecast={"reason": reason})
        metrics = {} if reason or epochs is None else self._forecaster.metrics(epochs)
        return metrics | forecast_cost(metrics, plan.job.footprint)

    def _show_progress(self, progress: protocol.Progress) -> None:
        opened, record = self._opened, self._plan.record
        self._terminal.progress(progress.steps, progress.loss)
        if opened.window == "epoch":
            done = {"epoch": opened.epoch, "steps": progress.steps, "epoch_steps": opened.steps}
            record.append_progress({**done, "parts": progress.parts or {}})
        if time.monotonic() - self._gauges_written_s >= GAUGES_WRITE_S:
            write_gauges(self._instruments.gauges, record, durably=False)
            self._gauges_written_s = time.monotonic()
        if self._probing:
            self._probing.progress(progress.steps)

    def _close_window(self, closed: protocol.WindowClosed) -> None:
        self._after = self._instruments.read_end()
        if closed.is_awaited:
            self._worker.reply()
        self._instruments.own_processes(self._worker.pids)  # also ranks of a script that have connected meanwhile
        self._instruments.mark_end()
        opened = self._opened
        if closed.window is not None and closed.epoch is not None:
            opened = opened._replace(window=closed.window, epoch=closed.epoch)
        if closed.steps is not None:
            opened = opened._replace(steps=closed.steps, partial=True, epoch_steps=opened.steps)
        self._opened = opened
        self._plan.record.end_progress()
        if self._probing:
            self._probing.close_window(self._after, opened)

    def _record_window(self, measured: protocol.WindowMeasured) -> None:
        plan, readings = self._plan, (self._before, self._after)
        window = build_window(self._opened, measured, *readings, self._instruments, plan.record, self._steps)
        self._steps += step_count([window.line])
        metrics = {**window.line["metrics"], **self._derived_metrics(window.line)}
        drift = self._settings.drift_messages()  # device settings that another program changed meanwhile
        notes = [*self._cache_notes, *window.notes, *drift]
        flags = {**window.flags, **({"setting_changed": " ".join(drift)} if drift else {})}
        remarks = {name: redact_tree(content) for name, content in (("notes", notes), ("flags", flags)) if content}
        line = {**window.line, "metrics": metrics, **self._warmup_mark(window.line), **remarks}
        self._unsaved = line
        self._forecaster.add(line)
        # A script may wait for MLflow, but not for the disk alone. If it waits for this reply and MLflow is not due,
        # the line is written during the next window.
        is_due = time.monotonic() - self._published_s >= SCRIPT_PUBLISH_S and measured.is_awaited
        if not plan.job.measure.command or is_due:
            self._save()
            self._tracker.flush()
            self._published_s = time.monotonic()
        self._worker.reply(self._recorded_reply(line, window.notes))
        if not measured.is_awaited:
            self._save()

    def _recorded_reply(self, line: Mapping[str, Any], notes: Sequence[str]) -> protocol.Recorded:
        reasons = [self._plan.run["energy"]["reason"], *(note for note in notes if "energy" in note)]
        no_energy = " ".join(filter(None, reasons)) or "the window has no energy"
        has_energy = f"{line['window']}/energy_j" in line["metrics"]
        return protocol.Recorded(reaches_target(line, self._plan.job), line["metrics"], "" if has_energy else no_energy)

    def _derived_metrics(self, line: Mapping[str, Any]) -> Mapping[str, float]:
        """Return an epoch's utilization, carbon, cost and forecast."""
        if line["window"] != "epoch":
            return {}
        run, job = self._plan.run, self._plan.job
        measured = {name.removeprefix("epoch/"): value for name, value in line["metrics"].items()}
        utilization = epoch_utilization(measured, run, job.roofline.flops)
        named = {f"epoch/{name}": value for name, value in utilization.items()}
        return {**named, **epoch_footprint(line, run, job.footprint), **self._forecast}

    def _warmup_mark(self, line: Mapping[str, Any]) -> dict[str, bool]:
        """Return the mark of an epoch that is not representative: resumed, traced, or with probed power limits."""
        starts = [start["epoch"] for start in self._plan.run.get("resumed", [])]
        is_epoch, is_traced, self._is_traced = line["window"] == "epoch", self._is_traced, False
        if is_traced or (starts and is_epoch and line["epoch"] - starts[-1] < self._plan.job.warmup_epochs):
            return {"warmup": True}
        return self._probing.record_window(line) if self._probing else {}

    def _save(self) -> None:
        if self._unsaved is None:
            return
        plan, line, self._unsaved = self._plan, self._unsaved, None
        if plan.job.measure.command:  # a script has written its steps, but not waited for the disk
            plan.record.flush_steps()
        plan.record.append(line)
        write_gauges(self._instruments.gauges, plan.record)
        plan.set_flags(line.get("flags", {}))
        self._terminal.window_closed()
        self._terminal.window_measured(line, plan.job.epochs)


def run_secondary_event_loop(
    messages: Iterator[protocol.Message], worker: WorkerProcess, plan: Plan, instruments: WindowInstruments
) -> None:
    """Handle the messages of another node's ranks: its counters are read when the first node's are."""
    for message in messages:
        reply: protocol.Reply = protocol.Proceed()
        match message:
            case protocol.Built():
                plan.describe(training=message.training)
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


def check_metered(plan: Plan, meter: Meter) -> None:
    """Raise RuntimeError if the metered GPUs are not those that train; a replayed machine is not checked."""
    training = plan.run["training"]
    if not (meter.domains and plan.gpus) or plan.job.machine.root != "/":
        return
    on_cpu = training["accelerator"] == "cpu"
    reported = [] if on_cpu else training.get("gpus_here") or training.get("gpus") or [training["gpu"].get("uuid")]
    trained = sorted({uuid for uuid in reported if uuid})  # empty with an old torch
    are_metered = all(any(gpus.matches_uuid(uuid, name) for name in plan.gpus) for uuid in trained)
    # The GPUs of a script's other ranks are checked by `check_trained`.
    may_be_fewer = plan.job.measure.command and plan.job.strategy.ranks != 1
    are_complete = len(trained) == len(plan.gpus) or may_be_fewer
    if on_cpu or (trained and not (are_metered and are_complete)):
        training_gpus = ",".join(f"GPU-{uuid}" for uuid in trained)
        raise RuntimeError(
            f"{training_gpus or 'the CPU'} trains, but {','.join(plan.gpus)} is metered\n"
            "  hint: select the GPUs that train with CUDA_VISIBLE_DEVICES and `strategy.ranks=`; if the CPU trains, "
            "set `device=cpu`, or `device.python=` to an interpreter whose torch finds the GPU"
        )
