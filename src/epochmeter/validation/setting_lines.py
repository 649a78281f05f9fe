"""Checks of device settings: each one that this user may change is applied, verified and restored, also after a kill.

They change settings of the machine, so they are made only with `settings=true`.
"""

from collections.abc import Callable, Iterator, Mapping

from epochmeter.shared.problem import Problem
from epochmeter.validation.bench import Bench, ChangedSetting
from epochmeter.validation.line import Finding, Found, Untestable

NOT_ASKED = "settings are changed only if you ask for it"
ASK = "start it with `settings=true`"


def _of_each(bench: Bench, holds: Callable[[ChangedSetting], bool], failure: str) -> Iterator[Found]:
    """Yield for each setting whether something holds: 1 or 0."""
    if not bench.settings:
        yield Untestable(why=NOT_ASKED, hint=ASK)
        return
    changed: Mapping[str, ChangedSetting | Problem] = bench.changed_settings
    if not changed:
        yield Untestable(why="this machine has no setting that a run can change")
    for key, change in changed.items():
        if isinstance(change, Problem):
            yield Untestable(subject=key, why=change.message, hint=change.hint)
            continue
        text = f"{failure}: {change.original} before, {change.requested} requested, {change.applied} read, then "
        text += f"{change.restored}, after SIGKILL {change.after_kill}"
        yield Finding(subject=key, value=float(holds(change)), unit="", low=1.0, failure=text)


def applied(bench: Bench) -> Iterator[Found]:
    """Whether a requested setting can be read back."""
    return _of_each(bench, lambda change: change.is_applied, "it was not applied")


def restored(bench: Bench) -> Iterator[Found]:
    """Whether the original is set after a run."""
    return _of_each(bench, lambda change: change.is_restored, "it was not restored")


def after_kill(bench: Bench) -> Iterator[Found]:
    """Whether the original is set by the next start after SIGKILL."""
    return _of_each(bench, lambda change: change.is_restored_after_kill, "it was not restored after SIGKILL")
