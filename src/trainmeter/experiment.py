"""The story of one run.

compose and check the job -> (sweep) skip it if it is whole -> take the lock of the devices it uses
-> make the dataset ready -> open the meter -> start the worker
for each window the worker opens:
    prepare the page cache -> read every counter -> go -> ... -> read every counter -> record -> publish
-> trace window -> summary -> release
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trainmeter import launch, plan
from trainmeter.datasets.ready import ready
from trainmeter.job import ROOT, Order
from trainmeter.machine import lock, page_cache
from trainmeter.plan import Plan
from trainmeter.power.meter import Meter, open_meter, unmetered
from trainmeter.summary import reached, summarize
from trainmeter.terminal import Terminal
from trainmeter.tracking import views
from trainmeter.tracking.publish import Published
from trainmeter.tracking.publisher import Publisher, Unpublished, publisher
from trainmeter.window import border, line

FIRST_WAIT_S = 10.0
"""How long the first window waits for MLflow, which begins beside the worker; later ones wait a second at most."""


@dataclass
class Outcome:
    """How a run ended: whole, failed or killed; `earlier` where it was whole before this command."""

    number: int
    overrides: list[str]
    of_sweep: bool = False
    state: str = "whole"
    kind: str | None = None
    failure: str | None = None
    earlier: bool = False
    rehearsal: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    no_energy: str | None = None
    run_link: str | None = None
    compare_link: str | None = None
    unpublished: str | None = None
    stop: BaseException | None = None
    """What stopped it, for the caller to raise once it has told of this run."""

    def fails(self, kind: str, why: str) -> None:
        self.state, self.kind, self.failure = "killed" if kind == "stopped" else "failed", kind, why


def run(order: Order, terminal: Terminal) -> Outcome:
    """One measured run, to whatever end; Ctrl-C and SIGTERM too are an outcome, which the caller raises again."""
    outcome = Outcome(order.number, order.overrides, order.of_sweep)
    try:
        the = plan.settle(order)
    except (ValueError, RuntimeError) as error:
        outcome.fails("job", str(error))
        plan.withdraw(order)
        terminal.failed(outcome)
        return outcome
    outcome.rehearsal = the.run["rehearsal"]
    if the.of_sweep and the.whole_already:
        outcome.earlier, outcome.metrics = True, the.record.summary()["metrics"]
        outcome.no_energy = the.record.run()["energy"]["reason"]
        return outcome
    terminal.begun(the.run["name"], the.record.folder, outcome.rehearsal, plan.warnings(the))
    device = the.job["device"]
    machine = the.job["machine"]
    with lock.held(the.devices, machine["lock_dir"], the.holder, terminal.warn):
        try:
            the.begin()
        except OSError as error:
            outcome.fails("exception", unwritten(error))
            terminal.failed(outcome)
            return outcome
        publish = publisher(the.record, **the.job["tracking"])
        with concluded(the, outcome, publish, terminal):
            the.describe(dataset=ready(the.job["dataset"], the.job["storage"], ROOT, terminal.say))
            with closing(open_meter(the.job["meter"], gpus=the.gpus, root=machine["root"])) as meter:
                the.describe(energy=meter.energy)
                publish.start()
                with launch.started(the.record.folder, device["python"]) as worker:
                    listen(worker, the, meter, outcome, publish, terminal)
    return outcome


def listen(worker: launch.Worker, the: Plan, meter: Meter, outcome: Outcome, publish: Publisher | Unpublished,
           terminal: Terminal) -> None:  # fmt: skip
    """Hears the worker to its end: reads the counters at each border, records each window, publishes between."""
    job = the.job
    for message in worker.messages():
        match message["kind"]:
            case "built":
                the.describe(model=message["model"], training=message["training"])
                publish.between(FIRST_WAIT_S)
                worker.answer()
            case "open":
                opened = message
                if opened["window"] == "epoch":
                    page_cache.prepare(job["cache"], Path(the.run["dataset"]["folder"]), opened["epoch"])
                terminal.opened(opened["window"], opened["epoch"], job["epochs"], opened["steps"])
                before = border(meter)
                worker.answer()
            case "progress":
                terminal.progress(message["steps"])
            case "closed":
                after = border(meter)
                worker.answer()
            case "measured":
                window = line(opened, message, before, after, meter, the.record)
                the.record.append(window)
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


@contextmanager
def concluded(the: Plan, outcome: Outcome, publish: Publisher | Unpublished, terminal: Terminal) -> Iterator[None]:
    """Whatever ends the run, its record, MLflow and the terminal tell how."""
    try:
        yield
    except launch.WorkerError as error:
        outcome.fails(error.failure, str(error))
    except (ValueError, RuntimeError, OSError) as error:
        outcome.fails("exception", str(error))
    except Exception as error:
        # An error of ours rather than of the job or the machine: the next run of a sweep is still worth having.
        traceback.print_exc()
        outcome.fails("exception", f"{type(error).__name__}: {error}")
    except BaseException as stop:
        outcome.fails("stopped", "stopped by Ctrl-C" if isinstance(stop, KeyboardInterrupt) else "stopped by a signal")
        outcome.stop = stop
    finally:
        terminal.closed()
        conclude(the, outcome)
        shown(publish.close(), outcome)
        terminal.concluded(the.record.windows(), the.job["warmup_epochs"], outcome, the.of_sweep)


def conclude(the: Plan, outcome: Outcome) -> None:
    """Writes the summary; a storage that takes no more fails the run, and loses nothing that it has."""
    record = the.record
    windows = record.windows()
    outcome.notes = list(dict.fromkeys(outcome.notes))
    if windows:
        outcome.metrics = summarize(windows, record.steps(), the.job)
        outcome.no_energy = the.run["energy"]["reason"]
    outcome.metrics.update({f"model/{name}": value for name, value in the.run.get("model", {}).items()})
    failure = {"kind": outcome.kind, "message": outcome.failure} if outcome.failure else None
    summary = {"state": outcome.state, "metrics": outcome.metrics, "notes": outcome.notes, "failure": failure}
    try:
        record.conclude(summary, the.run["identity"])
    except OSError as error:
        outcome.fails("exception", unwritten(error))


def unwritten(error: OSError) -> str:
    return f"the record cannot be written: {error}. Make room or give the right to, and run it again."


def shown(published: Published | str | None, outcome: Outcome) -> None:
    """Notes where the run is shown: its page, and the view that compares it; or why it is not, if it should be."""
    if isinstance(published, str):
        outcome.unpublished = published
    elif published:
        outcome.run_link, outcome.compare_link = views.run_link(published), views.link(published)
