"""Select the runs of a report: results, and failed runs and rehearsals if they are included."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import product, starmap
from typing import Any

from epochmeter.config.validation import flatten, format_value
from epochmeter.report.runs.run import FAILURES, REHEARSALS, Run, Sweep
from epochmeter.results.run_status import COMPLETED
from epochmeter.shared.problem import input_error

KINDS = (REHEARSALS, FAILURES)  # values of `include=`
RUN_KEYS = {"run": "number", "sweep": "sweep", "host": "host", "state": "state", "experiment": "experiment"}
"""Keys to select by, in addition to those of the configuration -> attribute of a run."""


@dataclass(frozen=True)
class Selection:
    """The selected runs (`ended`), the excluded ones, and the errors of damaged records by run."""

    ended: Sequence[Run]
    excluded: Sequence[Run]
    unreadable: Mapping[str, str]

    @cached_property
    def runs(self) -> list[Run]:
        """The selected runs with an epoch after the warm-up. The others may have reached a target before."""
        return [run for run in self.ended if "steady/e2e_s" in run.metrics]

    @property
    def too_short(self) -> list[Run]:
        """The selected runs without any result: they ended within the warm-up, and not by reaching a target."""
        return [run for run in self.ended if not {"steady/e2e_s", "total/epochs_to_target"} & run.metrics.keys()]

    @property
    def count(self) -> int:
        """Number of all runs that match the selected keys."""
        return len(self.ended) + len(self.excluded) + len(self.unreadable)

    @property
    def damaged(self) -> list[str]:
        return [f"{name} ({why})" for name, why in self.unreadable.items()]

    @property
    def read_errors(self) -> list[str]:
        return [f"run {run.number}: {error}" for run in self.ended for error in run.read_errors]

    @property
    def partly_metered(self) -> list[str]:
        """The runs whose mean energy is of some of their steady epochs, with the numbers of these and of all."""
        texts = []
        for run in (run for run in self.ended if "steady/energy_j" in run.metrics):
            steady = [metrics for epoch, metrics in run.epochs.items() if epoch >= run.job.get("warmup_epochs", 0)]
            count = sum("epoch/energy_j" in metrics for metrics in steady)
            texts += [f"run {run.number} ({count} of {len(steady)})"] if 0 < count < len(steady) else []
        return texts

    @property
    def exclusions(self) -> Counter[tuple[str, str]]:
        """Number of excluded runs by kind and reason; failures are counted by state."""
        reasons = [(run, *next(iter(reasons_of(run).items()))) for run in self.excluded]
        return Counter((kind, run.state if kind == FAILURES else why) for run, kind, why in reasons)

    @property
    def doubtful(self) -> list[tuple[str, dict[int, str]]]:
        """The kinds of selected runs that are not results, with the reason of each of these runs."""
        reasons = {run.number: reasons_of(run) for run in self.ended}
        by_kind = {
            kind: {number: of_run[kind] for number, of_run in reasons.items() if kind in of_run} for kind in KINDS
        }
        return [(kind, runs) for kind, runs in by_kind.items() if runs]


def select(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Selection:
    """Select results by their keys; ValueError for unknown kinds, or keys and values that no run has.

    Args:
        where: Key of the configuration as typed (`optimizer.lr`), or of `RUN_KEYS` -> value, or several; null selects
            runs without a value.
        include: Kinds of runs to include that are not results.
    """
    for kind in include:
        if kind not in KINDS:
            raise input_error(f"`include={kind}` is not valid", f"give one of {', '.join(KINDS)}")
    where = {str(key): values for key, values in (where or {}).items()}
    for key, values in where.items():
        _check_key(sweep.runs, key, values)
    ended: list[Run] = []
    excluded: list[Run] = []
    for run in sweep.runs:
        if has_values(run, where):
            reasons = reasons_of(run)
            is_failed_early = FAILURES in reasons and "steady/e2e_s" not in run.metrics
            if reasons.keys() - set(include) or is_failed_early:
                excluded.append(run)
            else:
                ended.append(run)
    return Selection(ended, excluded, sweep.unreadable)


def select_any(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Selection:
    """Select results, or, if there are none, also rehearsals."""
    selection = select(sweep, where, include)
    return selection if selection.ended else select(sweep, where, (*include, REHEARSALS))


def reasons_of(run: Run) -> dict[str, str]:
    """Return why the measurements of a run are not a result: kind -> reason, which may be empty."""
    reasons = {}
    if run.state != COMPLETED:
        message = run.failure.message.partition("\n")[0] if run.failure else ""
        reasons[FAILURES] = ": ".join(filter(None, (run.state, message)))
    if run.rehearsal:
        reasons[REHEARSALS] = "; ".join(run.rehearsal)
    return reasons


def texts_of(values: Any) -> list[str]:
    """Return one or several values as one types them."""
    several = values if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    return [format_value(value) for value in several]


def has_values(run: Run, where: Mapping[str, Any]) -> bool:
    """Whether a run has the value, or one of the values, of each key."""
    pairs = (product(_values(run, key) or ["null"], texts_of(values)) for key, values in where.items())
    return all(any(starmap(_is_equal, of_key)) for of_key in pairs)


def _values(run: Run, key: str) -> list[str]:
    """Return a key's values for a run as texts: as configured, and as typed."""
    if key in RUN_KEYS and (value := getattr(run, RUN_KEYS[key])) is not None:
        return [format_value(value)]
    return [value for value in (run.value(key), run.keys.get(key)) if value is not None]


def _is_equal(value: str, text: str) -> bool:
    try:
        return value == text or float(value) == float(text)
    except ValueError:
        return False


def _check_key(runs: Sequence[Run], key: str, wanted: Any) -> None:
    values = dict.fromkeys(value for run in runs for value in _values(run, key)[:1])
    if not values and not any(key in run.job for run in runs):
        names = dict.fromkeys(name for run in runs for name in (*run.job, *dict(flatten(run.job)), *run.keys))
        similar = " or ".join(get_close_matches(key, [*names, *RUN_KEYS]))
        raise input_error(f"where={key}: no run has such a key", f"do you mean {similar}?" if similar else "")
    if not any(has_values(run, {key: wanted}) for run in runs):
        some = ", ".join([*values][:20]) or "null"
        raise input_error(f"where={key}: {', '.join(texts_of(wanted))}: none of {len(runs)} runs", f"there are: {some}")
