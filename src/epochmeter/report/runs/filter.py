"""Select the runs of a report.

Failed and ended runs, rehearsals, and runs whose energy is an estimate are no results: they are excluded unless they
are included by name. If nothing else is left, rehearsals and estimates are reported below a banner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from epochmeter.config.validation import flatten, format_value
from epochmeter.report.runs.run import COMPLETED, ESTIMATED, ESTIMATES, FAILURES, REHEARSALS, Run, Sweep

KINDS = (REHEARSALS, ESTIMATES, FAILURES)
"""Values of `include=`."""
MEASURED_TO_THE_END = (REHEARSALS, ESTIMATES)
"""Kinds that are reported if nothing else is left."""
AN_ESTIMATE = "an estimate"
"""Value of `energy_covers` of an estimate."""
RUN_KEYS = {"run": "number", "sweep": "sweep", "host": "host", "state": "state", "experiment": "experiment"}
"""Keys to select by besides those of the configuration -> attribute of a run."""


@dataclass(frozen=True)
class Selection:
    """The selected runs and the excluded ones.

    Attributes:
        ended: These, and runs without an epoch after the warm-up: a target may be reached before.
        included: The included kinds of runs that are no results.
    """

    runs: Sequence[Run]
    ended: Sequence[Run]
    excluded: Sequence[Run]
    unreadable: Mapping[str, str]
    included: Sequence[str] = ()

    @property
    def count(self) -> int:
        """Number of all runs that match the selected keys."""
        return len(self.ended) + len(self.excluded) + len(self.unreadable)

    @property
    def damaged(self) -> list[str]:
        return [f"{name} ({why})" for name, why in self.unreadable.items()]

    @property
    def reused(self) -> list[str]:
        return [f"run {run.number} in {run.reused}" for run in self.ended if run.reused]

    @property
    def flawed(self) -> list[Run]:
        """Reported runs with unreadable parts in their records."""
        return [run for run in self.ended if run.read_errors]

    @property
    def read_errors(self) -> list[str]:
        return [f"run {run.number}: {error}" for run in self.flawed for error in run.read_errors]

    def exclusions(self, reported: Container[int]) -> Counter[tuple[str, str]]:
        """Count the kinds and reasons of runs that are not reported, given the numbers of the reported ones.

        Failures are counted by state.
        """
        unreported = [run for run in (*self.ended, *self.excluded) if run.number not in reported]
        reasons = [(run, *next(iter(reasons_of(run).items()), (run.excluded_because, ""))) for run in unreported]
        return Counter((kind, run.state if kind == FAILURES else why) for run, kind, why in reasons if kind)

    def doubtful(self, reported: Container[int]) -> list[tuple[str, dict[int, str], bool]]:
        """Return the reported runs that are not results: kind, run -> reason, and whether there are other runs."""
        runs = [run for run in self.ended if run.number in reported]
        by_kind = {
            kind: {run.number: reasons[kind] for run in runs if kind in (reasons := reasons_of(run))} for kind in KINDS
        }
        return [
            (kind, reasons, len(reasons) < len(runs))
            for kind, reasons in by_kind.items()
            if reasons and kind in self.included
        ]


def select(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Selection:
    """Select results by their keys.

    Args:
        where: Key -> value, or a list of possible values: a key of the configuration as typed (`batch`,
            `optimizer.lr`), or one of `RUN_KEYS`; null selects runs without a value.
        include: Kinds of runs to include that are no results.

    Raises:
        ValueError: Unknown kinds, or keys and values that no run has; the message suggests similar ones.
    """
    for kind in include:
        if kind not in KINDS:
            raise ValueError(f"`include={kind}` is not valid\n  hint: give one of {', '.join(KINDS)}")
    runs: list[Run] = []
    too_short: list[Run] = []
    excluded: list[Run] = []
    for run in _runs_where(sweep.runs, where or {}):
        reasons = reasons_of(run)
        is_short = "steady/e2e_s" not in run.metrics
        if reasons.keys() - set(include) or (is_short and FAILURES in reasons):
            excluded.append(run)
        else:
            (too_short if is_short else runs).append(_with_estimate(run) if ESTIMATES in reasons else run)
    included = [kind for kind in KINDS if kind in include]
    return Selection(runs, [*runs, *too_short], excluded, sweep.unreadable, included)


def select_any(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Selection:
    """Select results, or, if there are none, also rehearsals and estimates."""
    selection = select(sweep, where, include)
    return selection if selection.ended else select(sweep, where, (*include, *MEASURED_TO_THE_END))


def reasons_of(run: Run) -> dict[str, str]:
    """Return why the measurements of a run are not a result: kind -> reason, which may be empty."""
    reasons = {}
    if run.state != COMPLETED:
        reasons[FAILURES] = ": ".join(filter(None, (run.state, run.failure)))
    if run.rehearsal:
        reasons[REHEARSALS] = "; ".join(run.rehearsal)
    if run.energy_source == ESTIMATED and run.energy_covers in (None, AN_ESTIMATE):
        reasons[ESTIMATES] = (run.no_energy or "").rstrip(".")
    return reasons


def texts_of(values: Any) -> list[str]:
    """Return one or several values as one types them."""
    several = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    return [format_value(value) for value in several]


def has_values(run: Run, where: Mapping[str, Any]) -> bool:
    """Whether a run has the value, or one of the values, of each key."""
    return all(_matches(run, key, texts_of(values)) for key, values in where.items())


def _with_estimate(run: Run) -> Run:
    """Return a run with its estimated energy in place of measured energy; what it covers says so."""
    estimates = {
        name.replace("/estimated_", "/"): value for name, value in run.metrics.items() if "/estimated_" in name
    }
    return replace(run, metrics={**run.metrics, **estimates}, energy_covers=AN_ESTIMATE) if estimates else run


def _runs_where(runs: Sequence[Run], where: Mapping[str, Any]) -> Iterator[Run]:
    """Return the runs that have one of the values of each key."""
    for key, values in where.items():
        _check_known(runs, key, texts_of(values))
    return (run for run in runs if has_values(run, where))


def _values(run: Run, key: str) -> list[str]:
    """Return a key's values for a run as texts: as configured, and as typed."""
    if key in RUN_KEYS and (value := getattr(run, RUN_KEYS[key])) is not None:
        return [format_value(value)]
    return [value for value in (run.value(key), run.keys.get(key)) if value is not None]


def _matches(run: Run, key: str, texts: Sequence[str]) -> bool:
    return any(_is_equal(value, text) for value in _values(run, key) or ["null"] for text in texts)


def _is_equal(value: str, text: str) -> bool:
    try:
        return value == text or float(value) == float(text)
    except ValueError:
        return False


def _check_known(runs: Sequence[Run], key: str, texts: Sequence[str]) -> None:
    values = dict.fromkeys(value for run in runs for value in _values(run, key)[:1])
    if not values and not any(key in run.job for run in runs):
        names = dict.fromkeys(name for run in runs for name in (*run.job, *dict(flatten(run.job)), *run.keys))
        similar = " or ".join(get_close_matches(key, [*names, *RUN_KEYS]))
        raise ValueError(f"where={key}: no run has such a key.{f' Do you mean {similar}?' if similar else ''}")
    if not any(_matches(run, key, texts) for run in runs):
        some = ", ".join([*values][:20]) or "null"
        raise ValueError(f"where={key}: {', '.join(texts)}: none of {len(runs)} runs. There are: {some}.")
