"""Which runs a report tells of, and which are left out and why.

No result, and left out unless they are asked for by name: runs that failed or were ended, rehearsals, and runs whose
energy is an estimate. Where there is nothing else they are told of below a banner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from epochmeter.config.validation import format_value
from epochmeter.report.runs.run import ESTIMATED, NOT_COMPLETED, TOO_SHORT, Run, Sweep

FAILURES, REHEARSALS, ESTIMATES = "failures", "rehearsals", "estimates"
KINDS = (REHEARSALS, ESTIMATES, FAILURES)
"""What `include=` names."""
MEASURED_TO_THE_END = (REHEARSALS, ESTIMATES)
"""What is told of where there is nothing else."""
BANNERS = {
    REHEARSALS: "REHEARSAL, no result of what was asked",
    ESTIMATES: "ESTIMATE, energy that nothing measured",
    FAILURES: "NOT COMPLETED",
}
AN_ESTIMATE = "an estimate, measured by nothing"
"""What the energy of a run covers that nothing measured."""
FACTS = ("sweep", "host", "state", "experiment")
"""Of a run, beside the keys of its job, what it is found by; `run` is its number."""
NAMED = 5
"""So many runs are named whose records are broken; the others are counted."""


@dataclass(frozen=True)
class Selection:
    """The runs that are told of, and those that are not."""

    runs: Sequence[Run]
    ended: Sequence[Run]
    """These, and what would be one had it had an epoch after its warm-up: a target may be reached before."""
    left: Sequence[Run]
    """The runs that are left out: their `excluded_because` says why."""
    unreadable: Mapping[str, str]
    included: Sequence[str] = ()
    """The kinds of runs that are told of though they are no results."""

    @property
    def count(self) -> int:
        """Of all runs that were asked for."""
        return len(self.ended) + len(self.left) + len(self.unreadable)

    def excluded_counts(self, told: Container[int] = ()) -> Counter[str]:
        """How many runs are left out whose records can be read, by the reason; those of some numbers were told of."""
        return Counter(
            row.excluded_because for row in (*self.ended, *self.left) if row.excluded_because and row.number not in told
        )

    def below(self, told: Container[int]) -> list[str]:
        """What is to be said below: what runs are left out and why, what is broken, how to have them told of."""
        said = [f"Left out: {many} of {self.count} runs: {why}." for why, many in self.excluded_counts(told).items()]
        broken = [f"{name} ({why})" for name, why in self.unreadable.items()]
        if broken:
            said.append(f"Left out: {len(broken)} of {self.count} runs, whose records cannot be read: {_some(broken)}.")
        if reused := [f"run {row.number} in {row.reused}" for row in self.ended if row.reused]:
            said.append(f"Reused: {len(reused)} of {self.count} runs, measured by other commands: {_some(reused)}.")
        errors = [f"run {row.number}: {error}" for row in self.ended for error in row.read_errors]
        if errors:
            count = sum(bool(row.read_errors) for row in self.ended)
            said.append(f"Left out of {count} run{'s' if count > 1 else ''}: {_some(errors)}.")
        return said

    def banner(self, told: Container[int]) -> list[str]:
        """What stands above all that is said of runs, of some numbers: which of them are no results, and why."""
        rows = [row for row in self.ended if row.number in told]
        said = []
        for kind in self.included:
            reasons = {row.number: why for row in rows if (why := reasons_of(row).get(kind))}
            if reasons:
                which = f" ({_runs(list(reasons))})" if len(reasons) < len(rows) else ""
                said.append(f"{BANNERS[kind]}{which}: {'; '.join(dict.fromkeys(reasons.values()))}.")
        return said


def select(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Selection:
    """The runs that have these values of these keys, less what is no result and not `include`d.

    A key is one of a job as one types it (`batch`, `optimizer.lr`), what was typed for the run, or `run`, `sweep`,
    `host`, `state`, `experiment`; a list of values takes any of them, null a run without.
    Raises ValueError for kinds, keys and values that no run has, with those that are near.
    """
    check_kinds(include)
    kept, ended, left = [], [], []
    for row in chosen(sweep.runs, where or {}):
        reasons = reasons_of(row)
        short = "steady/e2e_s" not in row.metrics
        why = next((_left_out(kind, why) for kind, why in reasons.items()), TOO_SHORT if short else None)
        told = row if row.excluded_because == why else replace(row, excluded_because=why)
        if reasons.keys() - set(include) or (short and FAILURES in reasons):
            left.append(told)
        elif short:
            ended.append(_with_estimate(told))
        else:
            kept.append(_with_estimate(told))
    return Selection(kept, [*kept, *ended], left, sweep.unreadable, [kind for kind in KINDS if kind in include])


def select_any(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Selection:
    """The same, and, where nothing is left, what went to its end though it is no result: it is told below a banner."""
    selection = select(sweep, where, include)
    return selection if selection.ended else select(sweep, where, (*include, *MEASURED_TO_THE_END))


def check_kinds(include: Iterable[str]) -> None:
    for kind in include:
        if kind not in KINDS:
            near = _near(str(kind), KINDS)
            raise ValueError(f"include={kind}: there is no such kind of runs.{near} There are: {', '.join(KINDS)}.")


def reasons_of(row: Run) -> dict[str, str]:
    """Why a run is no result: kind -> the reason."""
    found = {}
    if row.excluded_because and row.excluded_because.startswith(NOT_COMPLETED):
        found[FAILURES] = row.excluded_because
    if row.rehearsal:
        found[REHEARSALS] = "; ".join(row.rehearsal)
    if row.energy_source == ESTIMATED and row.energy_covers in (None, AN_ESTIMATE):
        found[ESTIMATES] = row.no_energy or "no meter"
    return found


def chosen(rows: Sequence[Run], where: Mapping[str, Any]) -> Iterator[Run]:
    """The rows that have one of the values of each key."""
    wanted = {key: texts_of(values) for key, values in where.items()}
    for key, texts in wanted.items():
        _check_known(rows, key, texts)
    for row in rows:
        if all(_fits(row, key, texts) for key, texts in wanted.items()):
            yield row


def texts_of(values: Any) -> list[str]:
    """One value or several, as one types them."""
    listed = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    return [format_value(value) for value in listed]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a job by the keys that one types: `optimizer.lr`."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            leaves.update(flat(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _left_out(kind: str, why: str) -> str:
    return {
        REHEARSALS: f"a rehearsal ({why})",
        ESTIMATES: f"its energy is an estimate ({why.rstrip('.')})",
    }.get(kind, why)


def _with_estimate(row: Run) -> Run:
    """A row whose estimate of its energy stands where measured energy would; what it covers says so."""
    if ESTIMATES not in reasons_of(row):
        return row
    promoted = {name.replace("/estimated_", "/"): value for name, value in row.metrics.items() if "/estimated_" in name}
    return replace(row, metrics={**row.metrics, **promoted}, energy_covers=AN_ESTIMATE) if promoted else row


def _values(row: Run, key: str) -> list[str]:
    """What a key is for a run, as texts: what it came to, and what was typed where that says something else."""
    if key == "run":
        return [str(row.number)]
    if key in FACTS and (fact := getattr(row, key)) is not None:
        return [format_value(fact)]
    return [value for value in (row.value(key), row.keys.get(key)) if value is not None]


def _fits(row: Run, key: str, texts: Sequence[str]) -> bool:
    values = _values(row, key) or ["null"]
    return any(_same(value, text) for value in values for text in texts)


def _same(value: str, text: str) -> bool:
    if value == text:
        return True
    try:
        return float(value) == float(text)
    except ValueError:
        return False


def _check_known(rows: Sequence[Run], key: str, texts: Sequence[str]) -> None:
    values = dict.fromkeys(value for row in rows for value in _values(row, key)[:1])
    if not values and not any(key in row.job for row in rows):
        known = dict.fromkeys(name for row in rows for name in (*row.job, *flat(row.job), *row.keys))
        raise ValueError(f"where={key}: no run has such a key.{_near(key, [*known, 'run', *FACTS])}")
    if not any(_fits(row, key, texts) for row in rows):
        some = ", ".join([*values][:20]) or "null"
        raise ValueError(f"where={key}: {', '.join(texts)}: none of {len(rows)} runs. There are: {some}.")


def _near(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, list(known), n=3)
    return f" Do you mean {' or '.join(near)}?" if near else ""


def _runs(numbers: Sequence[int]) -> str:
    """`runs 1, 3`, of many the first and how many more."""
    more = len(numbers) - NAMED
    first = ", ".join(map(str, numbers[:NAMED]))
    return f"run{'s' if len(numbers) > 1 else ''} {first}{f' and {more} more' if more > 0 else ''}"


def _some(texts: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(texts) - NAMED
    return "; ".join([*texts[:NAMED], *([f"and {more} more"] if more > 0 else [])])
