"""The DataLoaders of scripts: which data they deliver, in which order, and by how many workers."""

from collections.abc import Sequence
from dataclasses import dataclass

from epochmeter.report.runs.run import Run
from epochmeter.results.run_info import LoaderFacts

OPTIONS = ("drop_last", "pin_memory", "persistent_workers")


@dataclass(frozen=True)
class UsedLoader:
    """A loader of some runs.

    Attributes:
        runs: Their numbers.
        windows: Kinds of the windows that its passes were.
        facts: As recorded.
    """

    runs: Sequence[str]
    windows: Sequence[str]
    facts: LoaderFacts

    @property
    def data(self) -> str:
        """Its dataset, or its class if it is not torch's DataLoader."""
        return short_name(self.facts.get("dataset") or self.facts.get("class"))

    @property
    def order(self) -> str:
        """The class that chooses its batches, or else their samples; empty for a stream."""
        batches, samples = (short_name(self.facts.get(name)) for name in ("batch_sampler", "sampler"))
        return "" if self.facts.get("iterable") else samples if batches in ("", "BatchSampler") else batches

    @property
    def options(self) -> Sequence[str]:
        """Its other arguments, as far as they are not the usual ones."""
        facts = self.facts
        options = [name for name in OPTIONS if facts.get(name)]
        options += [f"prefetch_factor={facts['prefetch']}"] if facts.get("prefetch") else []
        options += [str(facts["start_method"])] if facts.get("start_method") else []
        return options + (["in_order=False"] if facts.get("in_order") is False else [])


def analyze(runs: Sequence[Run]) -> list[UsedLoader]:
    """Return the loaders of scripts, each with all runs that used it; empty for trainings of this project."""
    used: dict[str, tuple[list[str], LoaderFacts]] = {}
    for run in runs:
        for facts in run.loaders:
            numbers, _ = used.setdefault(repr(sorted(facts.items())), ([], facts))
            numbers.append(str(run.number))
    return [UsedLoader(numbers, facts.get("windows", []), facts) for numbers, facts in used.values()]


def short_name(path: object) -> str:
    """Return the name of a class without its module; empty for None."""
    return str(path or "").rpartition(".")[2]
