"""What a check finds: a value and its bound, or why nothing can be tested. The state follows from these."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from epochmeter.results.validation import FAILED, PASSED, UNTESTED, Line, is_within


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A value that a check has found, and the bound within which it passes.

    Attributes:
        subject: What it is of, such as a sensor; empty if there is one only.
        low: Lowest value that passes; None: any.
        failure: What it means if the value is outside of its bound, and `hint` what to do then.
        details: Further numbers.
    """

    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    subject: str = ""
    failure: str = ""
    hint: str = ""
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Untestable:
    """Why a check cannot be made here; `again`: the same command may make it later."""

    why: str
    hint: str = ""
    subject: str = ""
    again: bool = False


Found = Finding | Untestable


def line_of(check: str, found: Found, disturbance: str = "") -> Line:
    """Return the line of a finding; with a `disturbance`, none passes or fails."""
    if isinstance(found, Finding) and disturbance:
        found = Untestable(why=disturbance, hint="end that load, and start the same command", again=True,
                           subject=found.subject)  # fmt: skip
    if isinstance(found, Untestable):
        return {
            "check": check, "subject": found.subject, "value": None, "bound": [None, None], "unit": "",
            "state": UNTESTED, "why": found.why, "hint": found.hint, "again": found.again,
        }  # fmt: skip
    bound = [found.low, found.high]
    passed = is_within(found.value, bound)
    line: Line = {
        "check": check, "subject": found.subject, "value": found.value, "bound": bound, "unit": found.unit,
        "state": PASSED if passed else FAILED, "why": "" if passed else found.failure,
        "hint": "" if passed else found.hint, "again": False,
    }  # fmt: skip
    return {**line, "details": dict(found.details)} if found.details else line


def of(subject: str, found: Found) -> Found:
    """Return a finding of another subject."""
    return replace(found, subject=subject)
