"""The phase of a window at each moment, reconstructed from the intervals of its steps."""

from collections.abc import Sequence

import numpy as np

from epochmeter.shared.record import INTERVALS
from epochmeter.shared.types import FloatArray
from epochmeter.shared.units import NANOSECOND

PHASES = ("overhead", "stall", "copy", "compute")
"""In the order of a step: the wait for a batch ends when the batch is ready, so the rest of the gap is before it."""


class Timeline:
    """The phases of a window, in seconds since the window was opened."""

    def __init__(self, phases: np.ndarray, durations_s: np.ndarray, names: Sequence[str]) -> None:
        """Create a timeline of stretches in order of time: their phases, as indices into `names`, and durations."""
        self.names = names
        self._phases, self._durations = phases[durations_s > 0], durations_s[durations_s > 0]
        self._edges = np.concatenate([[0.0], np.cumsum(self._durations)])
        spent = np.zeros((len(names), len(self._edges)))
        spent[self._phases, np.arange(1, len(self._edges))] = self._durations
        self._spent = np.cumsum(spent, axis=1)
        self.window_s, self.phases_s = float(self._edges[-1]), self._spent[:, -1]

    def spent_s(self, times_s: np.ndarray) -> np.ndarray:
        """Seconds of each phase, in columns, from the window's start to each of the moments."""
        return np.stack([np.interp(times_s, self._edges, spent) for spent in self._spent], axis=1)

    def at(self, times_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The phase at each moment, as an index into `names`, and the elapsed fraction of its stretch (0 to 1)."""
        stretch = np.searchsorted(self._edges, times_s, side="right") - 1
        stretch = np.clip(stretch, 0, len(self._phases) - 1)
        return self._phases[stretch], (times_s - self._edges[stretch]) / self._durations[stretch]


class StepTimeline(Timeline):
    """The phases of a window of training, `PHASES`; the time after the last step is overhead."""

    def __init__(self, rows: FloatArray, window_s: float) -> None:
        lasts = phase_durations_s(rows)
        self.steps_s = float(lasts.sum())  # before they are fitted to the window
        lasts *= min(1.0, window_s / self.steps_s)  # rows are rounded and from another clock
        durations = np.concatenate([lasts.ravel(), [window_s - lasts.sum()]])
        super().__init__(np.arange(len(durations)) % len(PHASES), durations, PHASES)


def phase_durations_s(rows: FloatArray) -> np.ndarray:
    """Return the duration of each phase, in columns, for the steps with these rows of `INTERVALS`."""
    gap, wait, copy, compute = np.frombuffer(rows, np.float32).astype(float).reshape(-1, len(INTERVALS)).T
    stall = np.minimum(gap, wait)
    return np.stack([gap - stall, stall, copy, compute], axis=1)


def step_borders_s(rows: FloatArray, opened_ns: int) -> np.ndarray | None:
    """Return the beginnings of consecutive steps with these rows of `INTERVALS`, and the end of the last one.

    They are in seconds of the clock of `opened_ns`, at which the first step began. Steps that took no time are left
    out; None if there is no other.
    """
    durations_s = phase_durations_s(rows).sum(axis=1)
    durations_s = durations_s[durations_s > 0]
    return opened_ns * NANOSECOND + np.cumsum([0.0, *durations_s]) if len(durations_s) else None
