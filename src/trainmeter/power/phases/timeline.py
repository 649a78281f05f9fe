"""Which phase a window was in at each moment, rebuilt from the intervals of its steps."""

from __future__ import annotations

from array import array

import numpy as np

from trainmeter.record import INTERVALS

PHASES = ("overhead", "stall", "copy", "compute")
"""In the order of a step: the wait for a batch ends when the batch is there, so what else the gap holds lies before."""
TINY = 0.001
"""Of the window: a phase with less time shows no power of its own."""


class Timeline:
    """The phases of a window, in seconds since it was opened.

    `own` marks the phases that have a column: those that are tiny, or never were, are counted with the largest.
    """

    def __init__(self, rows: array, window_s: float) -> None:
        """`rows` are the window's steps as in `steps.bin`; what the last of them leaves of it is overhead."""
        gap, wait, copy, compute = np.frombuffer(rows, np.float32).astype(float).reshape(-1, len(INTERVALS)).T
        stall = np.minimum(gap, wait)
        lasts = np.stack([gap - stall, stall, copy, compute], axis=1)
        self.window_s = window_s
        self.steps_s = float(lasts.sum())
        lasts *= min(1.0, window_s / self.steps_s)  # the rows are rounded and of another clock: never past the end
        lasts = np.vstack([lasts, [window_s - lasts.sum(), 0.0, 0.0, 0.0]])
        self.phases_s = lasts.sum(axis=0)
        self.own = self.phases_s >= TINY * window_s
        lasts[:, self.phases_s.argmax()] += lasts[:, ~self.own].sum(axis=1)
        self._lasts = lasts[:, self.own]
        self.columns_s = self._lasts.sum(axis=0)
        self._before = np.cumsum(self._lasts, axis=0) - self._lasts
        self._begins = self._before.sum(axis=1)
        self._offsets = np.cumsum(self._lasts, axis=1) - self._lasts

    def spent_s(self, times_s: np.ndarray) -> np.ndarray:
        """The seconds of each phase, in columns, from the window's open to each of the moments."""
        step = np.maximum(np.searchsorted(self._begins, times_s, side="right") - 1, 0)
        within = (times_s - self._begins[step])[:, None] - self._offsets[step]
        return self._before[step] + np.clip(within, 0.0, self._lasts[step])

    def shares(self, times_s: np.ndarray, averaging_s: float) -> np.ndarray:
        """The share of each phase, in columns, of the stretch of `averaging_s` that ends at each of the moments."""
        return (self.spent_s(times_s) - self.spent_s(times_s - averaging_s)) / averaging_s

    def split(self, energy_j: np.ndarray, half_width_j: np.ndarray) -> tuple[list[float], list[float]]:
        """Energy and half width of each phase from those of the columns.

        A tiny phase is given its time's share of the largest phase, and all of that as its half width.
        """
        largest = self.phases_s.argmax()
        energy, half_width = np.zeros(len(PHASES)), np.zeros(len(PHASES))
        energy[self.own], half_width[self.own] = energy_j, half_width_j
        tiny_s = np.where(self.own, 0.0, self.phases_s)
        tiny_j = energy[largest] * tiny_s / (self.phases_s[largest] + tiny_s.sum())
        energy[largest] -= tiny_j.sum()
        return (energy + tiny_j).tolist(), (half_width + tiny_j).tolist()
