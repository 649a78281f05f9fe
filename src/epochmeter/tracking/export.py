"""The process of an exporter: `python -m epochmeter.tracking.export export NAME FOLDER`, or `... check NAME`.

It reads orders from stdin, one JSON document per line, and answers the last one on stdout. All that a tracker's client
does, such as waiting for its server, printing, or handling the end of its process, happens here.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.installation import package_command
from epochmeter.config.secrets import redact, redact_tree
from epochmeter.machine.platforms import lower_priority
from epochmeter.results.appended_file import WindowLog
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_status import COMPLETED
from epochmeter.shared.lifetime import die_with_parent
from epochmeter.shared.problem import Problem, ProblemError, problem_of
from epochmeter.shared.record import before_checkpoint
from epochmeter.tracking.exporter import TARGETS, Exporter, exported_run
from epochmeter.tracking.reasons import error_reason
from epochmeter.tracking.run_export import publishable

NICENESS = 10  # the process works while the run is measured


class Client(NamedTuple):
    """A tracker's package, and the version with which its exporter was tested."""

    package: str
    tested: str


CLIENTS = {
    "wandb": Client("wandb", "0.31.0"),
    "trackio": Client("trackio", "0.43.0"),
    "comet": Client("comet_ml", "3.58.8"),
}


def main(arguments: list[str]) -> None:
    """Do what the arguments say, and end without the handlers that clients have registered for the end."""
    die_with_parent()
    lower_priority(NICENESS)
    task, name, *folders = arguments
    with open(os.dup(1), "w") as answer:
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            exporter = load_exporter(name)
            document = export(exporter, Path(*folders), sys.stdin) if task == "export" else check(exporter, name)
        except Exception as error:  # whatever a client or a user's class raises
            document = {"problem": redact_tree(_problem(error).to_fields())}
        json.dump(document, answer)
    os._exit(0)


def load_exporter(name: str) -> Exporter:
    """Return an exporter by its name in `tracking.also`; ProblemError if its class cannot be used."""
    module, _, attribute = TARGETS.get(name, name).partition(":")
    try:
        exporter: Exporter = getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        hint = "its package must be installed, or on PYTHONPATH"
        raise ProblemError(Problem(f"cannot create `tracking.also={name}`: {error_reason(error)}", hint)) from error
    return exporter


def check(exporter: Exporter, name: str) -> dict[str, object]:
    """Let an exporter check whether it can export; ProblemError if it cannot."""
    client = CLIENTS.get(name)
    try:
        if hasattr(exporter, "check"):  # users' exporters may lack it
            exporter.check()
    except ProblemError:
        raise
    except Exception as error:
        if client is None:
            raise ProblemError(Problem(f"`tracking.also={name}`: {error_reason(error)}")) from error
        try:
            version = metadata.version(client.package)
        except metadata.PackageNotFoundError:
            problem = f"`tracking.also={name}` needs the package {client.package}, which is not installed"
            raise ProblemError(Problem(problem, f"install it: `{package_command(client.package)}`")) from error
        problem = f"`tracking.also={name}` cannot use {client.package} {version}: {error_reason(error)}"
        hint = f"install {client.tested} or later: `{package_command(f'{client.package}>={client.tested}')}`"
        raise ProblemError(Problem(problem, hint)) from error
    return {}


def export(exporter: Exporter, folder: Path, orders: Iterable[str]) -> dict[str, object]:
    """Follow a run on each order until its end; return its address, and the state in which it was exported.

    As in MLflow, of a run that may resume from a checkpoint, only the epochs before the checkpoint are exported.
    """
    log, count = WindowLog(folder), 0
    where = exporter.open(exported_run(RunFolder(folder)))
    for line in orders:
        order, run_folder = json.loads(line), RunFolder(folder)
        state = run_folder.state_if(order["ended"])
        windows, _ = log.after(count)
        if (checkpoint := run_folder.record.checkpoint()) and state != COMPLETED:
            windows = before_checkpoint(windows, checkpoint["epochs"])
        for window in windows:
            exporter.log(window["epoch"], publishable(window["metrics"]))
        count += len(windows)
        if order["is_last"]:
            exporter.close(exported_run(run_folder, order["ended"], order["links"]))
            # It is printed, and of some trackers it lets anybody write: that of an anonymous run has a key.
            return {"where": where and redact(str(where)), "state": state}
    raise EOFError("the controller has ended")


def _problem(error: Exception) -> Problem:
    return problem_of(error) if isinstance(error, ProblemError) else Problem(error_reason(error))


if __name__ == "__main__":
    main(sys.argv[1:])
