"""Simulated epochs of training with known energy by phase: their steps and the readings of a power sensor."""

from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from epochmeter.power.meters.rails import filter_response
from epochmeter.power.phases.sensor_model import TOLERANCE_FRACTION, TOLERANCE_S
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.uncertainty import Response

LEVELS_W = {"overhead": 6.0, "stall": 5.0, "copy": 8.0, "compute": 15.0}  # by phase, in the order of a step
AROUND_W, AROUND_S = 4.0, 3.0
OPENED_NS = 5_000_000_000
TAIL_S = 0.003
FOUR = (0.1, 0.3, 0.05, 0.55)
TWO = (0.0, 0.3, 0.0, 0.7)  # fractions of a step by phase: all four phases, and stall and compute only, as on a CPU
FILTER_SAMPLES = 16  # of an INA3221 that averages: its time constant is this number of rounds
PIECES = 40  # number of equal parts of a phase within which power is constant

Profile = Callable[[np.ndarray, np.ndarray, np.random.Generator], None]
"""Changes watts (step, phase, piece) in place, given the duration of each phase (step, phase)."""


class Epoch(NamedTuple):
    """The arguments of `phase_energy`, and the true energies."""

    rows: array
    opened_ns: int
    closed_ns: int
    times_ns: array
    watts: array
    gross_j: float
    known_j: dict[str, float]

    def given(self, response: Response | None = None) -> tuple[array, int, int, PowerSamples, float]:
        powers = PowerSamples(self.times_ns, {}, self.watts, response)
        return self.rows, self.opened_ns, self.closed_ns, powers, self.gross_j


class Sensor(NamedTuple):
    """A power sensor that is read about every `period_s`.

    A reading is the mean of the last `averaging_s`, `lag_s` late, and is renewed every `held_s`. It has white noise and
    is rounded to `step_w`. If it is a filter, the weights of past power decrease exponentially, with the time constant
    `averaging_s`.
    """

    averaging_s: float = 0.0
    lag_s: float = 0.0
    noise_w: float = 0.2
    step_w: float = 0.04
    period_s: float = 0.02
    is_filter: bool = False
    held_s: float = 0.0


def elapsed(lasts_s: np.ndarray, phase: int) -> tuple[np.ndarray, np.ndarray]:
    """Time since the start of a phase, at the middle of its pieces: as a fraction of the phase and in seconds."""
    fraction = (np.arange(PIECES) + 0.5) / PIECES
    return fraction, lasts_s[:, phase, None] * fraction


def compute_ramps_down(watts: np.ndarray, lasts_s: np.ndarray, rng: np.random.Generator) -> None:
    """Compute falls from 18 to 9 W within each step."""
    watts[:, 3] = 18 - 9 * elapsed(lasts_s, 3)[0]


def stall_works_then_waits(watts: np.ndarray, lasts_s: np.ndarray, rng: np.random.Generator) -> None:
    """A stall decodes at 12 W for two fifths of its usual time, then waits at 4 W."""
    watts[:, 1] = np.where(elapsed(lasts_s, 1)[1] < 0.4 * np.median(lasts_s[:, 1]), 12.0, 4.0)


def workers_refill(watts: np.ndarray, lasts_s: np.ndarray, rng: np.random.Generator) -> None:
    """DataLoader workers draw 5 W during the first part of compute, until the queue is full."""
    full = rng.uniform(0.15, 0.6, (len(watts), 1))
    watts[:, 3] += np.where(elapsed(lasts_s, 3)[0] < full, 5.0, 0.0)


def long_stalls_draw_more(watts: np.ndarray, lasts_s: np.ndarray, rng: np.random.Generator) -> None:
    """A stall's power grows with its duration."""
    watts[:, 1] = np.clip(5 + 8 * (lasts_s[:, 1] / lasts_s[:, 1].mean() - 1), 2.0, 20.0)[:, None]


def all_four(watts: np.ndarray, lasts_s: np.ndarray, rng: np.random.Generator) -> None:
    compute_ramps_down(watts, lasts_s, rng)
    workers_refill(watts, lasts_s, rng)
    long_stalls_draw_more(watts, lasts_s, rng)
    watts[:, 1] += np.where(elapsed(lasts_s, 1)[1] < 0.4 * np.median(lasts_s[:, 1]), 5.0, 0.0)


HELD_OUT: dict[str, Profile] = {
    "compute ramps down": compute_ramps_down,
    "stall works, then waits": stall_works_then_waits,
    "workers refill during compute": workers_refill,
    "longer stalls draw more": long_stalls_draw_more,
    "all four": all_four,
}
"""Power with structure within the phases; no constant of the method was chosen by these."""


def epoch(
    *,
    seed: int,
    window_s: float = 60.0,
    step_s: float = 0.06,
    shares: tuple[float, ...] = FOUR,
    uneven: float = 0.3,
    sensor: Sensor = Sensor(),  # noqa: B008
    levels_w: dict[str, float] = LEVELS_W,
    profile: Profile | None = None,
) -> Epoch:
    """Simulate an epoch of about `window_s`, whose phases vary in duration by the fraction `uneven`."""
    rng = np.random.default_rng(seed)
    spread = uneven * np.array([0.5, 1.0, 0.3, 0.1])
    varied = np.exp(spread * rng.standard_normal((round(window_s / step_s), 4)) - spread**2 / 2)
    lasts_s = step_s * np.array(shares) * varied
    watts = np.tile(np.array(list(levels_w.values()))[:, None], (len(lasts_s), 1, PIECES if profile else 1))
    if profile:
        profile(watts, lasts_s, rng)
    pieces = watts.shape[2]
    closed_s = lasts_s.sum() + TAIL_S
    begins_s = np.cumsum(np.append(0.0, np.append(np.repeat(lasts_s.ravel() / pieces, pieces), TAIL_S)))
    joules = np.diff(begins_s) * np.append(watts.ravel(), levels_w["overhead"])
    by_phase = joules[:-1].reshape(-1, 4, pieces).sum(axis=(0, 2)) + np.array([joules[-1], 0, 0, 0])
    ends_s = np.concatenate([[-AROUND_S], begins_s, [closed_s + AROUND_S]])
    until_j = np.cumsum(np.concatenate([[0.0, AROUND_S * AROUND_W], joules, [AROUND_S * AROUND_W]]))
    times_s, read_w = read(sensor, closed_s, ends_s, until_j, rng)
    overhead, stall, copy, compute = lasts_s.T
    rows = array("f", np.stack([overhead + stall, stall, copy, compute], axis=1).astype(np.float32).ravel())
    times_ns = array("q", OPENED_NS + np.round(times_s * 1e9).astype(np.int64))
    known_j = dict(zip(levels_w, by_phase.tolist(), strict=True))
    closed_ns = OPENED_NS + round(closed_s * 1e9)
    return Epoch(rows, OPENED_NS, closed_ns, times_ns, array("d", read_w), float(joules.sum()), known_j)


def read(
    sensor: Sensor, closed_s: float, ends_s: np.ndarray, until_j: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Times of the samples, from one second before the window to one second after it, and the readings."""
    times_s = np.cumsum(sensor.period_s * rng.uniform(0.75, 1.25, int((closed_s + 2) / sensor.period_s * 1.1))) - 1
    times_s = times_s[times_s < closed_s + 1]
    renewal = np.floor(times_s / sensor.held_s).astype(int) if sensor.held_s else np.arange(len(times_s))
    measured_s = (renewal * sensor.held_s if sensor.held_s else times_s) - sensor.lag_s

    def mean_w(from_s: np.ndarray, until_s: np.ndarray) -> np.ndarray:
        return (np.interp(until_s, ends_s, until_j) - np.interp(from_s, ends_s, until_j)) / (until_s - from_s)

    averaging_s = max(sensor.averaging_s, 1e-6)
    if sensor.is_filter:
        ages_s = -averaging_s * np.log1p(-(np.arange(200) + 0.5) / 200)
        read_w = np.mean([mean_w(measured_s - age_s - 5e-4, measured_s - age_s + 5e-4) for age_s in ages_s], axis=0)
    else:
        read_w = mean_w(measured_s - averaging_s, measured_s)
    read_w = read_w + sensor.noise_w * rng.standard_normal(np.ptp(renewal) + 1)[renewal - renewal[0]]
    return times_s, np.round(read_w / sensor.step_w) * sensor.step_w


def facts(sensor: Sensor, seed: int) -> Response:
    """The response of a sensor in a datasheet, which is inexact; renewal is a percent slower than stated."""
    off_s = TOLERANCE_FRACTION * (sensor.averaging_s or sensor.held_s) + TOLERANCE_S
    wider_s, later_s = np.random.default_rng(seed).uniform(-0.7, 0.7, 2) * off_s
    averaging_s = max(0.0, sensor.averaging_s + wider_s)
    if sensor.is_filter:
        return filter_response(averaging_s / FILTER_SAMPLES, FILTER_SAMPLES)
    return Response(averaging_s, max(0.0, sensor.lag_s + later_s), sensor.held_s / 1.01)
