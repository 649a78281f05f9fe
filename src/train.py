"""Trains as configured and says, for every epoch, where the time went and what it cost in joules.

    python src/train.py device=nano model=lenet                  one run
    python src/train.py -m batch=8,16,32 power_limit=100,130     a sweep, one run after another
    python src/train.py -m experiment=stalls dataset=jpeg        where its stalls come from
    python src/train.py --cfg job device=nano model=torchvision  the job of that, with all its keys
    eval "$(python src/train.py -sc install=bash)"               tab completion

Exit code: 0 when every run is completed, 1 when one failed, 128 + n when signal n stopped it.
"""

import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from epochmeter.config import interpreter

if interpreter.missing_requirements():
    sys.exit(interpreter.missing_requirements())

from omegaconf import DictConfig

from epochmeter.config import app, errors, job
from epochmeter.config.secrets import redact
from epochmeter.machine import signals
from epochmeter.run import nodes
from epochmeter.sweep import sweep_folder
from epochmeter.sweep.compose import device_of

if TYPE_CHECKING:
    from epochmeter.results.run_result import RunResult
    from epochmeter.sweep.progress import SweepProgress


def main() -> int:
    orders: list[job.RunRequest] = []
    outcomes: list[RunResult] = []
    last_words: list[str] = []

    def task(config: DictConfig) -> None:
        # Imported late: --help, --cfg and the completion of a key answer at once.
        from epochmeter.cluster.collect import collect_result
        from epochmeter.console.console import Terminal
        from epochmeter.run import experiment
        from epochmeter.run.finish import close_orphans
        from epochmeter.sweep.progress import SweepProgress

        try:
            order = job.current_request(config)
        except ValueError as error:
            sys.exit(errors.format_error(redact(str(error))))
        if not orders:
            close_orphans(order.folder.parents[1], Terminal().warn)
            # Hydra's own account of a sweep: the records tell the same, without what is a secret.
            (order.folder.parent / "multirun.yaml").unlink(missing_ok=True)
        orders.append(order)
        course = SweepProgress(sweep_folder.read_points(order.folder.parent), outcomes)
        run = collect_result if order.remote else partial(experiment.run, course=course)
        outcome = run(order, Terminal())
        outcomes.append(outcome)
        if outcome.stop and not (outcome.state == "completed" and is_last(order, course)):
            raise outcome.stop
        ended = course.stop_reason(order.job.sweep.max_failures)
        if ended:
            last_words.append(ended)
            sys.exit(1)

    signals.Stop().install()
    made = partial(sweep_folder.open_sweep_folder, job.ROOT / "multirun", datetime.now())
    job.register(nodes.run_folder_factory(made, os.environ), device_of)
    try:
        app.run("train", task, __doc__)
        include_reused(orders, outcomes)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        sweep_folder.remove_empty()
        print_sweep(outcomes, last_words)
    if orders and all(outcome.earlier for outcome in outcomes):  # a run that is measured does so itself
        publish_pending(orders[-1])
    return int(any(outcome.state != "completed" for outcome in outcomes))


def is_last(order: job.RunRequest, course: "SweepProgress") -> bool:
    """Whether no run of the command is left to measure; always false in a search, whose number of runs is unknown."""
    return not order.of_sweep or (course.total > 0 and len(course.outcomes) >= course.total)


def include_reused(orders: "Sequence[job.RunRequest]", outcomes: "Sequence[RunResult]") -> None:
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
            link = views.results_link(shown, reused[0].parent.name)
            outcome.compare_link = link if outcome.reused else outcome.compare_link


def publish_pending(order: job.RunRequest) -> None:
    """Shows what earlier runs have left untold, as where the last one was killed while it was shown."""
    from epochmeter.console.console import Terminal
    from epochmeter.tracking import publisher

    left = publisher.publish_pending(order.folder.parents[1], order.job.tracking.to_dict())
    if left:
        Terminal().warn(left)


def print_sweep(outcomes: "list[RunResult]", last_words: "Sequence[str]" = ()) -> None:
    """The table of a sweep, what its runs tell beside each other, if that is what they were for, and why it ended."""
    if any(outcome.of_sweep for outcome in outcomes):
        from epochmeter.console.console import Terminal
        from epochmeter.report.tell import answer, tell, tell_pages

        terminal = Terminal()
        folders = {outcome.folder.parent for outcome in outcomes if outcome.folder}
        stall_sweeps = {
            outcome.folder.parent for outcome in outcomes if "data_source" in outcome.keys and outcome.folder
        }
        recorded = [folder for folder in folders if any(folder.glob("*/*.json"))]
        answers = [line for folder in recorded for line in answer(folder, is_choice=folder not in stall_sweeps)]
        terminal.sweep(sorted(outcomes, key=lambda outcome: outcome.number), answers)
        for folder in folders:
            if folder in stall_sweeps:
                terminal.console.print()
                tell(folder, terminal.console)
            else:
                tell_pages(folder, terminal.console)
        for text in last_words:
            terminal.warn(text)


if __name__ == "__main__":
    code = main()
    signals.restore_defaults()
    sys.exit(code)
