"""Where the time of a run went so far, while it goes on."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from epochmeter.results.account import OPEN, account_of
from epochmeter.results.run_folder import READ_ERRORS
from epochmeter.results.run_info import Moments, RunInfo
from epochmeter.shared.record import Record
from epochmeter.shared.units import NANOSECOND

AGE = 0.02  # maximum age in s per recorded window, as that of the metrics: long runs are divided less often
MAX_STEPS = 100_000  # whose times are read, for the warm-up of the first ones


class RunAccount:
    """The account of one run, which is divided again after new windows; in between, only the last row grows."""

    def __init__(self, folder: Path) -> None:
        self._record = Record(folder)
        self._metrics: Mapping[str, float] = {}
        self._count, self._at_ns = -1, 0  # number of windows, and the time, of these metrics
        self._moments = Moments()

    def read(
        self, run: RunInfo, windows: Sequence[Mapping[str, Any]], warmup_epochs: int, now_ns: int
    ) -> Mapping[str, float]:
        """Return the `run/` metrics up to a time on the monotonic clock, or to the last one that is recorded."""
        known = [value for key, value in run.moments.items() if key.endswith("_ns") and isinstance(value, int)]
        now_ns = max([now_ns, *known, *(window["closed_ns"] for window in windows[-1:])])
        is_old = not 0 <= (now_ns - self._at_ns) * NANOSECOND < AGE * len(windows)
        if self._moments != run.moments or not windows or (self._count != len(windows) and is_old):
            self._count, self._at_ns, self._moments = len(windows), now_ns, Moments(**run.moments)
            self._metrics = {}
            with suppress(*READ_ERRORS):  # a damaged window, or another version's
                steps = self._record.steps(0, MAX_STEPS)
                self._metrics = account_of(run, windows, steps, warmup_epochs, now_ns).metrics
        since_s = (now_ns - self._at_ns) * NANOSECOND
        grown = {name: self._metrics[name] + since_s for name in (OPEN, "run/wall_s") if name in self._metrics}
        return {**self._metrics, **grown}
