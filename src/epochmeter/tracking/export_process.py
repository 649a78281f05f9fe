"""Start and end the processes of exporters (`epochmeter.tracking.export`), without waiting for them during a run."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from epochmeter.config.installation import python_path
from epochmeter.config.rules import EXPORTERS
from epochmeter.config.secrets import redact
from epochmeter.shared.problem import InputError, Problem, format_problem, read_problem
from epochmeter.shared.process_identity import has_exited
from epochmeter.shared.record import Record
from epochmeter.tracking import queue
from epochmeter.tracking.exporter import exporter_names

PERIOD_S = 2.0  # shortest time between two looks of an exporter at the record
CHECK_LIMIT_S = 120.0  # time limit of the check before a run: the import of a client takes seconds
EXPORT_LIMIT_S = 120.0  # time limit of the export of one run while a person waits
READ_LIMIT_S = 1.0  # time limit for the answer of a process that has ended
LATE = "it did not end in time"
PROGRAM = "epochmeter.tracking.export"


class Exported(NamedTuple):
    """The end of an export: the run's address in another tracker, or a command that shows it; or why there is none."""

    exporter: str
    where: str | None = None
    problem: str | None = None


class ExportProcess:
    """The process that exports one run to one tracker."""

    def __init__(self, exporter: str, record: Record) -> None:
        self.exporter, self._record = exporter, record
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""
        self._is_over = False
        self._next_s = 0.0

    @property
    def pids(self) -> list[int]:
        return [self._process.pid] if self._process else []

    def start(self) -> None:
        """Start the process; it begins the run in the tracker."""
        queue.mark_exported(self._record, self.exporter, None)
        try:
            self._process = subprocess.Popen(
                _command("export", self.exporter, str(self._record.folder)), **_options(), bufsize=0
            )
        except OSError as error:  # as without memory
            self._failure = f"cannot start its process: {error}"
        else:
            assert self._process.stdin
            os.set_blocking(self._process.stdin.fileno(), False)

    def look(self) -> None:
        """Let the exporter export the record's current content, beside the run."""
        now_s = time.monotonic()
        if self._process and now_s >= self._next_s:
            self._next_s = now_s + PERIOD_S
            self._send(None, is_last=False)

    def end(self, ended: str | None = None, links: Mapping[str, str] | None = None) -> None:
        """Let the exporter export the end of the run; `ended` is its state, if the record could not be completed."""
        if not self._process and not self._failure:
            self.start()
        self._send(ended, is_last=True, links=links)

    def wait(self, limit_s: float) -> Exported:
        """Wait for the end of the export, which is killed after this time."""
        if self._process is None:
            return Exported(self.exporter, problem=self._failure)
        try:
            # While another one was waited for; of its threads, some may still be ending.
            if self._process.poll() is not None or has_exited(self._process.pid):
                limit_s = max(limit_s, READ_LIMIT_S)
            output, _ = self._process.communicate(timeout=max(0.0, limit_s))
            answer = json.loads(output)
            problem = read_problem(answer.get("problem"))
            self._is_over = problem is None
        except subprocess.TimeoutExpired:
            return Exported(self.exporter, problem=LATE)
        except ValueError:
            return Exported(self.exporter, problem=f"its process ended with exit code {self._process.returncode}")
        finally:
            self.kill()
        if problem:
            return Exported(self.exporter, problem=problem.message)
        queue.mark_exported(self._record, self.exporter, answer["state"])
        return Exported(self.exporter, answer["where"])

    def kill(self) -> None:
        """End the process and those that it has started; a client that has exported the run has ended its own."""
        if self._process and not self._is_over:
            self._is_over = True
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _send(self, ended: str | None, *, is_last: bool, links: Mapping[str, str] | None = None) -> None:
        order = json.dumps({"ended": ended, "is_last": is_last, "links": links or {}})
        with suppress(OSError):  # it has ended, or reads nothing: `wait` returns why
            if self._process and self._process.stdin:
                self._process.stdin.write(f"{order}\n".encode())


def export(record: Record, exporter: str, links: Mapping[str, str]) -> Exported:
    """Export a run that has ended, and wait for that."""
    if problem := refusal(exporter):
        return Exported(exporter, problem=problem.message)
    process = ExportProcess(exporter, record)
    process.end(links=links)
    return process.wait(EXPORT_LIMIT_S)


def check_exporters(tracking: Mapping[str, Any]) -> None:
    """Refuse trackers to which nothing can be exported, such as without a login; InputError."""
    problems = [problem for name in exporter_names(tracking.get("also")) if (problem := refusal(name))]
    if problems:
        raise InputError(*problems)


@lru_cache
def refusal(exporter: str) -> Problem | None:
    """Return why nothing can be exported to a tracker; None if it can. Its client is imported in another process."""
    options = {**_options(), "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(_command("check", exporter), **options, timeout=CHECK_LIMIT_S)
        if done.returncode:
            return Problem(f"`tracking.also={exporter}`: its process ended with exit code {done.returncode}")
        return read_problem(json.loads(done.stdout).get("problem"))
    except subprocess.TimeoutExpired:
        return Problem(f"`tracking.also={exporter}`: its client does not answer within {CHECK_LIMIT_S:g} s")
    except (OSError, ValueError) as error:
        return Problem(f"`tracking.also={exporter}` cannot be checked: {error}")


def export_warning(exported: Exported, sweep: str) -> str:
    """Return the warning about a run that was not exported: one text for all runs of a sweep."""
    own = [] if exported.exporter in EXPORTERS else ["--also", exported.exporter]
    command = shlex.join(["python", "src/publish.py", *own, sweep])
    problem = f"not exported to {exported.exporter}: {redact(exported.problem or '')}"
    return format_problem(Problem(problem, f"the records are complete; to add what is missing: {command}"), "warning")


def _command(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", PROGRAM, *arguments]


def _options() -> dict[str, Any]:
    """Return the options of a process of its own session, which gets no Ctrl-C and imports nothing from this folder."""
    return {
        "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "start_new_session": True,
        "env": {**os.environ, "PYTHONPATH": python_path(), "PYTHONSAFEPATH": "1"},
    }  # fmt: skip
