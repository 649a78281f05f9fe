"""Energy that all metered parts used during each phase of a window: docs/phase-energy.md describes the method."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from epochmeter.power.phases.sensor_model import Sensor, SensorFit
from epochmeter.power.phases.step_timeline import StepTimeline, Timeline
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.renewals import find_renewals, one_per_renewal
from epochmeter.power.uncertainty import NORMAL_95, Response, renewal_s, repeats_readings
from epochmeter.shared.types import FloatArray
from epochmeter.shared.units import NANOSECOND, percent

MIN_SAMPLES = 50  # fewest samples in either half of the window
THIRDS, MIN_SAMPLES_PER_THIRD = (0, 1 / 3, 2 / 3, 1), 5
"""Fewest samples in each third of a phase's time: sampling in step with the training is not representative."""
MAX_MISFIT = 0.01  # fraction of a window by which its steps may be longer than the window
MAX_SAMPLES, STRETCHES = 20_000, 20
"""Limits CPU time to less than a second: of more samples, this many evenly distributed stretches are used."""
RENEWAL_ERROR = 0.07  # width of the distribution of the errors of renewals, as a fraction of their period
RESOLVED = 0.5  # a phase is resolved if this fraction of the power in the readings assigned to it is its own
CONTRADICTED = 2.5  # a stated sensor is wrong if it leaves more than this many times the residual of the best fit
MIN_EXPLAINED = 0.7  # fraction of the variance that an estimated sensor must explain: a poor fit may be a wrong sensor
EDGE = 2.5  # how far a phase's power near its borders may be from its mean, in standard deviations of the residuals
MAX_SENSORS = 16  # number of plausible sensors for which the energies are computed again
MAX_DISAGREEMENT = 0.2  # fraction of the gross energy by which the sum of the samples may differ from it
WIDEST, SMALL, WIDEST_OF_SMALL = 0.2, 0.05, 0.02
"""Largest half-width as a fraction of the phase's energy. If that energy is less than the fraction `SMALL` of the gross
energy: largest half-width as a fraction of the gross energy."""


PARTS = "phases of compute: {}"


class PhaseEnergy(NamedTuple):
    """Energy by phase, and averaging time and lag of the power sensor."""

    energy_j: Mapping[str, float] = MappingProxyType({})
    """Joules of each phase whose energy is precise enough. They sum to the gross energy if none is missing."""
    half_width_j: Mapping[str, float] = MappingProxyType({})
    """Their 95 % confidence intervals (plus or minus), in joules."""
    averaging_s: float | None = None
    lag_s: float | None = None
    reason: str | None = None  # why phases are missing; None if none is
    missing: Mapping[str, str] = MappingProxyType({})  # why each is, if only some are

    def to_record(self) -> dict[str, object]:
        """The fields that the record keeps in addition to the joules."""
        return {"averaging_s": self.averaging_s, "lag_s": self.lag_s, "half_width_j": dict(self.half_width_j)}

    def without(self, phase: str) -> "PhaseEnergy":
        """The same without the joules of a phase."""
        energy_j, half_width_j = ({**values} for values in (self.energy_j, self.half_width_j))
        energy_j.pop(phase, None)
        half_width_j.pop(phase, None)
        return self._replace(energy_j=energy_j, half_width_j=half_width_j)

    def with_parts(self, refined: "PhaseEnergy", parts: Sequence[str]) -> "PhaseEnergy":
        """The same with the joules of parts of a phase, and the reasons of those that are missing."""
        energy_j = {part: refined.energy_j[part] for part in parts if part in refined.energy_j}
        half_width_j = {part: refined.half_width_j[part] for part in energy_j}
        texts = [refined.missing[part] for part in parts if part in refined.missing]
        if not (energy_j or texts) and refined.reason:
            texts = [PARTS.format(refined.reason)]
        return self._replace(
            energy_j={**self.energy_j, **energy_j},
            half_width_j={**self.half_width_j, **half_width_j},
            reason=", ".join([*([self.reason] if self.reason else []), *texts]) or None,
        )


class UnresolvedError(Exception):
    """The samples do not resolve the phases; the message is the reason."""


def phase_energy(
    rows: FloatArray,
    opened_ns: int,
    closed_ns: int,
    powers: PowerSamples,
    gross_j: float,
    gross_half_width_j: float = 0.0,
) -> PhaseEnergy:
    """Estimate the energy used during each phase of a window, whose steps are `rows` of `INTERVALS` in seconds.

    Args:
        powers: Samples from about the window's start to about its end. If they have no response, it is estimated.
        gross_j: Energy of the window, to which the phases sum.
        gross_half_width_j: Half-width of the 95 % confidence interval of `gross_j`.
    """
    window_s = (closed_ns - opened_ns) * NANOSECOND
    if not any(rows):  # none, or none that took time
        return PhaseEnergy(reason="the window has no steps.")
    timeline = StepTimeline(rows, window_s)
    if timeline.steps_s > window_s * (1 + MAX_MISFIT):
        reason = f"the steps take {timeline.steps_s:.3f} s, longer than the window of {window_s:.3f} s."
        return PhaseEnergy(reason=reason)
    return timeline_energy(timeline, opened_ns, powers, gross_j, gross_half_width_j)


def stretch_energy(
    names: Sequence[str],
    phases: Sequence[int],
    lasts_s: FloatArray,
    opened_ns: int,
    powers: PowerSamples,
    gross_j: float,
    gross_half_width_j: float = 0.0,
) -> PhaseEnergy:
    """Estimate the energy used during each phase of a window that consists of stretches of one phase each.

    Args:
        names: Of the phases; for the other arguments see `phase_energy`.
        phases: Of each stretch, as an index into the names.
        lasts_s: How long each stretch lasts.
    """
    timeline = Timeline(np.array(phases), np.array(lasts_s), names)
    return timeline_energy(timeline, opened_ns, powers, gross_j, gross_half_width_j)


def timeline_energy(
    timeline: Timeline, opened_ns: int, powers: PowerSamples, gross_j: float, gross_half_width_j: float = 0.0
) -> PhaseEnergy:
    """Estimate the energy used during each phase of a timeline; arguments as those of `phase_energy`."""
    watts = np.frombuffer(powers.total_w)
    read = np.isfinite(watts)
    times_s = (np.frombuffer(powers.times_ns, np.int64)[read] - opened_ns) * NANOSECOND
    try:
        times_s, watts, response = _renewed(times_s, watts[read], powers.response)
        if len(times_s) > MAX_SAMPLES:  # evenly distributed stretches of a long window
            stretch = MAX_SAMPLES // STRETCHES
            begins = np.linspace(0, len(times_s) - stretch, STRETCHES).astype(int)
            used = (begins[:, None] + np.arange(stretch)).ravel()
            times_s, watts = times_s[used], watts[used]
        return _solve(timeline, times_s, watts, gross_j, gross_half_width_j, response)
    except UnresolvedError as reason:
        return PhaseEnergy(reason=str(reason))
    except np.linalg.LinAlgError:
        return PhaseEnergy(reason="the sensor mixes the phases equally.")


def _renewed(
    times_s: np.ndarray, watts: np.ndarray, response: Response | None
) -> tuple[np.ndarray, np.ndarray, Response | None]:
    """Replace the samples of a sensor that holds its readings by one sample per reading, at the time of its renewal.

    If training is in step with the sensor, all readings are then of the same parts of the phases.
    """
    if len(times_s) < MIN_SAMPLES:
        return times_s, watts, response
    if response and (response.is_filter or not repeats_readings(float(np.median(np.diff(times_s))), response)):
        return times_s, watts, response
    period_s = response.held_s if response else renewal_s(times_s, watts)
    renewed_s = find_renewals(times_s, watts, period_s, is_estimated=not response) if period_s else None
    if renewed_s is None:
        _require(not response, "the samples do not show when the sensor renews its reading.")
        return times_s, watts, response
    samples, times_s = one_per_renewal(times_s, renewed_s)
    if response:  # the errors of the times have the effect of a short averaging time around them
        error_s = RENEWAL_ERROR * response.held_s
        response = response._replace(renewal_s=error_s, lag_s=response.lag_s - error_s / 2)
    return times_s, watts[samples], response


def _solve(
    timeline: Timeline,
    times_s: np.ndarray,
    watts: np.ndarray,
    gross_j: float,
    gross_half_width_j: float,
    response: Response | None,
) -> PhaseEnergy:
    _require(gross_j > 0, "the window used no energy.")
    half_s = timeline.window_s / 2
    fewest = min(int(((times_s >= from_s) & (times_s < from_s + half_s)).sum()) for from_s in (0, half_s))
    _require(fewest >= MIN_SAMPLES, f"{fewest} power samples in half of the window, at least {MIN_SAMPLES} needed.")
    sensors = _sensors(SensorFit(timeline, times_s, watts), Sensor.of(response) if response else None)
    energies_j, half_widths_j = zip(*(_solution(timeline, sensor, times_s, watts) for sensor in sensors), strict=True)
    scaled_j = [energy_j * (gross_j / energy_j.sum()) for energy_j in energies_j]
    sampled_j = energies_j[0].sum()
    differs = f"the power samples add up to {sampled_j:.4g} J, but the window used {gross_j:.4g} J."
    _require(abs(sampled_j - gross_j) <= MAX_DISAGREEMENT * gross_j, differs)
    between_j = np.max(np.abs(np.array(scaled_j) - scaled_j[0]), axis=0)
    # A wrong sensor and a wrong total shift a phase by the same amount in all steps: they are no random errors.
    half_width_j = half_widths_j[0] + between_j + scaled_j[0] * gross_half_width_j / gross_j
    return _precise_phases(timeline.names, scaled_j[0], half_width_j, gross_j, sensors[0])


def _sensors(search: SensorFit, stated: Sensor | None) -> list[Sensor]:
    """List the sensor for the solution, then other plausible sensors."""
    if stated:
        least = search.residual(search.best_sensor)
        contradicted = "the readings contradict the stated averaging time and lag of the power sensor."
        _require(search.residual(stated) <= CONTRADICTED * least, contradicted)
        return [stated, *stated.similar()]
    fit = f"unknown power sensor: the best fit explains {percent(search.explained)} of the variance of the power"
    _require(search.explained >= MIN_EXPLAINED, f"{fit}, at least {percent(MIN_EXPLAINED)} needed.")
    return [search.best_sensor, *search.best_sensor.similar(), *_spread(search.plausible)]


def _spread(sensors: list[Sensor]) -> list[Sensor]:
    """Select the extremes in age and in averaging time, and some sensors between them."""
    by_age = sorted(sensors, key=lambda sensor: sensor.center_s)
    by_width = sorted(sensors, key=lambda sensor: sensor.averaging_s)
    every = max(1, len(sensors) * 2 // MAX_SENSORS)
    return list(dict.fromkeys([*by_age[::every], by_age[-1], *by_width[::every], by_width[-1]]))


def _solution(
    timeline: Timeline, sensor: Sensor, times_s: np.ndarray, watts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solve for the energy by phase and its half-width, given a sensor.

    The mean reading of a phase is a mixture of all phases' powers. The matrix of their fractions is inverted, as in the
    correction of images for the same smoothing (geometric transfer matrix; Rousset et al., J. Nucl. Med. 39, 1998).
    """
    within = sensor.within(timeline, times_s)
    times_s, watts = times_s[within], watts[within]
    shares = sensor.shares(timeline, times_s)  # shape (readings, phases)
    assigned, elapsed = timeline.at(times_s - sensor.center_s)
    resolved = _resolved_phases(shares, assigned, elapsed)
    short = f"all phases are too short for a sensor with an averaging time of {sensor.averaging_s:.3g} s."
    _require(bool(resolved.any()), short)
    # Each resolved phase has a power level; an unresolved one is assumed to have that of the longest resolved phase.
    phases = np.arange(len(resolved))
    level = np.where(resolved, phases, (timeline.phases_s * resolved).argmax())
    levels = np.eye(len(phases))[level][:, resolved]  # shape (phases, levels): 1 for the level of each phase
    belongs = levels[assigned]  # shape (readings, levels)
    counts = belongs.sum(axis=0)
    fractions = (belongs.T @ shares) / counts[:, None]  # shape (levels, phases): in the mean reading of each level
    mixed = fractions @ levels
    levels_w = np.linalg.solve(mixed, belongs.T @ watts / counts)
    joules_per_watt = (timeline.phases_s @ levels)[:, None] * np.linalg.inv(mixed)  # by level, per watt of each mean
    rms_w = np.sqrt(belongs.T @ (watts - shares @ levels @ levels_w) ** 2 / counts)
    unknown_w = levels_w.max() * ~resolved
    smeared_w = abs(np.eye(len(mixed)) - mixed) @ (EDGE * rms_w / np.diag(mixed)) + fractions @ unknown_w
    half_width_j = timeline.phases_s * unknown_w
    half_width_j[resolved] += NORMAL_95 * np.sqrt(joules_per_watt**2 @ (rms_w**2 / counts))  # sampling
    half_width_j[resolved] += abs(joules_per_watt) @ smeared_w  # smoothing at the borders
    return timeline.phases_s * (levels @ levels_w), half_width_j


def _resolved_phases(shares: np.ndarray, assigned: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
    """Whether each phase has readings in every third of its time that consist mostly of its own power."""
    phases = np.arange(shares.shape[1])
    counts = np.array([np.histogram(elapsed[assigned == phase], THIRDS)[0] for phase in phases])
    own_shares = (shares * (assigned[:, None] == phases)).sum(axis=0)
    resolved: np.ndarray = (own_shares > RESOLVED * counts.sum(axis=1)) & (counts.min(axis=1) >= MIN_SAMPLES_PER_THIRD)
    return resolved


def _precise_phases(
    names: Sequence[str], energy_j: np.ndarray, half_width_j: np.ndarray, gross_j: float, sensor: Sensor
) -> PhaseEnergy:
    """Keep the phases whose energy is precise enough; the reason names the missing ones."""
    energy, half_width, missing = {}, {}, {}
    for phase, joules, wide_j in zip(names, energy_j.tolist(), half_width_j.tolist(), strict=True):
        most_j = WIDEST * joules if joules >= SMALL * gross_j else WIDEST_OF_SMALL * gross_j
        if joules >= 0 and wide_j <= most_j:
            energy[phase], half_width[phase] = joules, wide_j
        else:
            missing[phase] = f"{phase} {joules:.3g} J is uncertain by {wide_j:.3g} J (limit {most_j:.3g} J)"
    reason = ", ".join(missing.values()) or None
    return PhaseEnergy(energy, half_width, sensor.averaging_s, sensor.lag_s, reason, missing)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UnresolvedError(otherwise)
