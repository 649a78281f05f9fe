"""Trains as configured and says, for every epoch, where the time went and what it cost in joules.

    python src/train.py device=nano model=lenet                  one run
    python src/train.py -m batch=8,16,32 power_limit=100,130     a sweep, one run after another
    python src/train.py -m experiment=stalls dataset=jpeg        where its stalls come from
    python src/train.py --cfg job device=nano model=torchvision  the job of that, with all its keys
    eval "$(python src/train.py -sc install=bash)"               tab completion

Exit code: 0 when every run is whole, 1 when one failed, 128 + n when signal n stopped it.
"""

import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from epochmeter.config import interpreter

if interpreter.lack():
    sys.exit(interpreter.lack())

from omegaconf import DictConfig

from epochmeter.config import app, errors, job
from epochmeter.config.secrets import redacted
from epochmeter.machine import signals
from epochmeter.run import nodes
from epochmeter.sweep import sweep_folder
from epochmeter.sweep.compose import device_of

if TYPE_CHECKING:
    from epochmeter.results.run_result import Outcome
    from epochmeter.sweep.progress import Course


def main() -> int:
    orders: list[job.Order] = []
    outcomes: list[Outcome] = []
    last_words: list[str] = []

    def task(config: DictConfig) -> None:
        # Imported late: --help, --cfg and the completion of a key answer at once.
        from epochmeter.cluster.collect import learned
        from epochmeter.console.console import Terminal
        from epochmeter.run import experiment
        from epochmeter.run.finish import close_dead
        from epochmeter.sweep.progress import Course

        try:
            order = job.order(config)
        except ValueError as error:
            sys.exit(errors.line(redacted(str(error))))
        if not orders:
            close_dead(order.folder.parents[1], Terminal().warn)
            # Hydra's own account of a sweep: the records tell the same, without what is a secret.
            (order.folder.parent / "multirun.yaml").unlink(missing_ok=True)
        orders.append(order)
        course = Course(sweep_folder.points(order.folder.parent), outcomes)
        run = learned if order.elsewhere else partial(experiment.run, course=course)
        outcome = run(order, Terminal())
        outcomes.append(outcome)
        if outcome.stop and not (outcome.state == "whole" and is_last(order, course)):
            raise outcome.stop
        ended = course.ending(order.job.sweep.max_failures)
        if ended:
            last_words.append(ended)
            sys.exit(1)

    signals.Stop().install()
    made = partial(sweep_folder.folder, job.ROOT / "multirun", datetime.now())
    job.register(nodes.folders(made, os.environ), device_of)
    try:
        app.run("train", task, __doc__)
        include_reused(orders, outcomes)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        sweep_folder.remove_empty()
        show(outcomes, last_words)
    if orders and all(outcome.earlier for outcome in outcomes):  # a run that is measured does so itself
        catch_up(orders[-1])
    return int(any(outcome.state != "whole" for outcome in outcomes))


def is_last(order: job.Order, course: "Course") -> bool:
    """Whether no run of the command is left to measure; always false in a search, whose number of runs is unknown."""
    return not order.of_sweep or (course.total > 0 and len(course.outcomes) >= course.total)


def include_reused(orders: "Sequence[job.Order]", outcomes: "Sequence[Outcome]") -> None:
    """Include reused runs in the sweep's view in MLflow."""
    reused = [outcome.folder for outcome in outcomes if outcome.reused and outcome.folder]
    if not reused:
        return
    from epochmeter.console.console import Terminal
    from epochmeter.tracking import publisher, views

    shown = publisher.include_all(reused, orders[-1].job.tracking.to_dict())
    if isinstance(shown, str):
        Terminal().warn(shown)
    elif shown:
        for outcome in outcomes:
            link = views.link(shown, reused[0].parent.name)
            outcome.compare_link = link if outcome.reused else outcome.compare_link


def catch_up(order: job.Order) -> None:
    """Shows what earlier runs have left untold, as where the last one was killed while it was shown."""
    from epochmeter.console.console import Terminal
    from epochmeter.tracking import publisher

    left = publisher.catch_up(order.folder.parents[1], order.job.tracking.to_dict())
    if left:
        Terminal().warn(left)


def show(outcomes: "list[Outcome]", last_words: "Sequence[str]" = ()) -> None:
    """The table of a sweep, what its runs tell beside each other, if that is what they were for, and why it ended."""
    if any(outcome.of_sweep for outcome in outcomes):
        from epochmeter.console.console import Terminal
        from epochmeter.report.tell import answer, tell, tell_pages

        terminal = Terminal()
        folders = {outcome.folder.parent for outcome in outcomes if outcome.folder}
        supplied = {outcome.folder.parent for outcome in outcomes if "supply" in outcome.keys and outcome.folder}
        recorded = [folder for folder in folders if any(folder.glob("*/*.json"))]
        answers = [line for folder in recorded for line in answer(folder, is_choice=folder not in supplied)]
        terminal.sweep(sorted(outcomes, key=lambda outcome: outcome.number), answers)
        for folder in folders:
            if folder in supplied:
                terminal.console.print()
                tell(folder, terminal.console)
            else:
                tell_pages(folder, terminal.console)
        for text in last_words:
            terminal.warn(text)


if __name__ == "__main__":
    code = main()
    signals.default()
    sys.exit(code)
