"""The story of one run.

    compose and check the job -> (sweep) skip it if completed -> check the interpreter that trains
    -> take the lock of the devices it uses -> make the dataset ready on its storage -> let the devices rest
    -> hold the knobs -> open the meter and the gauges, measure idle power -> start the worker
    for each window the worker opens:
        prepare the page cache -> read every counter -> go -> ... -> read every counter -> record -> publish
    -> trace window -> idle power again -> put the knobs back -> summary -> release

Whatever ends it, `finish` tells how.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager

from epochmeter.config.job import ROOT, RunRequest
from epochmeter.config.secrets import redact_tree
from epochmeter.console.console import Terminal
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.machine import device_lock
from epochmeter.machine.gpu_processes import open_gpu_monitor
from epochmeter.machine.signals import prefer_stop
from epochmeter.machine.utilization import open_gauges
from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.power.knobs.requests import refuse_unrestored, restore_after_kill
from epochmeter.power.meter import Meter, open_meter
from epochmeter.power.window_energy import measure_idle
from epochmeter.results.reuse import write_reference
from epochmeter.results.run_result import RunResult
from epochmeter.results.throughput import check_length
from epochmeter.run import cooldown, launch
from epochmeter.run.data_source import open_data_source
from epochmeter.run.event_loop import run_event_loop, run_secondary_event_loop, trace_notes
from epochmeter.run.finish import finalizing
from epochmeter.run.nodes import forbid_multi_node_resume
from epochmeter.run.plan import Plan, open_restore_journal, plan_warnings, remove_empty_folders, resolve_plan
from epochmeter.run.window import WindowInstruments, write_powers
from epochmeter.run.worker_process import WorkerError, WorkerProcess
from epochmeter.shared.record import Record
from epochmeter.sweep.progress import SINGLE_RUN, SweepProgress
from epochmeter.tracking.publisher import make_tracker

BUSY_FRACTION = 0.1
"""Mean GPU load at idle, as a fraction, at which another process is assumed to use it; a desktop may cause less."""


def run(order: RunRequest, terminal: Terminal, course: SweepProgress = SINGLE_RUN) -> RunResult:
    """One measured run, to whatever end; Ctrl-C and SIGTERM too are an outcome, which the caller raises again.

    `course` is that of the sweep it is one of.
    """
    outcome = RunResult(order.number, order.overrides, order.of_sweep, order.folder, began_s=time.monotonic())
    try:
        with prefer_stop():
            terminal.stage("Checking the machine and the dataset")
            unrestored = restore_after_kill(open_restore_journal(order), terminal.warn)
            plan = resolve_plan(order)
            terminal.stage()
            if (plan.of_sweep or plan.job.sweep.resume) and plan.is_already_completed:
                forbid_multi_node_resume(plan.node, plan.record.folder)
                terminal.was_completed(plan.record.folder, plan.of_sweep)
                return outcome.was_completed(plan.record)
            name, forecast = course.label(order.number) or plan.run["name"], course.forecast(order.number)
            if completed := plan.completed_elsewhere:
                return record_reuse(completed, outcome, name, terminal)
            launch.check_interpreter(plan.job.device.python)
            outcome.rehearsal = plan.run["rehearsal"]
            terminal.run_started(name, plan.record.folder, outcome.rehearsal, plan_warnings(plan), forecast)
            with device_lock.lock_devices(plan.devices, plan.job.machine.lock_dir, plan.holder, terminal.warn):
                # Again: a run that held the device until now may have been killed.
                unrestored = restore_after_kill(plan.journal, terminal.warn, unrestored)
                refuse_unrestored([knob for knob, _ in plan.targets.values()], plan.journal)
                outcome.notes += [
                    f"{each.knob} could not be restored to its original {each.was}." for each in unrestored
                ]
                terminal.stage("Recording the state of the machine")
                outcome.notes += plan.open_record()
                terminal.stage()
                (run_first_node if plan.node.is_first else run_other_node)(plan, outcome, terminal, course)
                outcome.ended_s = time.monotonic()
    except (ValueError, RuntimeError, OSError) as error:
        terminal.stage()
        outcome.set_failed("job", str(error))
        terminal.refused(outcome)
    except (KeyboardInterrupt, SystemExit) as stop:
        terminal.stage()
        outcome.set_stopped(stop)
        terminal.failed(outcome)
    remove_empty_folders(order)
    return outcome


def record_reuse(record: Record, outcome: RunResult, name: str, terminal: Terminal) -> RunResult:
    """Write a reference to a completed run into the run's folder, and return its outcome."""
    assert outcome.folder
    write_reference(outcome.folder, record, redact_tree(outcome.overrides))
    outcome.reused = record.folder
    terminal.reused(name, record)
    return outcome.was_completed(record)


def run_first_node(plan: Plan, outcome: RunResult, terminal: Terminal, course: SweepProgress) -> None:
    """Run on the first node: its record is open and its devices are locked. Whatever ends it is set in the outcome."""
    job = plan.job
    publish = make_tracker(plan.record, **job.tracking.to_dict())
    with finalizing(plan, outcome, publish, terminal):
        outcome.notes += publish.wait_for_previous(terminal.info)
        prepare(plan, outcome, terminal, course)
        with (
            AppliedSettings(list(plan.targets.values()), plan.journal, terminal.warn) as holding,
            open_instruments(plan, terminal) as panel,
        ):
            plan.applied(holding.applied)
            terminal.applied(plan.run["applied"])
            plan.describe(energy=panel.meter.energy, storage=panel.data_source.metadata)
            idle_from_ns = time.monotonic_ns()
            before_w = measure_idle_w(panel.meter, job.meter.idle_s, outcome, terminal)
            plan.describe(idle={"before_w": before_w})
            check_idle(plan, panel, idle_from_ns, outcome, terminal)
            publish.start()
            terminal.stage("Starting the training process")
            with start_training(plan) as worker:
                messages = worker.messages()
                run_event_loop(
                    messages, worker, plan, panel._replace(idle_w=before_w), holding, outcome, publish, terminal
                )
                outcome.notes += trace_notes(messages)
            terminal.stage()
            after_w = measure_idle_w(panel.meter, job.meter.idle_s, outcome, terminal)
            plan.describe(idle={"before_w": before_w, "after_w": after_w})
            write_powers(panel.meter, plan.record)


def run_other_node(plan: Plan, outcome: RunResult, terminal: Terminal, course: SweepProgress) -> None:
    """Run on another node: train and measure; the first node's controller gets the energy of each window."""
    job = plan.job
    try:
        prepare(plan, outcome, terminal, course)
        with (
            AppliedSettings(list(plan.targets.values()), plan.journal, terminal.warn) as holding,
            open_instruments(plan, terminal) as panel,
        ):
            plan.applied(holding.applied)
            panel = panel._replace(idle_w=measure_idle_w(panel.meter, job.meter.idle_s, outcome, terminal))
            with start_training(plan) as worker:
                messages = worker.messages()
                run_secondary_event_loop(messages, worker, plan, panel)
                trace_notes(messages)
    except WorkerError as error:
        outcome.set_failed(error.failure, str(error))
        terminal.failed(outcome)
    else:
        shutil.rmtree(plan.record.folder.parent, ignore_errors=True)


def prepare(plan: Plan, outcome: RunResult, terminal: Terminal, course: SweepProgress) -> None:
    """Prepare the dataset, check the run's length, and let the device cool down.

    Raises:
        RuntimeError: The dataset cannot be prepared.
        ValueError: The dataset is too short for the run.
    """
    job = plan.job
    terminal.stage(f"Checking dataset {job.dataset.name}")
    plan.describe(dataset=prepare_dataset(job.dataset, job.storage, ROOT, terminal.info))
    terminal.stage()
    check_length(job, plan.run["dataset"]["splits"]["train"], (plan.ranks or 1) * plan.node.nodes)
    cool_down(plan, outcome, terminal, course)
    terminal.stage("Preparing the device and its meter")


def start_training(plan: Plan) -> AbstractContextManager[WorkerProcess]:
    """Start the training process, or this node's ranks of it."""
    job, limits = plan.job, plan.job.sweep
    # Only the first rank reports progress, so the other nodes' ranks are silent while a window is open.
    limits_s = limits.timeout_s, limits.hung_after_s if plan.node.is_first else None
    return launch.launched(plan.record.folder, job.device.python, plan.gpus, plan.ranks, plan.node, *limits_s)


def cool_down(plan: Plan, outcome: RunResult, terminal: Terminal, course: SweepProgress) -> None:
    """Wait until the device has cooled down as the sweep requests, and record how long that took."""
    limits = plan.job.sweep
    if not cooldown.is_requested(limits):
        return
    with closing(open_gauges(gpus=plan.gpus, root=plan.job.machine.root)) as gauges:
        rested = cooldown.wait_until_cool(limits, course.last_run_ended_s, gauges, terminal.info)
    plan.describe(rest=rested.metadata)
    outcome.notes += rested.notes


@contextmanager
def open_instruments(plan: Plan, terminal: Terminal) -> Iterator[WindowInstruments]:
    """Open the meter, gauges and data source of the devices that the plan uses."""
    root = plan.job.machine.root
    with (
        closing(open_meter(plan.job.meter.to_dict(), gpus=plan.gpus, root=root)) as meter,
        closing(open_gauges(gpus=plan.gpus, root=root)) as gauges,
        closing(open_gpu_monitor(plan.gpus)) as gpu_monitor,
    ):
        data_source = open_data_source(plan.job, plan.run["dataset"]["folder"], terminal.info)
        yield WindowInstruments(meter, gauges, data_source, gpu_monitor=gpu_monitor)


def measure_idle_w(meter: Meter, seconds: float, outcome: RunResult, terminal: Terminal) -> float | None:
    """Return the mean power while nothing trains, in watts; None if it is not measured."""
    terminal.stage()
    if meter.energy["source"] in ("counter", "sampled") and seconds > 0:
        terminal.info(f"Measuring idle power for {seconds:g} s.", style="dim")
    used = measure_idle(meter, seconds)
    outcome.notes += [f"idle power: {note}" for note in used.notes]
    return used.metrics.get("power_mean_w")


def check_idle(plan: Plan, panel: WindowInstruments, since_ns: int, outcome: RunResult, terminal: Terminal) -> None:
    """Warn if another process uses the GPU before training begins.

    Either the driver lists the process, or the GPU was busy while idle power was measured. On Jetsons and AMD GPUs only
    the latter is available.
    """
    if not any(device.startswith("gpu") for device in plan.devices):
        return
    panel.gpu_monitor.poll()
    found = panel.gpu_monitor.drain()
    load = panel.gauges.window(since_ns, time.monotonic_ns()).get("gpu_utilization", 0.0)
    if not found and load >= BUSY_FRACTION:
        found = [f"another process uses the GPU: the GPU was {load:.0%} busy before training began"]
        terminal.warn(f"warning: {found[0]}\n  hint: end that process; it affects the times and energy of this run")
    plan.set_flags({"gpu_shared": "; ".join(found)})
    outcome.notes += [f"{text}." for text in found]
