"""The loaders whose passes are windows of a process, with their facts."""

from collections.abc import Sequence
from typing import cast

from epochmeter.results.run_info import LoaderFacts
from epochmeter.segmentation.passes import Pass
from epochmeter.segmentation.windows import EPOCH

NUMBERS = ("kind", "object", "loader", "data")
"""Facts that number objects, and so differ between loaders that are alike."""


class UsedLoaders:
    """The loaders of recorded windows, each once in each of its states; loaders that are alike are one."""

    def __init__(self) -> None:
        self._used: dict[str, LoaderFacts] = {}  # the last used one is the last

    def note(self, window: str, ended: Pass) -> None:
        """Note that a pass is a window."""
        facts = {name: value for name, value in ended.loader.facts.items() if name not in NUMBERS}
        facts |= {"batches": ended.length} if not ended.is_continued else {}
        key = repr(sorted(facts.items()))
        alike = self._used.pop(key, None)
        windows = dict.fromkeys([*(alike["windows"] if alike else []), window])
        self._used[key] = cast(LoaderFacts, {**facts, "windows": [*windows]})

    @property
    def documents(self) -> Sequence[LoaderFacts]:
        """The facts on each, and the names of its windows: the last one that trained is the first."""
        latest_first = [*self._used.values()][::-1]
        return sorted(latest_first, key=lambda facts: EPOCH not in facts["windows"])
