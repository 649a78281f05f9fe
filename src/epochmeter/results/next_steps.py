"""What to do after a run: the steps whose rules apply, the best first."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from epochmeter.results.documents import NextStepFields
from epochmeter.results.measured_run import Gain, MeasuredRun
from epochmeter.results.next_step_rules import RULES
from epochmeter.results.step_rule import Kind, Rule
from epochmeter.shared.units import percent, percentage

MAX_STEPS = 3
MIN_GAIN = 0.05  # smallest bound of a step's gain, as a fraction of the time per epoch


class NextStep(NamedTuple):
    """A step to take after a run.

    Attributes:
        rule: Name of the rule.
        text: The advice in one sentence.
        kind: Of `change`: a `setting` to add to the run's command, `code` for the script, or a `command`.
        change: To paste.
        why: The reason of the rule.
        gain: The time that it saves at most; None if that cannot be predicted.
    """

    rule: str
    text: str
    kind: Kind
    change: str
    why: str
    gain: Gain | None = None

    def to_document(self) -> dict[str, object]:
        """Return the step for JSON."""
        return {**self._asdict(), "gain": self.gain._asdict() if self.gain else None}


def recorded_gain(step: NextStepFields) -> Gain | None:
    """Return the gain of a recorded step; None if it is not known."""
    fields = step.get("gain") or {}
    return Gain(fields["at_most"], fields.get("low"), fields.get("high")) if "at_most" in fields else None


def gain_sentence(gain: Gain | None) -> str:
    """Return what a step saves, as a sentence with a space before it; empty if that is not known."""
    if gain is None:
        return ""
    bounds = [] if gain.low is None or gain.high is None else [percentage(gain.low), percent(gain.high)]
    interval = f" ({' to '.join(bounds)})" if bounds and bounds[1] != f"{bounds[0]} %" else ""
    return f" It saves at most {percent(gain.at_most)}{interval} of the epoch's time."


def find_next_steps(run: MeasuredRun, rules: Sequence[Rule] = RULES) -> list[NextStep]:
    """Return at most `MAX_STEPS` steps for a run, the best first."""
    found = [pair for rule in rules for pair in _steps_of(rule, run)]
    found.sort(key=lambda pair: (pair[0].rank, not run.is_bottleneck(*pair[0].parts), -_bound(pair[1])))
    changes: dict[str, NextStep] = {}
    for _, step in found:
        changes.setdefault(step.change, step)
    return [*changes.values()][:MAX_STEPS]


def _steps_of(rule: Rule, run: MeasuredRun) -> Iterator[tuple[Rule, NextStep]]:
    change = rule.script if run.is_script else rule.own
    if change is None or not rule.applies(run):
        return
    gain = rule.gain(run) if rule.gain else None
    if rule.gain is None or (gain and gain.at_most >= MIN_GAIN):
        yield rule, NextStep(rule.name, rule.text, change.kind, change.written_for(run), rule.why, gain)


def _bound(step: NextStep) -> float:
    return step.gain.at_most if step.gain else 0.0
