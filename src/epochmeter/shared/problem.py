"""Errors as data: a message, a hint, a code and a place, as fields from where an error is raised to where it is shown.

A `ProblemError` carries problems through Python, `RankFailed` from the training process to the controller, and
`failure` in `summary.json` to later commands. No other form of an error is taken apart again: the message of another
exception, such as of a user's code, is shown as it is.
"""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

EXCEPTION = "exception"
PEER_RANK = "rank"  # code of a rank whose only error is that another rank ended; no record has it
CODES = {
    EXCEPTION: "any other error, such as an exception of your own code",
    "job": "the run was refused, or its Slurm job failed, before it began",
    "oom": "memory of the GPU or of the host ran out",
    "shared_memory": "`/dev/shm`, which carries batches, is full",
    "storage": "the storage of the dataset fails or is not mounted",
    "killed": "a process was killed by a signal, or ended without a message",
    "timeout": "`sweep.timeout_s` or Slurm's time limit was reached",
    "hung": "no progress for `sweep.hung_after_s`",
    "node": "a node of the cluster failed, or its result is missing",
    "stopped": "Ctrl-C, a signal or Slurm stopped the run",
}
"""Code of the end of a run -> its meaning. A record of a later version may have others."""
HINT = "  hint: "  # begins the printed line of a hint
KILL_HINT = "check whether a job scheduler, a watchdog such as systemd-oomd, or a person killed it"


class Place(NamedTuple):
    """What a problem is about, as far as it is known; an empty text if it is not."""

    key: str = ""  # of the configuration, such as `batch`
    file: str = ""  # or a folder
    host: str = ""


NOWHERE = Place()


class Problem(NamedTuple):
    """An error as data.

    Attributes:
        message: What happened and why, with values in backticks.
        hint: What to do, with a command or a value to paste; empty without advice.
        code: The kind of the error in a record, one of `CODES`.
        where: The key, the file and the host that it is about.
    """

    message: str
    hint: str = ""
    code: str = EXCEPTION
    where: Place = NOWHERE

    def __str__(self) -> str:
        return format_problem(self)

    def within(self, context: str) -> "Problem":
        """Return the problem with what failed because of it before its message."""
        return self._replace(message="{}: {}".format(context, self.message))

    def to_fields(self) -> Dict[str, Any]:
        """Return the values for JSON; a place has only what is known of it."""
        return dict(self._asdict(), where={name: value for name, value in self.where._asdict().items() if value})


def read_problem(fields: Optional[Mapping[str, Any]]) -> Optional[Problem]:
    """Return the problem with these values of JSON; None without any.

    A code of another version is kept. Records of earlier versions have the code as `kind`, and no other field than the
    message, whose text may contain a hint. ValueError for a value of another type.
    """
    if fields is None:
        return None
    places = _mapping(_mapping(fields).get("where") or {})
    where = Place(*(_text(places, name) for name in Place._fields))
    code = _text(fields, "code") or _text(fields, "kind") or EXCEPTION
    return Problem(_text(fields, "message"), _text(fields, "hint"), code, where)


class ProblemError(Exception):
    """An error with at least one problem."""

    @property
    def problems(self) -> Tuple[Problem, ...]:
        # torch constructs an exception of a DataLoader worker again, with the text of its traceback.
        return tuple(each if isinstance(each, Problem) else Problem(str(each)) for each in self.args)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class InputError(ProblemError, ValueError):
    """Invalid input: a key, a value, a file or a folder that the user has given."""


class MachineError(ProblemError, RuntimeError):
    """The machine, its settings, its disks or its programs do not do what a valid command needs."""


def input_error(message: str, hint: str = "", key: str = "", file: str = "") -> InputError:
    return InputError(Problem(message, hint, where=Place(key, file)))


def machine_error(message: str, hint: str = "", file: str = "", host: str = "") -> MachineError:
    return MachineError(Problem(message, hint, where=Place("", file, host)))


def problems_of(error: BaseException) -> Tuple[Problem, ...]:
    """Return the problems of an error; of any other exception its text as it is."""
    if isinstance(error, ProblemError):
        return error.problems
    return (Problem(str(error).strip() or type(error).__name__),)


def problem_of(error: BaseException) -> Problem:
    """Return the problems of an error as one, with the code and the place of the first."""
    first, *others = problems = problems_of(error)
    if not others:
        return first
    messages = "; ".join(problem.message.rstrip(".") for problem in problems)
    return first._replace(message=messages, hint="; ".join(filter(None, (problem.hint for problem in problems))))


def format_problem(problem: Problem, severity: str = "") -> str:
    """Return a problem as printed, after its severity, such as `error`: the message, then the hint in a line."""
    first = "{}: {}".format(severity, problem.message) if severity else problem.message
    return "{}\n{}{}".format(first, HINT, problem.hint) if problem.hint else first


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("a problem has a {}, not a mapping".format(type(value).__name__))
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError("`{}` of a problem is a {}, not a text".format(name, type(value).__name__))
    return value or ""
