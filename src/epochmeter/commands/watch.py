"""Watch a run or a sweep while it runs, or look at it after its end.

    python src/watch.py                          the running or newest run or sweep in multirun/
    python src/watch.py multirun/SWEEP           a sweep, also on a cluster
    python src/watch.py /mnt/SWEEP/0 once=true   a run in a mounted or copied folder, printed once
    python src/watch.py format=json              as one JSON document
    python src/watch.py page=true                as a page in the browser
    python src/watch.py metrics=true             the same, and for Prometheus at /metrics

Only files of the record are read, so the measurement is not disturbed. `q` or Ctrl-C leaves the
view, and the run continues. docs/watching.md explains the view.

Exit code: 0, or 1 if there is no such run.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from epochmeter.config import app, errors, json_output, validation
from epochmeter.config.installation import ROOT
from epochmeter.shared.overrides import quoted_override
from epochmeter.shared.problem import InputError, input_error

if TYPE_CHECKING:
    from epochmeter.watch.snapshot import Progress, RunView, Snapshot, SweepRow

MULTIRUN = ROOT / "multirun"


def main() -> None:
    sys.argv[1:2] = map(with_key, sys.argv[1:2])  # the folder is the first argument
    app.run("watch", task, __doc__)


def with_key(argument: str) -> str:
    """Return an argument that is a folder as an override of `folder`."""
    if argument.startswith("-") or ("=" in argument and not os.path.exists(argument)):
        return argument
    return quoted_override("folder", argument)


def task(config: DictConfig) -> None:
    # Imported late, so that --help and --cfg are fast.
    from epochmeter.console.plain import PlainConsole
    from epochmeter.results.run_folder import READ_ERRORS, error_text
    from epochmeter.watch.terminal import show

    try:
        validation.check_all_values(app.plain_keys(config), "watch")
        read = reader(config.folder, MULTIRUN)
        if config.format == "json":
            if config.page or config.metrics:
                raise input_error("`format=json` prints the state once, and a page has no end", "leave one of them out")
            json_output.set_result(to_fields(read()))
        elif config.page or config.metrics:
            from epochmeter.watch.server import open_server, serve

            server = open_server(read, config.host, config.port, config.token, config.metrics)
            serve(server, partial(print, flush=True))
        else:
            show(read, PlainConsole(), once=config.once)
    except InputError as error:
        errors.refuse(error)
    except BrokenPipeError:  # the reader of the output has ended
        raise
    except READ_ERRORS as error:
        problem = f"cannot read the record of the run: {error_text(error)}"
        errors.refuse(input_error(problem, "give the folder of its sweep, or of another run"))


def to_fields(snapshot: "Snapshot") -> dict[str, object]:
    """Return a state as the document of `format=json` has it."""
    details = {view.number: view for view in snapshot.active}
    rows = [row_fields(row, details.get(row.number)) for row in snapshot.runs or snapshot.active]
    names = ("folder", "name", "at_s", "state", "reason", "is_sweep", "fraction", "remaining_s", "remaining_j")
    return {**{name: getattr(snapshot, name) for name in names}, "counts": dict(snapshot.counts), "runs": rows}


def row_fields(row: "SweepRow | RunView", view: "RunView | None") -> dict[str, object]:
    """Return a run of a state, with the details of its `view` if it has one."""
    return {
        "number": row.number,
        "state": row.state,
        "reason": row.reason,
        "overrides": dict(row.overrides),
        "host": row.host,
        "progress": progress_fields(row.progress) if row.progress else None,
        "metrics": dict(view.metrics) if view else {},
        "bottleneck": dict(view.bottleneck) if view else {},
        "warnings": [*view.warnings] if view else [],
    }


def progress_fields(progress: "Progress") -> dict[str, object]:
    """Return how far a run is."""
    names = ("epoch", "epochs", "steps", "elapsed_s", "silent_s", "fraction", "remaining_s", "remaining_j")
    return {name: getattr(progress, name) for name in names}


def reader(folder: str | None, multirun: Path) -> Callable[[], "Snapshot"]:
    """Return a function that reads the state of a folder. Without one: of the newest, and after its end of the next."""
    from epochmeter.tracking.queue import running_sweeps
    from epochmeter.watch.snapshot import ACTIVE
    from epochmeter.watch.watcher import Watcher

    watcher = Watcher(find_folder(folder, multirun))
    if folder is not None:
        return watcher.read

    def read() -> "Snapshot":
        nonlocal watcher
        snapshot = watcher.read()
        if snapshot.state in ACTIVE or not (running := running_sweeps(multirun)[-1:]):
            return snapshot
        if running[0].absolute() != watcher.folder:
            watcher = Watcher(running[0])
        return watcher.read()

    return read


def find_folder(folder: str | None, multirun: Path) -> Path:
    """Return the folder with a path or a sweep's name. Without either: the newest running here, else the newest.

    Raises:
        InputError: multirun/ has no runs.
    """
    from epochmeter.report.runs.folders import sweep_folders
    from epochmeter.tracking.queue import running_sweeps

    if folder is not None:
        given, named = Path(str(folder)), multirun / str(folder)  # a name may be a number
        return named if named.is_dir() and not given.exists() else given
    newest = (running_sweeps(multirun) or sweep_folders(multirun))[-1:]
    if not newest:
        raise input_error("there are no runs yet", "start one: `python src/train.py`; or give a folder")
    return newest[0]
