"""The phase of a window at each moment, reconstructed from the intervals of its steps."""

from array import array

import numpy as np

from epochmeter.shared.record import INTERVALS

PHASES = ("overhead", "stall", "copy", "compute")
"""In the order of a step: the wait for a batch ends when the batch is ready, so the rest of the gap is before it."""


class Timeline:
    """The phases of a window, in seconds since the window was opened.

    Attributes:
        steps_s: Sum of all intervals of the steps, before they are fitted to the window.
        phases_s: Duration of each phase, in the order of `PHASES`.
    """

    def __init__(self, rows: array, window_s: float) -> None:
        """Reconstruct the phases from steps as in `steps.bin`; the time after the last step is overhead."""
        gap, wait, copy, compute = np.frombuffer(rows, np.float32).astype(float).reshape(-1, len(INTERVALS)).T
        stall = np.minimum(gap, wait)
        lasts = np.stack([gap - stall, stall, copy, compute], axis=1)
        self.window_s = window_s
        self.steps_s = float(lasts.sum())
        lasts *= min(1.0, window_s / self.steps_s)  # rows are rounded and from another clock
        self._durations = np.vstack([lasts, [window_s - lasts.sum(), 0.0, 0.0, 0.0]])
        self.phases_s = self._durations.sum(axis=0)
        self._before = np.cumsum(self._durations, axis=0) - self._durations
        self._starts = self._before.sum(axis=1)
        self._offsets = np.cumsum(self._durations, axis=1) - self._durations

    def spent_s(self, times_s: np.ndarray) -> np.ndarray:
        """Seconds of each phase, in columns, from the window's start to each of the moments."""
        step, elapsed_s = self._locate(times_s)
        return self._before[step] + np.clip(elapsed_s, 0.0, self._durations[step])

    def at(self, times_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The phase at each moment, as an index into `PHASES`, and the elapsed fraction of that phase (0 to 1)."""
        step, elapsed_s = self._locate(times_s)
        phase = np.where((elapsed_s >= 0) & (self._durations[step] > 0), np.arange(len(PHASES)), 0).max(axis=1)
        moment = np.arange(len(times_s))
        return phase, elapsed_s[moment, phase] / np.maximum(self._durations[step, phase], 1e-12)

    def _locate(self, times_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The step at each moment, and the time since each of its phases began (negative: not yet)."""
        step = np.maximum(np.searchsorted(self._starts, times_s, side="right") - 1, 0)
        return step, (times_s - self._starts[step])[:, None] - self._offsets[step]
