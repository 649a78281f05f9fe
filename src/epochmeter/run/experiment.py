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

from epochmeter.config.job import ROOT, Order
from epochmeter.config.secrets import redacted_tree
from epochmeter.console.console import Terminal
from epochmeter.datasets.ready import ready
from epochmeter.machine import device_lock
from epochmeter.machine.gpu_processes import open_gpu_monitor
from epochmeter.machine.signals import foremost
from epochmeter.machine.utilization import open_gauges
from epochmeter.power.knobs.knob import held
from epochmeter.power.knobs.requests import put_back, refuse_unrestored
from epochmeter.power.meter import Meter, open_meter
from epochmeter.power.window_energy import rest
from epochmeter.results.reuse import write_reference
from epochmeter.results.run_result import Outcome
from epochmeter.results.throughput import check_length
from epochmeter.run import cooldown, launch
from epochmeter.run.data_source import supply_of
from epochmeter.run.event_loop import follow, listen, trace_notes
from epochmeter.run.finish import concluded
from epochmeter.run.nodes import check_alone
from epochmeter.run.plan import Plan, desk_of, settle, warnings, withdraw
from epochmeter.run.window import Panel, keep_powers
from epochmeter.run.worker_process import WorkerError, WorkerProcess
from epochmeter.shared.record import Record
from epochmeter.sweep.progress import ALONE, Course
from epochmeter.tracking.publisher import publisher

BUSY = 0.1
"""Mean GPU load at idle, as a fraction, at which another process is assumed to use it; a desktop may cause less."""


def run(order: Order, terminal: Terminal, course: Course = ALONE) -> Outcome:
    """One measured run, to whatever end; Ctrl-C and SIGTERM too are an outcome, which the caller raises again.

    `course` is that of the sweep it is one of.
    """
    outcome = Outcome(order.number, order.overrides, order.of_sweep, order.folder, began_s=time.monotonic())
    try:
        with foremost():
            terminal.stage("Checking the machine and the dataset")
            unrestored = put_back(desk_of(order), terminal.warn)
            plan = settle(order)
            terminal.stage()
            if (plan.of_sweep or plan.job.sweep.resume) and plan.whole_already:
                check_alone(plan.node, plan.record.folder)
                terminal.was_whole(plan.record.folder, plan.of_sweep)
                return outcome.was_whole(plan.record)
            name, forecast = course.place(order.number) or plan.run["name"], course.forecast(order.number)
            if completed := plan.completed_elsewhere:
                return reused(completed, outcome, name, terminal)
            launch.check_interpreter(plan.job.device.python)
            outcome.rehearsal = plan.run["rehearsal"]
            terminal.begun(name, plan.record.folder, outcome.rehearsal, warnings(plan), forecast)
            with device_lock.held(plan.devices, plan.job.machine.lock_dir, plan.holder, terminal.warn):
                # Again: a run that held the device until now may have been killed.
                unrestored = put_back(plan.desk, terminal.warn, unrestored)
                refuse_unrestored([knob for knob, _ in plan.turns.values()], plan.desk)
                outcome.notes += [
                    f"{each.knob} could not be restored to its original {each.was}." for each in unrestored
                ]
                terminal.stage("Recording the state of the machine")
                outcome.notes += plan.begin()
                terminal.stage()
                (measure if plan.node.is_first else assist)(plan, outcome, terminal, course)
                outcome.ended_s = time.monotonic()
    except (ValueError, RuntimeError, OSError) as error:
        terminal.stage()
        outcome.fails("job", str(error))
        terminal.refused(outcome)
    except (KeyboardInterrupt, SystemExit) as stop:
        terminal.stage()
        outcome.stops(stop)
        terminal.failed(outcome)
    withdraw(order)
    return outcome


def reused(record: Record, outcome: Outcome, name: str, terminal: Terminal) -> Outcome:
    """Write a reference to a completed run into the run's folder, and return its outcome."""
    assert outcome.folder
    write_reference(outcome.folder, record, redacted_tree(outcome.overrides))
    outcome.reused = record.folder
    terminal.reused(name, record)
    return outcome.was_whole(record)


def measure(plan: Plan, outcome: Outcome, terminal: Terminal, course: Course) -> None:
    """The run itself, its record begun and its devices held; whatever ends it is the outcome."""
    job = plan.job
    publish = publisher(plan.record, **job.tracking.to_dict())
    with concluded(plan, outcome, publish, terminal):
        outcome.notes += publish.settle(terminal.say)
        terminal.stage(f"Checking dataset {job.dataset.name}")
        plan.describe(dataset=ready(job.dataset.to_dict(), job.storage.to_dict(), ROOT, terminal.say))
        terminal.stage()
        check_length(job, plan.run["dataset"]["splits"]["train"], (plan.ranks or 1) * plan.node.nodes)
        cool(plan, outcome, terminal, course)
        terminal.stage("Preparing the device and its meter")
        with held(list(plan.turns.values()), plan.desk, terminal.warn) as holding, watched(plan, terminal) as panel:
            plan.applied(holding.applied)
            terminal.applied(plan.run["applied"])
            plan.describe(energy=panel.meter.energy, storage=panel.supply.facts)
            idle_from_ns = time.monotonic_ns()
            before_w = idle_w(panel.meter, job.meter.idle_s, outcome, terminal)
            plan.describe(idle={"before_w": before_w})
            check_idle(plan, panel, idle_from_ns, outcome, terminal)
            publish.start()
            terminal.stage("Starting the training process")
            with training(plan) as worker:
                messages = worker.messages()
                listen(messages, worker, plan, panel._replace(idle_w=before_w), holding, outcome, publish, terminal)
                outcome.notes += trace_notes(messages)
            terminal.stage()
            after_w = idle_w(panel.meter, job.meter.idle_s, outcome, terminal)
            plan.describe(idle={"before_w": before_w, "after_w": after_w})
            keep_powers(panel.meter, plan.record)


def assist(plan: Plan, outcome: Outcome, terminal: Terminal, course: Course) -> None:
    """The part of a node that is not the first: it trains and meters, and tells the first what that was."""
    job = plan.job
    try:
        terminal.stage(f"Checking dataset {job.dataset.name}")
        plan.describe(dataset=ready(job.dataset.to_dict(), job.storage.to_dict(), ROOT, terminal.say))
        terminal.stage()
        check_length(job, plan.run["dataset"]["splits"]["train"], (plan.ranks or 1) * plan.node.nodes)
        cool(plan, outcome, terminal, course)
        terminal.stage("Preparing the device and its meter")
        with held(list(plan.turns.values()), plan.desk, terminal.warn) as holding, watched(plan, terminal) as panel:
            plan.applied(holding.applied)
            panel = panel._replace(idle_w=idle_w(panel.meter, job.meter.idle_s, outcome, terminal))
            with training(plan) as worker:
                messages = worker.messages()
                follow(messages, worker, plan, panel)
                trace_notes(messages)
    except WorkerError as error:
        outcome.fails(error.failure, str(error))
        terminal.failed(outcome)
    else:
        shutil.rmtree(plan.record.folder.parent, ignore_errors=True)


def training(plan: Plan) -> AbstractContextManager[WorkerProcess]:
    """The worker, or this node's ranks of it."""
    job, limits = plan.job, plan.job.sweep
    # The first rank alone tells of its steps: another node's ranks have nothing to say while a window is open.
    limits_s = limits.timeout_s, limits.hung_after_s if plan.node.is_first else None
    return launch.started(plan.record.folder, job.device.python, plan.gpus, plan.ranks, plan.node, *limits_s)


def cool(plan: Plan, outcome: Outcome, terminal: Terminal, course: Course) -> None:
    """Lets the device rest before a run as long as its sweep asks; what that was stands in the record."""
    asked = plan.job.sweep
    if not cooldown.is_asked(asked):
        return
    with closing(open_gauges(gpus=plan.gpus, root=plan.job.machine.root)) as gauges:
        rested = cooldown.rest(asked, course.rests_since_s, gauges, terminal.say)
    plan.describe(rest=rested.facts)
    outcome.notes += rested.notes


@contextmanager
def watched(plan: Plan, terminal: Terminal) -> Iterator[Panel]:
    """What is read at the borders of windows, opened on the devices that the plan uses."""
    root = plan.job.machine.root
    with (
        closing(open_meter(plan.job.meter.to_dict(), gpus=plan.gpus, root=root)) as meter,
        closing(open_gauges(gpus=plan.gpus, root=root)) as gauges,
        closing(open_gpu_monitor(plan.gpus)) as gpu_monitor,
    ):
        supply = supply_of(plan.job, plan.run["dataset"]["folder"], terminal.say)
        yield Panel(meter, gauges, supply, gpu_monitor=gpu_monitor)


def idle_w(meter: Meter, seconds: float, outcome: Outcome, terminal: Terminal) -> float | None:
    """The power while nothing trains; None where it is not measured."""
    terminal.stage()
    if meter.energy["source"] in ("counter", "sampled") and seconds > 0:
        terminal.say(f"Measuring idle power for {seconds:g} s.", style="dim")
    used = rest(meter, seconds)
    outcome.notes += [f"idle power: {note}" for note in used.notes]
    return used.metrics.get("power_mean_w")


def check_idle(plan: Plan, panel: Panel, since_ns: int, outcome: Outcome, terminal: Terminal) -> None:
    """Warn if another process uses the GPU before training begins.

    Either the driver lists the process, or the GPU was busy while idle power was measured. On Jetsons and AMD GPUs only
    the latter is available.
    """
    if not any(device.startswith("gpu") for device in plan.devices):
        return
    panel.gpu_monitor.poll()
    found = panel.gpu_monitor.drain()
    load = panel.gauges.window(since_ns, time.monotonic_ns()).get("gpu_utilization", 0.0)
    if not found and load >= BUSY:
        found = [f"another process uses the GPU: the GPU was {load:.0%} busy before training began"]
        terminal.warn(f"warning: {found[0]}\n  hint: end that process; it affects the times and energy of this run")
    plan.mark({"gpu_shared": "; ".join(found)})
    outcome.notes += [f"{text}." for text in found]
