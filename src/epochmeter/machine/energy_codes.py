"""The verdict on an energy: whether it holds, and the codes of what is absent or doubtful about it.

The codes are a closed list. A code is the data, its text is for people: notes, warnings and the docs are rendered from
findings, and no text is taken apart again.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypedDict

from epochmeter.shared.problem import Problem


class Effect(Enum):
    """What a code says about the energy of its window or run."""

    ABSENT = "no value"
    INVALID = "the value may be wrong, or that of something else"
    NOTED = "the value holds, with a limit"


class EnergyCode(str, Enum):
    """Why an energy is absent or doubtful; `effect` and `meaning` describe it."""

    effect: Effect
    meaning: str

    def __new__(cls, word: str, effect: Effect, meaning: str) -> "EnergyCode":
        member = str.__new__(cls, word)
        member._value_, member.effect, member.meaning = word, effect, meaning
        return member

    NOT_REQUESTED = "not_requested", Effect.ABSENT, "`meter=none`, or no meter was opened"
    NOT_CONFIGURED = "not_configured", Effect.ABSENT, "the meter lacks a key, such as `meter.tdp_w`"
    NO_CONTROLLER = "no_controller", Effect.ABSENT, "the script ran without a controller, which reads the instruments"
    NO_SENSOR = "no_sensor", Effect.ABSENT, "the machine or its driver reports no energy and no power"
    NO_PERMISSION = "no_permission", Effect.ABSENT, "the instrument exists, but this user may not read it"
    SHARED_NODE = "shared_node", Effect.ABSENT, "other jobs may use the node, whose energy includes theirs"
    PARTITIONED_GPU = "partitioned_gpu", Effect.ABSENT, "a MIG slice, and the driver reports the whole GPU only"
    SCOPE_UNKNOWN = "scope_unknown", Effect.ABSENT, "it is not known what the instrument includes, or parts overlap"
    ESTIMATED = "estimated", Effect.ABSENT, "the energy is estimated, not measured"
    WINDOW_TOO_SHORT = "window_too_short", Effect.ABSENT, "the instrument is too slow for the window"
    TOO_FEW_SAMPLES = "too_few_samples", Effect.ABSENT, "too few power samples within the window"
    SENSOR_LOST = "sensor_lost", Effect.ABSENT, "a power sensor gave no reading for too long"
    NOT_READ = "not_read", Effect.ABSENT, "a counter could not be read at a border of the window"
    COUNTER_STOPPED = "counter_stopped", Effect.ABSENT, "a counter did not advance"
    COUNTER_RESET = "counter_reset", Effect.ABSENT, "a counter ran backwards, or its controller was restarted"
    STALE = "stale", Effect.ABSENT, "a counter's readings were no longer renewed"
    READ_APART = "read_apart", Effect.ABSENT, "the readings enclose much more time than the window"
    OTHER_NODE = "other_node", Effect.ABSENT, "another node of the run has no energy"
    OTHER_WINDOW = "other_window", Effect.ABSENT, "of a mean or a total: windows have no energy"
    COUNTERS_DISAGREE = "counters_disagree", Effect.INVALID, "two sources differ by more than their uncertainties"
    SHARED_GPU = "shared_gpu", Effect.INVALID, "another process used the GPU, whose energy includes it"
    SHARED_CPU = "shared_cpu", Effect.INVALID, "other processes used the processor, whose energy includes them"
    MAY_OVERLAP = "may_overlap", Effect.INVALID, "the sum of all rails of an unknown board may count some twice"
    SUSPENDED = "suspended", Effect.INVALID, "the process or the machine was suspended within the window"
    SETTINGS_CHANGED = "settings_changed", Effect.INVALID, "another program changed a power limit or another setting"
    CONCURRENT = "concurrent", Effect.INVALID, "another thread of the script trained at the same time"
    IN_STEP = "in_step", Effect.NOTED, "the steps were in step with a part-time sensor; the uncertainty is large"
    IN_STEP_UNKNOWN = "in_step_unknown", Effect.NOTED, "a part-time sensor, and the borders of steps are not known"
    GAPS_BRIDGED = "gaps_bridged", Effect.NOTED, "power readings failed, and short gaps were interpolated"
    PART_ABSENT = (
        "part_absent",
        Effect.NOTED,
        "a part that was asked for is absent, such as the machine's energy",
    )
    NO_IDLE_POWER = "no_idle_power", Effect.NOTED, "no net energy, since idle power was not measured"
    NO_PHASES = "no_phases", Effect.NOTED, "no energy of some or all phases"


CODES = {code.value: code for code in EnergyCode}
"""Code by its word in records."""


class EnergyReason(TypedDict):
    """A finding in a record."""

    code: str
    text: str


class Finding(NamedTuple):
    """Something absent or doubtful about an energy."""

    code: EnergyCode
    text: str

    def to_record(self) -> EnergyReason:
        return {"code": self.code.value, "text": self.text}


class Verdict(NamedTuple):
    """Whether an energy holds, and why not, or with which limits."""

    is_valid: bool
    findings: Sequence[Finding]

    def to_record(self) -> dict[str, object]:
        """Return the verdict's fields in a window, a summary and an answer."""
        reasons = [finding.to_record() for finding in self.findings]
        return {"energy_valid": self.is_valid, **({"energy_reasons": reasons} if reasons else {})}


def judge(findings: Iterable[Finding], *, has_energy: bool) -> Verdict:
    """Return the verdict on an energy: one that is measured holds unless a finding makes it invalid."""
    unique = [*dict.fromkeys(findings)]
    is_valid = has_energy and not any(finding.code.effect is Effect.INVALID for finding in unique)
    return Verdict(is_valid, unique)


def first_of_each_code(reasons: Iterable[EnergyReason]) -> list[EnergyReason]:
    """Return the first reason of each code, in the order in which they occurred."""
    first: dict[str, EnergyReason] = {}
    for reason in reasons:
        first.setdefault(reason["code"], reason)
    return [*first.values()]


def energy_problem(code: EnergyCode, message: str, hint: str = "") -> Problem:
    """Return the problem that prevents the measurement of energy, with its code."""
    return Problem(message, hint, code.value)


def code_of(problem: Problem, default: EnergyCode = EnergyCode.NO_SENSOR) -> EnergyCode:
    """Return the energy code of a problem, or the default for a problem of another kind."""
    return CODES.get(problem.code, default)


class UncountedError(OSError):
    """An instrument cannot be read for a reason with a code of its own."""

    def __init__(self, code: EnergyCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def finding_of(error: Exception) -> Finding:
    """Return the finding for an instrument that could not be read."""
    code = error.code if isinstance(error, UncountedError) else EnergyCode.NOT_READ
    return Finding(code, str(error))


Findings = Mapping[str, Finding]  # by domain
