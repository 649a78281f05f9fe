"""The controller's loop over the training process's messages: it reads the counters at the borders of windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epochmeter.config.schema import Job
from epochmeter.config.secrets import redact_tree
from epochmeter.console.console import Terminal
from epochmeter.machine import gpus
from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.power.meter import Meter
from epochmeter.results.run_result import RunResult
from epochmeter.results.summary import is_decisive, reaches_target
from epochmeter.run.plan import Plan
from epochmeter.run.window import Window, WindowInstruments, build_window, node_window
from epochmeter.run.worker_process import RunMessage, WorkerError, WorkerProcess
from epochmeter.shared.protocol import (
    Built,
    Proceed,
    Progress,
    TraceFailed,
    Trained,
    WindowClosed,
    WindowMeasured,
    WindowOpening,
)  # fmt: skip
from epochmeter.tracking.publisher import Tracker

FIRST_WAIT_S = 10.0
"""How long the first window waits for MLflow, once that is imported; later ones wait a second at most."""


def run_event_loop(
    messages: Iterator[RunMessage], worker: WorkerProcess, plan: Plan, panel: WindowInstruments,
    holding: AppliedSettings, outcome: RunResult, publish: Tracker, terminal: Terminal,
) -> None:  # fmt: skip
    """Handle messages until training has ended: read the counters at each border, record and publish in between."""
    job = plan.job
    for message in messages:
        match message:
            case Built():
                plan.describe(model=message.model, training=message.training)
                outcome.notes += message.notes
                check_metered(plan, panel.meter)
                panel.gpu_monitor.own_pids.update(worker.pids)
                terminal.stage("Waiting for MLflow")
                publish.flush(FIRST_WAIT_S)
                terminal.stage("Loading samples")
                worker.reply()
            case WindowOpening():
                opened = message
                terminal.stage("Preparing the page cache")
                prepared = panel.data_source.prepare(opened.epoch) if opened.window == "epoch" else []
                terminal.window_opened(opened.window, opened.epoch, job.epochs, opened.steps)
                before = panel.read_start()
                worker.reply()
            case Progress():
                terminal.progress(message.steps, message.loss)
            case WindowClosed():
                after = panel.read_end()
                worker.reply()
            case WindowMeasured():
                window = build_window(opened, message, before, after, panel, plan.record)
                said = notes_and_flags(window, prepared, holding.drift_messages())
                plan.record.append({**window.line, **resume_warmup(job, plan.run, window.line), **said})
                plan.set_flags(said.get("flags", {}))
                terminal.window_closed()
                terminal.window_measured(window.line, job.epochs)
                publish.flush()
                worker.reply(Proceed(stop=target_reached(job, window.line)))
            case Trained():
                terminal.stage("Saving results and recording the profiler's trace")
                worker.reply()
                return


def notes_and_flags(window: Window, prepared: Sequence[str], drifted: Sequence[str]) -> dict[str, Any]:
    """What the line of a window holds beside what was measured: what there is to say of it, as it was prepared and as
    its knobs were found after it, and the flags of its run; nothing where that is nothing.

    The line is what keeps it: of a run that goes on, or is closed by another process, nobody else knows.
    """
    notes = [*prepared, *window.notes, *drifted]
    flags = {**window.flags, **({"knob_changed": " ".join(drifted)} if drifted else {})}
    return {key: redact_tree(each) for key, each in {"notes": notes, "flags": flags}.items() if each}


def run_secondary_event_loop(
    messages: Iterator[RunMessage], worker: WorkerProcess, plan: Plan, panel: WindowInstruments
) -> None:
    """Hears this node's ranks until they have trained: its counters are read when the first node's are."""
    for message in messages:
        match message:
            case Built():
                plan.describe(training=message.training)
                check_metered(plan, panel.meter)
                panel.gpu_monitor.own_pids.update(worker.pids)
                worker.reply()
            case WindowOpening():
                if message.window == "epoch":
                    panel.data_source.prepare(message.epoch)
                before = panel.read_start()
                worker.reply()
            case WindowClosed():
                worker.reply(node_window(plan.node.name, message, before, panel.read_end(), panel))
            case Trained():
                worker.reply()
                return
            case _:
                worker.reply()


def trace_notes(messages: Iterator[RunMessage]) -> list[str]:
    """Return why there is no profiler trace. Everything is measured by now, so that no failure fails the run."""
    try:
        return [message.reason for message in messages if isinstance(message, TraceFailed)]
    except WorkerError as error:
        return [f"no trace: {error}"]


def check_metered(plan: Plan, meter: Meter) -> None:
    """Refuses to book a GPU's energy for a training that is not on that GPU; RuntimeError.

    A machine that is replayed trains nothing itself.
    """
    training = plan.run["training"]
    if not (meter.domains and plan.gpus) or plan.job.machine.root != "/":
        return
    if training["accelerator"] == "cpu":
        raise RuntimeError(
            f"the CPU trains, but {plan.gpus[0]} is metered: torch {training['torch']} finds no GPU\n"
            "  hint: set `device.python=` to an interpreter whose torch finds it, or set `device=cpu`"
        )
    told = training.get("gpus_here") or training.get("gpus") or [training["gpu"].get("uuid")]
    trained = {uuid for uuid in told if uuid}  # an old torch tells none
    strangers = [uuid for uuid in trained if not any(gpus.matches_uuid(uuid, name) for name in plan.gpus)]
    if strangers:
        names = ",".join(f"GPU-{uuid}" for uuid in sorted(trained))
        metered = ", ".join(plan.gpus)
        hint = f"select the GPUs that train: CUDA_VISIBLE_DEVICES={names}"
        raise RuntimeError(f"{strangers[0]} trains, but {metered} is metered\n  hint: {hint}")
    if trained and len(trained) < len(plan.gpus):
        raise RuntimeError(
            f"{len(plan.gpus)} GPUs are metered, but {len(trained)} of them train\n"
            f"  hint: set `strategy.ranks={len(trained)}`"
        )


def resume_warmup(job: Job, run: Mapping[str, Any], window: dict[str, Any]) -> dict[str, bool]:
    """The mark of an epoch of a run that was resumed shortly before: it is warm-up as a first one is."""
    starts = [start["epoch"] for start in run.get("resumed", [])]
    warm = bool(starts) and window["window"] == "epoch" and window["epoch"] - starts[-1] < job.warmup_epochs
    return {"warmup": True} if warm else {}


def target_reached(job: Job, window: dict[str, Any]) -> bool:
    """Whether a window ends the run: a target was set, and the window that decides it has reached it."""
    return is_decisive(window, job.evaluate) and reaches_target(window, job.target_accuracy, job.target_loss)
