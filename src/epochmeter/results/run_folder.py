"""The folder of a run as its readers get it: each file is read when it is first needed, and checked.

Reports, the live view, reuse and publication read by `RunFolder`. Its texts are printable, as the folder may be from
another user. Controllers, which write what they have read, use `shared.record.Record` and its exact texts.
"""

from contextlib import suppress
from functools import cached_property
from pathlib import Path

from epochmeter.config.schema import Job
from epochmeter.results import documents
from epochmeter.results.bottleneck import Verdict, recorded_verdict
from epochmeter.results.documents import Completion, EnergyVerdict, Host, Summary, Window
from epochmeter.results.energy_verdict import verdict_of_run
from epochmeter.results.run_info import Description, RunInfo
from epochmeter.results.run_status import COMPLETED, PLANNED, end_in, failure_in, state_without_end
from epochmeter.shared.problem import Problem, ProblemError, problem_of
from epochmeter.shared.process_identity import is_alive
from epochmeter.shared.record import COMPLETED_FILE, HOST_FILE, JOB_FILE, SCHEMA, SUMMARY_FILE, WINDOWS_FILE, Record
from epochmeter.shared.record_files import read_bytes
from epochmeter.shared.renamed import current_keys, current_metrics
from epochmeter.shared.types import Document

READ_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions raised by reading a damaged record or reference."""


class OtherSchemaError(ValueError):
    """The record is of another version of its format."""


class RunFolder:
    """One record. A file that was read is not read again: each look at a changing folder is a new `RunFolder`.

    Attributes:
        errors: Why files that were read until now are absent or incomplete.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.errors: list[str] = []

    @property
    def record(self) -> Record:
        """Its other files, such as those with steps and samples."""
        return Record(self.path)

    @cached_property
    def _description(self) -> Document:
        description: Document = documents.read(f"{self.path}/{JOB_FILE}", Description)
        if (schema := description.get("schema", SCHEMA)) != SCHEMA:
            here = f"schema {SCHEMA} is read here: use the version of epochmeter that wrote it"
            raise OtherSchemaError(f"it is of schema {schema}, and {here}")
        job = current_keys(description["job"])
        if job is not description["job"]:  # names of an earlier version, of which no type was checked
            return {**description, "job": documents.check(job, Job)}
        return description

    @property
    def job(self) -> Document:
        """Its configuration; OSError, or ValueError if it is damaged or of another schema."""
        job: Document = self._description["job"]
        return job

    @property
    def run(self) -> RunInfo:
        """Its metadata; errors as those of `job`."""
        run: RunInfo = self._description["run"]
        return run

    @cached_property
    def host(self) -> Host:
        """The machine; empty if it is not recorded, or damaged."""
        try:
            host: Host = documents.read(f"{self.path}/{HOST_FILE}", Host)
            return host
        except FileNotFoundError:  # an older record
            pass
        except (OSError, ValueError) as error:
            self.errors.append(f"{HOST_FILE}: {_reason(error)}")
        return {}

    @cached_property
    def _lines(self) -> list[Window | None]:
        """The closed windows in order, None for a damaged line; OSError if they cannot be read."""
        try:
            content = read_bytes(f"{self.path}/{WINDOWS_FILE}")
        except FileNotFoundError:  # before the end of the first epoch
            return []
        *lines, _ = content.split(b"\n")  # the last one is still being written
        return [parse_window(line) for line in lines]

    @cached_property
    def windows(self) -> list[Window]:
        """The closed windows in order, without damaged ones; empty if they cannot be read."""
        try:
            lines = self._lines
        except OSError as error:
            self.errors.append(f"{WINDOWS_FILE}: {_reason(error)}")
            return []
        if damaged := lines.count(None):
            self.errors.append(unreadable_lines(damaged))
        return [window for window in lines if window]

    @property
    def all_windows(self) -> list[Window]:
        """The closed windows in order; OSError, or ValueError if one is damaged: whose steps follow is not known."""
        if damaged := self._lines.count(None):
            raise ValueError(unreadable_lines(damaged))
        return self.windows

    def last(self, kind: str) -> Window | None:
        """Return the last window of a kind, such as `val`; None without any, or if a later line is damaged."""
        for window in reversed(self._lines if self.windows else ()):
            if window is None or window["window"] == kind:
                return window
        return None

    @cached_property
    def completion(self) -> Completion | None:
        """The last file of a completed run; None without a readable one."""
        self._look_at_process()
        try:
            completion: Completion = documents.read(f"{self.path}/{COMPLETED_FILE}", Completion)
            return completion
        except (OSError, ValueError):
            return None

    @cached_property
    def summary(self) -> Summary | None:
        """How the run ended; None before that. OSError, or ValueError if it is damaged or has been lost."""
        self._look_at_process()
        try:
            summary: Summary = documents.read(f"{self.path}/{SUMMARY_FILE}", Summary)
            for part in (summary, *summary.get("trainings", [])):
                if "metrics" in part:
                    part["metrics"] = current_metrics(part["metrics"])
            return summary
        except FileNotFoundError:
            if self.completion:
                raise
            return None

    @cached_property
    def _may_run(self) -> bool:
        """Whether its process may be alive; one of another host counts as alive."""
        return not (self.path / COMPLETED_FILE).exists() and is_alive(self.run.process)

    def _look_at_process(self) -> None:
        """Note whether its process is alive, before its end is read: a process that is gone has recorded its end."""
        with suppress(*READ_ERRORS):  # without its metadata, which only `state` needs
            _ = self._may_run

    @property
    def recorded_end(self) -> str | None:
        """The state in the record itself; None if it has no end."""
        return COMPLETED if self.completion else end_in(self.summary)

    @property
    def state(self) -> str:
        """One of `run_status.STATES`; errors as those of `job` and `summary`."""
        return self.state_if(None)

    def state_if(self, ended: str | None) -> str:
        """Return the state of a run whose controller knows this end, which the record may lack; None: it knows none."""
        if not (self.path / JOB_FILE).exists():
            return PLANNED
        return self.recorded_end or state_without_end(self.summary, self._may_run, ended)

    @property
    def failure(self) -> Problem | None:
        """Why the run failed or was stopped, if that is known."""
        return failure_in(self.summary, self.state)

    @property
    def verdict(self) -> Verdict:
        """The bottleneck of the mean epoch."""
        return recorded_verdict(self.summary or {"metrics": {}}, self.run.medium, "steady")

    @property
    def energy_verdict(self) -> EnergyVerdict:
        """The verdict on the energy of the mean epoch, or of the run without one; empty if it is not recorded."""
        summary = self.summary or {}
        return verdict_of_run(summary.get("energy", {}), summary.get("metrics", {}))


def parse_window(line: bytes) -> Window | None:
    """Return the window of a line of `epochs.jsonl`; None if it is damaged."""
    try:
        window: Window = documents.parse(line, Window)
    except ValueError:
        return None
    window["metrics"] = current_metrics(window["metrics"])
    return window


def error_text(error: Exception) -> str:
    """Return the path and the cause of a file error; else the first line, with the type unless it is a ValueError."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ProblemError):
        return problem_of(error).message
    text = (str(error).splitlines() or [""])[0]
    return text if type(error) in (ValueError, OtherSchemaError) else f"{type(error).__name__}: {text}"


def _reason(error: OSError | ValueError) -> str:
    return error.strerror or "" if isinstance(error, OSError) else str(error)


def unreadable_lines(damaged: int) -> str:
    """Return why windows are missing."""
    return f"{WINDOWS_FILE}: {damaged} unreadable line{'s' if damaged > 1 else ''}"
