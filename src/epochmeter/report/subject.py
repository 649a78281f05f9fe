"""The subject of a report: its runs, and the groups of configurations that its parts are about, each formed once."""

from collections.abc import Sequence
from dataclasses import dataclass

from epochmeter.report.runs.configuration import Configuration, group_repeats, without_synthetic
from epochmeter.report.runs.costs import costs_to_target
from epochmeter.report.runs.data_source import candidates
from epochmeter.report.runs.filter import Selection
from epochmeter.results.run_status import COMPLETED


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        configurations: Those of all selected runs.
        reaching: Those of `configurations` that load samples, and may reach a quality target; all if none loads any.
        timed: Those of the runs with an epoch after the warm-up, which have a time per epoch.
        loading: Those of `timed` that load samples; all if none does.
        candidates: Those of `timed` that may be recommended.
        ranked: Those to choose from: `candidates`; to a quality target, also those that reached it within the warm-up.
        is_to_target: Whether they are ranked by their costs up to a quality target.
    """

    selection: Selection
    configurations: Sequence[Configuration]
    reaching: Sequence[Configuration]
    timed: Sequence[Configuration]
    loading: Sequence[Configuration]
    candidates: Sequence[Configuration]
    ranked: Sequence[Configuration]
    is_to_target: bool

    @property
    def not_ranked(self) -> list[Configuration]:
        """The configurations that were started but are not candidates: failed, or measured for an analysis only."""
        ranked = {run for configuration in self.ranked for run in configuration.runs}
        failed = (run for run in self.selection.excluded if run.state != COMPLETED)
        return group_repeats([*failed, *(run for run in self.selection.runs if run not in ranked)])


def subject_of(selection: Selection) -> Subject:
    """Return the subject of a report on these runs."""
    timed, per_epoch = selection.runs, group_repeats(candidates(selection.runs))
    to_target = group_repeats(candidates(selection.ended))
    ranked = to_target if costs_to_target(to_target) else per_epoch
    return Subject(
        selection,
        group_repeats(selection.ended),
        group_repeats(without_synthetic(selection.ended)),
        group_repeats(timed),
        group_repeats(without_synthetic(timed)),
        per_epoch,
        ranked,
        bool(costs_to_target(ranked)),
    )
