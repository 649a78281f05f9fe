"""The controller's loop over the training process's messages: it reads the counters at the borders of windows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from epochmeter.config.schema import Job
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
from epochmeter.run.instruments import WindowInstruments, write_gauges, write_powers
from epochmeter.run.plan import Plan
from epochmeter.run.window import Window, build_window, node_window
from epochmeter.run.worker_process import WorkerError, WorkerProcess
from epochmeter.shared import protocol
from epochmeter.shared.protocol import Message, Traced
from epochmeter.tracking.publisher import Tracker

if TYPE_CHECKING:
    from epochmeter.run.limit_probing import LimitProbing

TRACED_IN_EPOCH = "the steps of a script are traced within an epoch, whose power samples are read at its end."
SCRIPT_PUBLISH_S = 10.0
"""Shortest time between two updates of a script's run in MLflow: the script waits for them."""
GAUGES_WRITE_S = 10.0
"""Shortest time between two writes of gauges within a window, since they may delay reads of the same disk."""
FIRST_WAIT_S = 10.0
"""Time limit of the first window's wait for MLflow, which includes its import; later ones wait for a second at most."""


def run_event_loop(
    messages: Iterator[Message], worker: WorkerProcess, plan: Plan, instruments: WindowInstruments,
    settings: AppliedSettings, tracker: Tracker, terminal: Terminal,
) -> None:  # fmt: skip
    """Handle messages until training has ended: read the counters at each border, record and publish in between."""
    job = plan.job

    def utilization(metrics: Mapping[str, float]) -> Mapping[str, float]:
        return epoch_utilization(metrics, plan.run, job.roofline.flops)

    def save(line: Mapping[str, Any]) -> None:
        if job.measure.command:  # a script has written its steps, but not waited for the disk
            plan.record.flush_steps()
        plan.record.append(line)
        write_gauges(instruments.gauges, plan.record)
        plan.set_flags(line.get("flags", {}))
        terminal.window_closed()
        terminal.window_measured(line, job.epochs)

    published_s = written_s = time.monotonic()
    forecast: dict[str, float] = {}
    is_traced = False
    forecaster = Forecaster(plan.record.windows(), job.warmup_epochs, plan.record.last_steps)
    probing = open_probing(plan, instruments.meter, settings, terminal)
    with ExitStack() as unsaved:
        for message in messages:
            if not isinstance(message, protocol.WindowOpening):
                unsaved.close()
            match message:
                case protocol.Built():
                    plan.describe(model=message.model, training=message.training)
                    check_metered(plan, instruments.meter)
                    instruments.gpu_monitor.own_pids.update(worker.pids)
                    write_gauges(instruments.gauges, plan.record)
                    terminal.stage("Waiting for MLflow")
                    tracker.flush(FIRST_WAIT_S)
                    terminal.stage("Loading samples")
                    worker.reply()
                case protocol.WindowOpening():
                    opened = message
                    terminal.stage("Preparing the page cache")
                    cache_notes = instruments.data_source.prepare(opened.epoch) if opened.window == "epoch" else []
                    terminal.window_opened(opened.window, opened.epoch, job.epochs, opened.steps)
                    if opened.window == "epoch":
                        forecast = make_forecast(forecaster, opened, plan)
                        terminal.forecast(forecast, job.footprint.currency)
                    before = instruments.read_start()
                    worker.reply()
                    unsaved.close()
                    if probing:
                        probing.open_window(opened, before)
                case protocol.Progress():
                    terminal.progress(message.steps, message.loss)
                    if opened.window == "epoch":
                        progress = {"epoch": opened.epoch, "steps": message.steps, "epoch_steps": opened.steps}
                        plan.record.append_progress({**progress, "parts": message.parts or {}})
                    if time.monotonic() - written_s >= GAUGES_WRITE_S:
                        write_gauges(instruments.gauges, plan.record, durably=False)
                        written_s = time.monotonic()
                    if probing:
                        probing.progress(message.steps)
                case protocol.TraceFailed():  # of a script; the profiler may have slowed the epoch
                    is_traced = True
                case protocol.Traced():
                    is_traced = True
                    plan.describe(traced={**message._asdict(), "reason": TRACED_IN_EPOCH})
                case protocol.WindowClosed():
                    after = instruments.read_end()
                    worker.reply()
                    instruments.gauges.mark()
                    if message.window is not None and message.epoch is not None:
                        opened = opened._replace(window=message.window, epoch=message.epoch)
                    if message.steps is not None:
                        opened = opened._replace(steps=message.steps, partial=True, epoch_steps=opened.steps)
                    plan.record.end_progress()
                    if probing:
                        probing.close_window(after, opened)
                case protocol.WindowMeasured():
                    window = build_window(opened, message, before, after, instruments, plan.record, utilization)
                    if opened.window == "epoch":
                        carbon_and_cost = epoch_footprint(window.line, plan.run, job.footprint)
                        metrics = {**window.line["metrics"], **carbon_and_cost, **forecast}
                        window = window._replace(line={**window.line, "metrics": metrics})
                    remarks = notes_and_flags(window, cache_notes, settings.drift_messages())
                    warmup = resume_warmup(job, plan.run, window.line)
                    warmup = warmup or (probing.measured(window.line) if probing else {})
                    warmup |= {"warmup": True} if is_traced else {}
                    is_traced = False
                    forecaster.add({**window.line, **warmup})
                    unsaved.callback(save, {**window.line, **warmup, **remarks})
                    # A script waits for MLflow at times, and never for the disk alone: its line is written while the
                    # next window is open.
                    if not job.measure.command or time.monotonic() - published_s >= SCRIPT_PUBLISH_S:
                        unsaved.close()
                        tracker.flush()
                        published_s = time.monotonic()
                    worker.reply(recorded(window, plan))
                case protocol.Trained():
                    terminal.stage("Saving results and recording the profiler's trace")
                    worker.reply()
                    break
    if probing:
        probing.end()


def make_forecast(forecaster: Forecaster, opened: protocol.WindowOpening, plan: Plan) -> dict[str, float]:
    """Return the forecast of a run's totals before an epoch; if there is none, the reason is recorded."""
    epochs = opened.epochs if plan.job.measure.command else plan.job.epochs
    reason = no_forecast_reason(plan.job, epochs)
    if reason and opened.epoch and "forecast" not in plan.run:
        plan.describe(forecast={"reason": reason})
    metrics = {} if reason or epochs is None else forecaster.metrics(epochs)
    return metrics | forecast_cost(metrics, plan.job.footprint)


def open_probing(plan: Plan, meter: Meter, settings: AppliedSettings, terminal: Terminal) -> LimitProbing | None:
    """Return the search of a job with `power_limit=auto`; None for all others, and for a rehearsal."""
    if plan.job.power_limit != AUTO or "power_limit" not in plan.targets:
        return None
    from epochmeter.run.limit_probing import LimitProbing  # imports SciPy, which takes time

    return LimitProbing(plan, meter, settings, terminal)


def recorded(window: Window, plan: Plan) -> protocol.Recorded:
    """Return the reply to a window's measurements: its metrics, or why it has no energy."""
    metrics: dict[str, float] = window.line["metrics"]
    has_energy = f"{window.line['window']}/energy_j" in metrics
    reasons = [plan.run["energy"]["reason"] or "", *(note for note in window.notes if "energy" in note)]
    no_energy = "" if has_energy else " ".join(filter(None, reasons)) or "the window has no energy"
    return protocol.Recorded(reaches_target(window.line, plan.job), metrics, no_energy)


def notes_and_flags(window: Window, cache_notes: Sequence[str], drift: Sequence[str]) -> dict[str, Any]:
    """Return the notes and flags of a window for its line in the record, without secrets; empty ones are omitted.

    `drift` lists device settings that another program changed meanwhile.
    """
    flags = {**window.flags, **({"setting_changed": " ".join(drift)} if drift else {})}
    remarks = {"notes": [*cache_notes, *window.notes, *drift], "flags": flags}
    return {name: redact_tree(content) for name, content in remarks.items() if content}


def run_secondary_event_loop(
    messages: Iterator[Message], worker: WorkerProcess, plan: Plan, instruments: WindowInstruments
) -> None:
    """Handle the messages of another node's ranks: its counters are read when the first node's are."""
    for message in messages:
        match message:
            case protocol.Built():
                plan.describe(training=message.training)
                check_metered(plan, instruments.meter)
                instruments.gpu_monitor.own_pids.update(worker.pids)
                worker.reply()
            case protocol.WindowOpening():
                if message.window == "epoch":
                    instruments.data_source.prepare(message.epoch)
                before = instruments.read_start()
                worker.reply()
            case protocol.WindowClosed():
                worker.reply(node_window(plan.node.name, message, before, instruments.read_end(), instruments))
            case protocol.Trained():
                worker.reply()
                return
            case _:
                worker.reply()


def finish_trace(messages: Iterator[Message], plan: Plan, meter: Meter) -> list[str]:
    """Record the power of the profiler's trace; return why there is no trace, which does not fail the run."""
    notes = []
    try:
        for message in messages:
            match message:
                case protocol.TraceFailed():
                    notes.append(message.reason)
                case protocol.Traced():
                    plan.describe(traced=traced_power(message, plan, meter))
    except WorkerError as error:
        return [f"no trace: {error}"]
    return notes


def traced_power(traced: Traced, plan: Plan, meter: Meter) -> dict[str, object]:
    """Record the power samples of traced steps; return their times, uncertainty in J and sensor response, or a reason.

    The energy itself is computed by the analysis of the trace.
    """
    sampling = meter.sampling(traced.opened_ns, traced.closed_ns)
    powers = write_powers(meter, plan.record)
    reason = None
    if sampling is None or not powers.times_ns:
        reason = meter.energy["reason"] or "power is not sampled."
    elif meter.energy["source"] == "estimated":
        reason = "energy is estimated, not measured."
    elif (plan.ranks or 1) * plan.node.nodes > 1:
        reason = "several ranks train, and their modules run at different times."
    elif sampling.unavailable:
        reason = "; ".join(f"{domain}: {why}" for domain, why in sampling.unavailable.items())
    elif sampling.peak_w is None:
        reason = "the parts of the total are sampled at different times."
    if reason or not sampling:
        return {**traced._asdict(), "reason": reason}
    response = powers.response._asdict() if powers.response else None
    return {**traced._asdict(), "energy_uncertainty_j": sampling.half_width_j, "response": response}


def check_metered(plan: Plan, meter: Meter) -> None:
    """Raise RuntimeError if the metered GPUs are not those that train; a replayed machine is not checked."""
    training = plan.run["training"]
    if not (meter.domains and plan.gpus) or plan.job.machine.root != "/":
        return
    on_cpu = training["accelerator"] == "cpu"
    reported = [] if on_cpu else training.get("gpus_here") or training.get("gpus") or [training["gpu"].get("uuid")]
    trained = sorted({uuid for uuid in reported if uuid})  # empty with an old torch
    are_metered = all(any(gpus.matches_uuid(uuid, name) for name in plan.gpus) for uuid in trained)
    is_one_of_several = (
        bool(plan.job.measure.command) and plan.job.strategy.ranks != 1
    )  # `check_trained` has the others
    if on_cpu or (trained and not (are_metered and (len(trained) == len(plan.gpus) or is_one_of_several))):
        training_gpus = ",".join(f"GPU-{uuid}" for uuid in trained)
        raise RuntimeError(
            f"{training_gpus or 'the CPU'} trains, but {','.join(plan.gpus)} is metered\n"
            "  hint: select the GPUs that train with CUDA_VISIBLE_DEVICES and `strategy.ranks=`; if the CPU trains, "
            "set `device=cpu`, or `device.python=` to an interpreter whose torch finds the GPU"
        )


def resume_warmup(job: Job, run: Mapping[str, Any], window: Mapping[str, Any]) -> dict[str, bool]:
    """Return the mark of a warm-up epoch after a resumption; empty for any other window."""
    starts = [start["epoch"] for start in run.get("resumed", [])]
    is_warmup = bool(starts) and window["window"] == "epoch" and window["epoch"] - starts[-1] < job.warmup_epochs
    return {"warmup": True} if is_warmup else {}
