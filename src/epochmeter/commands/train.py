"""Train models as configured, and report where the time and the energy of every epoch went.

    python src/train.py device=nano model=lenet                  one run
    python src/train.py -m batch=8,16,32 power_limit=100,130     a sweep, one run after another
    python src/train.py -m experiment=stalls dataset=jpeg        the causes of data stalls
    python src/train.py --cfg job device=nano model=torchvision  all keys of a run

Exit code: 0 if every run was completed, 1 if one failed, 128 + n if signal n stopped it.
"""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from epochmeter.config import app, errors, json_output
from epochmeter.config.arguments import with_current_names
from epochmeter.config.config_source import use_device
from epochmeter.config.installation import ROOT
from epochmeter.config.request import RunRequest, current_request
from epochmeter.config.resolvers import register
from epochmeter.config.script import ATTACHED, code_digest
from epochmeter.config.secrets import redact_tree, reveal
from epochmeter.run import nodes
from epochmeter.shared.problem import input_error
from epochmeter.sweep import sweep_folder
from epochmeter.sweep.sweep_folder import key_of

if TYPE_CHECKING:
    from epochmeter.console.console import Terminal
    from epochmeter.results.run_result import RunResult


OF_MACHINE = ("device", "machine.root", "hydra/launcher", "hydra.searchpath")
"""Keys by which a run may be for another machine than this one, or for another device than the detected one."""
MEASURE_KEYS = ("script", "measure")
"""Keys that only `src/measure.py` reads."""


def main() -> int:
    try:
        sys.argv[1:] = with_current_names(sys.argv[1:])
    except ValueError as error:
        errors.refuse(error)
    _, code = run_all(__doc__, lambda key: key not in MEASURE_KEYS)
    return code


def run_all(doc: str | None, is_used: app.KeyFilter, command: Sequence[str] = ()) -> "tuple[list[RunResult], int]":
    """Make the runs of the command line, or of a script to measure; return how they ended, and the exit code.

    The help has the docstring `doc`, and the groups and keys that `is_used` accepts.
    """
    runs = Runs(command)
    sys.argv[1:] = nodes.without_run_folder(sys.argv[1:], os.environ)

    def create_folder(keys: Sequence[str], many: bool, again: bool) -> Path:
        if command and ATTACHED not in os.environ:
            other = nodes.script_node_folder(os.environ, ROOT / "multirun", many)
        else:
            other = None if command else nodes.other_node_folder(os.environ, many)
        if other:
            return other
        script = [f"measure.command={code_digest(reveal(command))}:{shlex.join(command)}"] if command else []
        mode = 0o700 if command else 0o777  # a secret in a script's arguments may have no typical form
        return sweep_folder.open_sweep_folder(ROOT / "multirun", datetime.now(), [*keys, *script], many, again, mode)

    def detect(root: str) -> str:
        from epochmeter.machine import host  # late, so that --help is fast

        return host.device_of(root)

    register(create_folder, detect, command)
    use_device(detected_device(sys.argv[1:], detect))
    try:
        app.run("train", runs.run, doc, is_used)
        if runs.request:
            include_reused(runs.request, runs.results)
    except KeyboardInterrupt:
        return runs.results, 128 + signal.SIGINT
    finally:
        use_device(None)
        sweep_folder.remove_empty()
        if runs.results:
            json_output.set_result({"runs": [run_fields(result) for result in runs.results]})
        print_sweep(runs.results, command)
    if runs.request and all(result.earlier for result in runs.results):
        publish_pending(runs.request)  # any other run has published queued runs too
    return runs.results, int(any(result.state != "completed" for result in runs.results))


def run_fields(result: "RunResult") -> dict[str, object]:
    """Return a run as the document of `format=json` has it, without credentials in its texts."""
    fields = result.to_fields()
    return {**fields, **{name: redact_tree(fields[name]) for name in ("failure", "no_energy", "notes")}}


def detected_device(arguments: Sequence[str], detect: Callable[[str], str]) -> str | None:
    """Return the device of this machine if the runs of these arguments are for it, so that they are composed once.

    None if they may be for another one, or if nothing is run: it is detected for each run then.
    """
    has_options = any(argument.startswith("-") and argument not in app.MULTIRUN for argument in arguments)
    if has_options or not {key_of(argument.lstrip("+~")) for argument in arguments}.isdisjoint(OF_MACHINE):
        return None
    try:
        return detect("/")
    except (ValueError, OSError):  # which the run reports
        return None


class Runs:
    """The runs of a command so far."""

    def __init__(self, command: Sequence[str]) -> None:
        self.request: RunRequest | None = None  # of the last run
        self.results: list[RunResult] = []
        self._command = command

    def run(self, config: DictConfig) -> None:
        """Execute the next run; raise SystemExit or KeyboardInterrupt if the command has to stop."""
        # Imported late, so that --help, --cfg and tab completion are fast.
        from epochmeter.results.sweep_files import read_points
        from epochmeter.run import experiment
        from epochmeter.sweep.grid import has_common_failure

        terminal = make_terminal(self._command)
        request = self._next_request(config, terminal)
        if request.remote:
            from epochmeter.cluster.collect import collect_result

            result = collect_result(request, terminal)
        else:
            result = experiment.run(request, terminal, earlier=self.results)
        self.results.append(result)
        has_exit_code = result.exit_code is not None and not request.of_sweep  # a script's, which this command has too
        if result.stop and not has_exit_code:
            raise result.stop
        if not request.remote and has_common_failure(read_points(request.folder.parent), self.results):
            problem = f"the sweep was stopped: its first {len(self.results)} runs failed with the same error"
            errors.refuse(input_error(problem, "correct it, then run the same command again"))

    def _next_request(self, config: DictConfig, terminal: "Terminal") -> RunRequest:
        """Return the request of the next run; before the first run, close the records of killed runs."""
        from epochmeter.tracking.queue import pending_runs

        if self._command and not self.request:
            sys.argv += ["--", *self._command]  # for the record of the command line; Hydra has read it
        try:
            request = current_request(config)
        except ValueError as error:
            errors.refuse(error)
        if not self.request:
            if any(pending_runs(request.folder.parents[1])):
                from epochmeter.run.orphans import close_orphans

                close_orphans(request.folder.parents[1], terminal.warn)
            # Hydra's description of the sweep may contain secrets; the records have the same without them.
            (request.folder.parent / "multirun.yaml").unlink(missing_ok=True)
        self.request = request
        return request


def make_terminal(command: Sequence[str] | None) -> "Terminal":
    """Return the terminal for the messages of a run, or of a measured script, which has stdout for itself."""
    from epochmeter.console.console import Terminal

    return Terminal(of_script=bool(command))


def include_reused(request: RunRequest, results: "Sequence[RunResult]") -> None:
    """Include reused runs in the sweep's view in MLflow."""
    reused = [result.folder for result in results if result.reused and result.folder]
    if not reused:
        return
    from epochmeter.tracking import publisher, views

    published = publisher.include_all(reused, request.job.tracking.to_dict())
    if isinstance(published, str):
        make_terminal(request.job.measure.command).warn(published)
    elif published:
        link = views.results_link(published, reused[0].parent.name)
        for result in results:
            result.compare_link = link if result.reused else result.compare_link


def publish_pending(request: RunRequest) -> None:
    """Publish the rest of earlier runs, for example because the last one was killed while publishing."""
    from epochmeter.tracking import publisher

    if error := publisher.publish_pending(request.folder.parents[1], request.job.tracking.to_dict()):
        make_terminal(request.job.measure.command).warn(error)


def print_sweep(results: "list[RunResult]", command: Sequence[str] = ()) -> None:
    """Print the table of a sweep, its answer and the command of its report."""
    folders = {result.folder.parent for result in results if result.of_sweep and result.folder}
    if not folders:
        return
    from epochmeter.console import sweep_end
    from epochmeter.report.output.report import answer_lines
    from epochmeter.results.sweep_files import read_points

    (folder,) = folders
    answer = answer_lines(folder) if any(folder.glob("*/*.json")) else []
    ordered = sorted(results, key=lambda result: result.number)
    sweep_end.print_sweep(make_terminal(command), ordered, answer, read_points(folder))
