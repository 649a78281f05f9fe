"""Epochs of training whose energy by phase is known: their steps, and what a sensor tells of their power."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

LEVELS_W = {"overhead": 6.0, "stall": 5.0, "copy": 8.0, "compute": 15.0}
"""By phase, in the order of a step."""
AROUND_W, AROUND_S = 4.0, 3.0
OPENED_NS = 5_000_000_000
TAIL_S = 0.003
FOUR = (0.1, 0.3, 0.05, 0.55)
TWO = (0.0, 0.3, 0.0, 0.7)
"""Shares of a step that its phases have: of all four, and of stall and compute alone, as on a CPU."""


class Epoch(NamedTuple):
    """What `phase_energy` is given, and what it should find."""

    rows: array
    opened_ns: int
    closed_ns: int
    times_ns: array
    watts: array
    gross_j: float
    known_j: dict[str, float]

    def given(self) -> tuple[array, int, int, array, array, float]:
        return self[:6]


class Sensor(NamedTuple):
    """Read about every `period_s`; tells the mean of the last `averaging_s` (or, `fading`, less and less of what was
    before), `lag_s` late, as it was at the last multiple of `held_s`, with white noise, in steps."""

    averaging_s: float = 0.0
    lag_s: float = 0.0
    noise_w: float = 0.2
    step_w: float = 0.04
    period_s: float = 0.02
    fading: bool = False
    held_s: float = 0.0


def steps(
    window_s: float, step_s: float, shares: tuple[float, ...], rng: np.random.Generator, *, uneven: float, ramp: float
) -> np.ndarray:
    """Seconds by step and phase; the stall is `uneven` times as long, give or take, and grows by `ramp` of itself."""
    count = round(window_s / step_s)
    spread = uneven * np.array([0.5, 1.0, 0.3, 0.1])
    lasts_s = step_s * np.array(shares) * np.exp(spread * rng.standard_normal((count, 4)) - spread**2 / 2)
    lasts_s[:, 1] *= 1 + ramp * np.linspace(-1, 1, count)
    return lasts_s


def epoch(
    *,
    seed: int,
    window_s: float = 60.0,
    step_s: float = 0.06,
    shares: tuple[float, ...] = FOUR,
    uneven: float = 0.3,
    ramp: float = 0.0,
    warming: float = 0.0,
    sensor: Sensor = Sensor(),  # noqa: B008
    levels_w: dict[str, float] = LEVELS_W,
    lasts_s: np.ndarray | None = None,
) -> Epoch:
    """An epoch of about `window_s`, whose power grows by `warming` of itself until its end."""
    rng = np.random.default_rng(seed)
    if lasts_s is None:
        lasts_s = steps(window_s, step_s, shares, rng, uneven=uneven, ramp=ramp)
    watts = np.tile(list(levels_w.values()), (len(lasts_s), 1))
    closed_s = lasts_s.sum() + TAIL_S
    begins_s = np.cumsum(np.append(0.0, np.append(lasts_s.ravel(), TAIL_S)))
    middles_s = (begins_s[1:] + begins_s[:-1]) / 2
    power_w = np.append(watts.ravel(), levels_w["overhead"]) * (1 + warming * middles_s / closed_s)
    joules = np.diff(begins_s) * power_w
    by_phase = joules[:-1].reshape(-1, 4).sum(axis=0) + np.array([joules[-1], 0, 0, 0])
    ends_s = np.concatenate([[-AROUND_S], begins_s, [closed_s + AROUND_S]])
    until_j = np.cumsum(np.concatenate([[0.0, AROUND_S * AROUND_W], joules, [AROUND_S * AROUND_W]]))
    times_s, seen_w = read(sensor, closed_s, ends_s, until_j, rng)
    overhead, stall, copy, compute = lasts_s.T
    return Epoch(
        rows=array("f", np.stack([overhead + stall, stall, copy, compute], axis=1).astype(np.float32).ravel()),
        opened_ns=OPENED_NS,
        closed_ns=OPENED_NS + round(closed_s * 1e9),
        times_ns=array("q", OPENED_NS + np.round(times_s * 1e9).astype(np.int64)),
        watts=array("d", seen_w),
        gross_j=float(joules.sum()),
        known_j=dict(zip(levels_w, by_phase.tolist(), strict=True)),
    )


def read(
    sensor: Sensor, closed_s: float, ends_s: np.ndarray, until_j: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """When the sensor was read, from a second before the window to a second after it, and what it told."""
    pauses_s = sensor.period_s * rng.uniform(0.75, 1.25, int((closed_s + 2) / sensor.period_s * 1.1))
    times_s = np.cumsum(pauses_s) - 1
    times_s = times_s[times_s < closed_s + 1]
    seen_s = (np.floor(times_s / sensor.held_s) * sensor.held_s if sensor.held_s else times_s) - sensor.lag_s

    def mean_w(from_s: np.ndarray, until_s: np.ndarray) -> np.ndarray:
        return (np.interp(until_s, ends_s, until_j) - np.interp(from_s, ends_s, until_j)) / (until_s - from_s)

    averaging_s = max(sensor.averaging_s, 1e-6)
    if sensor.fading:
        ages_s = -averaging_s * np.log1p(-(np.arange(200) + 0.5) / 200)
        told_w = np.mean([mean_w(seen_s - age_s - 5e-4, seen_s - age_s + 5e-4) for age_s in ages_s], axis=0)
    else:
        told_w = mean_w(seen_s - averaging_s, seen_s)
    told_w = told_w + sensor.noise_w * rng.standard_normal(len(times_s))
    return times_s, np.round(told_w / sensor.step_w) * sensor.step_w
