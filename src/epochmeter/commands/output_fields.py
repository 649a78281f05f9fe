"""The document of a command with `format=json`. The published JSON Schema is made from these types."""

from typing import Annotated, Any, Literal, TypedDict

from epochmeter.results.answer_fields import AnswerFields
from epochmeter.results.documents import NextStepFields, StragglerFields


class ProblemFields(TypedDict):
    """An error, or why something is absent."""

    message: Annotated[str, "what happened and why"]
    hint: Annotated[str, "what to do, with a command or a value to paste; empty without advice"]
    code: Annotated[str, "kind of the error in a record"]
    where: Annotated[dict[str, str], "the `key`, `file` and `host` that it is about, as far as they are known"]


class RunFields(TypedDict):
    """How a run ended."""

    number: int
    folder: Annotated[str | None, "the run's record; null if it did not start"]
    overrides: Annotated[list[str], "keys that were given, without secrets"]
    state: Literal["completed", "failed", "killed"]
    exit_code: Annotated[int | None, "of a measured script, negative if a signal ended it; else null"]
    earlier: Annotated[bool, "whether an earlier command completed it"]
    reused: Annotated[str | None, "folder of the completed run of another command that is reused"]
    rehearsal: Annotated[list[str], "settings that were not applied; empty if the run is not a rehearsal"]
    failure: ProblemFields | None
    metrics: Annotated[dict[str, float], "metrics of the mean epoch and of the whole run, docs/metrics.md"]
    absent: Annotated[dict[str, str], "name of a quantity that is not known -> the reason"]
    no_energy: Annotated[ProblemFields | None, "why energy was not measured"]
    bottleneck: Annotated[str, "largest part of the mean epoch, or several parts with ` or `; empty: not known"]
    straggler: Annotated[StragglerFields | None, "the rank for which the others wait"]
    next_steps: Annotated[list[NextStepFields], "what to do next, the best first"]
    notes: list[str]
    link: Annotated[str | None, "address of the run in MLflow"]
    exports: Annotated[dict[str, str | None], "other tracker -> address there, or the command that shows the run"]


class RunsResult(TypedDict):
    """The result of `train` and `measure`."""

    runs: list[RunFields]


class ReportPages(TypedDict, total=False):
    """Analyses by name, such as `answer`, `stalls`, `targets`, `gate`, `trace`; those without a type are in docs/."""

    answer: AnswerFields


class ReportResult(TypedDict):
    """The result of `report`."""

    folder: str
    files: Annotated[list[str], "written files, by their paths"]
    pages: ReportPages
    link: Annotated[str | None, "address of the report in MLflow"]


class RowFields(TypedDict):
    """A quantity that can be measured, or a setting that can be changed; null where a field does not apply."""

    quantity: str
    offered: Annotated[bool, "whether it is available"]
    source: str | None
    period_s: Annotated[float | None, "time between two values"]
    covers: Annotated[str | None, "the parts of the machine that it includes"]
    now: Annotated[str | None, "current value"]
    choices: Annotated[str | None, "possible values"]
    why: Annotated[str | None, "why it is not available, or not as requested"]
    remedy: str | None


class RecordingFields(TypedDict):
    """A recording of the machine."""

    path: str
    files: int
    gpus: int
    seconds: float
    missing: Annotated[dict[str, str], "file that could not be read -> the reason"]


class DoctorResult(TypedDict, total=False):
    """The result of `doctor`: one of these."""

    rows: list[RowFields]
    recording: RecordingFields


class RowProgressFields(TypedDict):
    epoch: Annotated[int, "epoch in progress, counted from 1"]
    epochs: Annotated[int | None, "configured epochs; null for a script"]
    steps: Annotated[int, "steps of all recorded epochs"]
    elapsed_s: float
    silent_s: Annotated[float, "time since the record has last grown"]
    fraction: Annotated[float | None, "fraction of the epochs that are trained; null: not known"]
    remaining_s: Annotated[float | None, "estimated time to the end; null: not known"]
    remaining_j: Annotated[float | None, "estimated energy to the end; null: not known"]


class WatchedRunFields(TypedDict):
    """A run of the watched folder."""

    number: int
    state: Annotated[str, "planned, preparing, training, stalled, completed, failed, killed or unreadable"]
    reason: Annotated[str, "why it has this state; empty without a reason"]
    overrides: dict[str, str]
    host: str
    progress: Annotated[RowProgressFields | None, "null unless the run is active"]
    metrics: Annotated[dict[str, float], "so far, of a run that is shown in detail; else empty"]
    bottleneck: Annotated[dict[str, float], "largest part of the last epochs -> fraction of the epoch"]
    warnings: list[str]


class WatchResult(TypedDict):
    """The result of `watch`: the state of a run or a sweep."""

    folder: str
    name: str
    at_s: Annotated[float, "Unix time"]
    state: str
    reason: str
    is_sweep: bool
    fraction: Annotated[float | None, "fraction of a sweep that has ended"]
    remaining_s: float | None
    remaining_j: float | None
    counts: Annotated[dict[str, int], "state -> number of runs of a sweep"]
    runs: list[WatchedRunFields]


class ValidateResult(TypedDict):
    """The result of `validate`."""

    folder: str
    files: list[str]
    validation: Annotated[dict[str, Any], "validation.json"]


class PublishedFields(TypedDict):
    """A run that was to be published."""

    folder: str
    link: Annotated[str | None, "address in MLflow; null if it could not be published"]
    problem: Annotated[str | None, "why it could not be published"]
    exports: Annotated[dict[str, str | None], "tracker to which it was exported now -> address there, or a command"]


class PublishResult(TypedDict):
    """The result of `publish`."""

    runs: list[PublishedFields]


class OutputFields(TypedDict):
    """The one line of JSON on standard output of a command with `format=json`."""

    schema: Annotated[int, "1; it changes if a field is removed, renamed or gets another meaning"]
    command: Literal["train", "measure", "report", "doctor", "watch", "validate", "publish"]
    exit_code: Annotated[int, "docs/commands.md has its meaning"]
    problems: Annotated[list[ProblemFields], "why the command was refused or ended; empty if it did what it was to do"]
    result: Annotated[
        RunsResult | ReportResult | DoctorResult | WatchResult | ValidateResult | PublishResult | None,
        "null if the command ended before it had one",
    ]
