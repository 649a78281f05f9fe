"""What a check finds: a value and its bound, or why nothing can be tested. The state follows from these."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from epochmeter.results.validation import FAILED, PASSED, UNTESTED, Line, is_within

DISTURBED_HINT = "end that load, and start the same command"


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
    """Return the line of a finding; with a `disturbance`, it neither passes nor fails, but keeps its value."""
    if isinstance(found, Untestable):
        return {
            "check": check, "subject": found.subject, "value": None, "bound": [None, None], "unit": "",
            "state": UNTESTED, "why": found.why, "hint": found.hint, "again": found.again,
        }  # fmt: skip
    bound, state, why, hint = [found.low, found.high], PASSED, "", ""
    if disturbance:
        state, why, hint = UNTESTED, disturbance, DISTURBED_HINT
    elif not is_within(found.value, bound):
        state, why, hint = FAILED, found.failure, found.hint
    line: Line = {
        "check": check, "subject": found.subject, "value": found.value if math.isfinite(found.value) else None,
        "bound": bound, "unit": found.unit, "state": state, "why": why, "hint": hint, "again": bool(disturbance),
    }  # fmt: skip
    return {**line, "details": dict(found.details)} if found.details else line
