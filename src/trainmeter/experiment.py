"""The story of one run.

    compose and check the job -> (sweep) skip it if it is whole -> take the lock of the devices it uses
    -> make the dataset ready -> open the meter -> start the worker
    for each window the worker opens:
        prepare the page cache -> read every counter -> go -> ... -> read every counter -> record -> publish
    -> trace window -> summary -> release

Whatever ends it, `ending` tells how.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from trainmeter import launch
from trainmeter.datasets.ready import ready
from trainmeter.ending import concluded, unwritten
from trainmeter.job import ROOT, Order
from trainmeter.machine import lock, page_cache
from trainmeter.outcome import Outcome
from trainmeter.plan import Plan, settle, warnings, withdraw
from trainmeter.power.meter import Meter, open_meter, unmetered
from trainmeter.summary import reached
from trainmeter.terminal import Terminal
from trainmeter.tracking.publisher import Publisher, Unpublished, publisher
from trainmeter.window import border, line

FIRST_WAIT_S = 10.0
"""How long the first window waits for MLflow, which begins beside the worker; later ones wait a second at most."""


def run(order: Order, terminal: Terminal) -> Outcome:
    """One measured run, to whatever end; Ctrl-C and SIGTERM too are an outcome, which the caller raises again."""
    outcome = Outcome(order.number, order.overrides, order.of_sweep)
    try:
        plan = settle(order)
    except (ValueError, RuntimeError) as error:
        outcome.fails("job", str(error))
        withdraw(order)
        terminal.failed(outcome)
        return outcome
    outcome.rehearsal = plan.run["rehearsal"]
    if plan.of_sweep and plan.whole_already:
        outcome.earlier, outcome.metrics = True, plan.record.summary()["metrics"]
        outcome.no_energy = plan.record.run()["energy"]["reason"]
        return outcome
    terminal.begun(plan.run["name"], plan.record.folder, outcome.rehearsal, warnings(plan))
    job, machine = plan.job, plan.job["machine"]
    with lock.held(plan.devices, machine["lock_dir"], plan.holder, terminal.warn):
        try:
            plan.begin()
        except OSError as error:
            outcome.fails("exception", unwritten(error))
            terminal.failed(outcome)
            return outcome
        publish = publisher(plan.record, **job["tracking"])
        with concluded(plan, outcome, publish, terminal):
            plan.describe(dataset=ready(job["dataset"], job["storage"], ROOT, terminal.say))
            with closing(open_meter(job["meter"], gpus=plan.gpus, root=machine["root"])) as meter:
                plan.describe(energy=meter.energy)
                publish.start()
                with launch.started(plan.record.folder, job["device"]["python"]) as worker:
                    listen(worker, plan, meter, outcome, publish, terminal)
    return outcome


def listen(worker: launch.Worker, plan: Plan, meter: Meter, outcome: Outcome, publish: Publisher | Unpublished,
           terminal: Terminal) -> None:  # fmt: skip
    """Hears the worker to its end: reads the counters at each border, records each window, publishes between."""
    job = plan.job
    for message in worker.messages():
        match message["kind"]:
            case "built":
                plan.describe(model=message["model"], training=message["training"])
                publish.between(FIRST_WAIT_S)
                worker.answer()
            case "open":
                opened = message
                if opened["window"] == "epoch":
                    page_cache.prepare(job["cache"], Path(plan.run["dataset"]["folder"]), opened["epoch"])
                terminal.opened(opened["window"], opened["epoch"], job["epochs"], opened["steps"])
                before = border(meter)
                worker.answer()
            case "progress":
                terminal.progress(message["steps"])
            case "closed":
                after = border(meter)
                worker.answer()
            case "measured":
                window = line(opened, message, before, after, meter, plan.record)
                plan.record.append(window)
                outcome.notes += unmetered(before.joules, after.joules, meter)
                terminal.closed()
                publish.between()
                worker.answer(stop=ends(job, window))
            case "trained":
                worker.answer()
            case "note":
                outcome.notes.append(message["text"])


def ends(job: dict, window: dict) -> bool:
    """Whether a window ends the run: a target was set, and the window that decides it has reached it."""
    decides = window["window"] == ("val" if job["evaluate"] else "epoch")
    return decides and reached(window, job["target_accuracy"], job["target_loss"])
