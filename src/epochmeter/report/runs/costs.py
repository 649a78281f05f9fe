"""Time and energy of each configuration: per epoch, or up to its quality target."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from epochmeter.report.runs.configuration import Configuration, QualityTarget, quality_target
from epochmeter.report.runs.run import grouped
from epochmeter.report.statistics import Estimate, positive_means
from epochmeter.results.pareto import is_pareto_front

TIME, ENERGY, POWER, PEAK = (f"steady/{name}" for name in ("e2e_s", "energy_j", "power_mean_w", "power_peak_w"))
TIME_TO_TARGET, ENERGY_TO_TARGET = "total/time_to_target_s", "total/energy_to_target_j"
PER_EPOCH, TO_TARGET = (TIME, ENERGY), (TIME_TO_TARGET, ENERGY_TO_TARGET)
"""Metrics of time and energy by which charts compare."""
LIMIT, HIGHEST = "total/power_limit_w", "total/power_limit_max_w"


@dataclass(frozen=True)
class Cost:
    """Time and energy of a configuration, per epoch or up to its quality target (`target`).

    Attributes:
        times_s: One value per run.
        joules: One value per run; empty unless all runs measured the energy of the same parts of the machine.
        time: Geometric mean of the times, with an interval from the variances of all configurations.
    """

    configuration: Configuration
    times_s: Sequence[float]
    joules: Sequence[float]
    covers: str | None
    target: QualityTarget | None
    time: Estimate
    energy: Estimate | None

    @property
    def title(self) -> str:
        return self.configuration.title

    @property
    def time_s(self) -> float:
        return self.time.value

    @property
    def energy_j(self) -> float | None:
        return self.energy.value if self.energy else None

    @property
    def power_w(self) -> float | None:
        """Mean power; None without energy."""
        return None if self.energy_j is None else self.energy_j / self.time_s


def costs(configurations: Sequence[Configuration]) -> list[Cost]:
    """Return the costs per epoch, of the configurations whose time is known."""
    return list(_costs(tuple(configurations), TIME, ENERGY, None))


def costs_to_target(configurations: Sequence[Configuration]) -> list[Cost]:
    """Return the costs up to the quality target, of the configurations that reached it in all of their runs.

    Empty unless all configurations have the same target on the same dataset: others cannot be compared.
    """
    goals = {(quality_target(configuration.job), configuration.value("dataset")) for configuration in configurations}
    target = goals.pop()[0] if len(goals) == 1 else None
    return list(_costs(tuple(configurations), TIME_TO_TARGET, ENERGY_TO_TARGET, target)) if target else []


def ranked_costs(configurations: Sequence[Configuration]) -> list[Cost]:
    """Return the costs to choose by: up to the target if there is one that any configuration always reached."""
    return costs_to_target(configurations) or costs(configurations)


def comparable(ranked: Sequence[Cost]) -> dict[str, list[Cost]]:
    """Return the costs with comparable energy, by its scope, the largest group first."""
    groups = grouped(ranked, lambda cost: cost.covers)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))
    return {covers: group for covers, group in largest if covers is not None}


def pareto_front(ranked: Sequence[Cost]) -> set[Configuration]:
    """Return the configurations that no other one with comparable energy beats in both time and energy."""
    front: set[Configuration] = set()
    for group in comparable(ranked).values():
        is_on_front = is_pareto_front((cost.energy_j or 0.0, cost.time_s) for cost in group)
        front.update(cost.configuration for cost, on_front in zip(group, is_on_front, strict=True) if on_front)
    return front


def positive_values(configuration: Configuration, name: str) -> list[float]:
    """Return a metric's value for each run; empty unless every run has a positive one."""
    values = configuration.values(name)
    return values if all(value > 0 for value in values) else []


def max_power(ranked: Sequence[Cost]) -> tuple[float, bool]:
    """Return the maximum power of the devices in watts, and whether it is a limit that the runs recorded.

    It is the highest limit that the devices accept or that was applied (Zeus, NSDI 2023). Otherwise it is estimated
    from the largest power that was measured.
    """
    metered = [cost for cost in ranked if cost.joules]
    if not metered:
        raise ValueError("no energy, and so no power, was measured for any of these configurations")
    mean_w, entries = max(cost.power_w or 0.0 for cost in metered), [cost.configuration for cost in metered]
    limits_w = [
        (configuration.runs[0].power_limited_devices or 0) * limit_w
        for configuration in entries
        for limit_w in (*positive_values(configuration, HIGHEST), *positive_values(configuration, LIMIT))
    ]
    if (highest_w := max(limits_w, default=0.0)) >= mean_w:
        return highest_w, True
    return max(
        [mean_w, *(peak_w for configuration in entries for peak_w in positive_values(configuration, PEAK))]
    ), False


@lru_cache(maxsize=8)  # several parts of a report need those of the same configurations
def _costs(
    configurations: tuple[Configuration, ...], time: str, energy: str, target: QualityTarget | None
) -> list[Cost]:
    times_s = {
        configuration: values for configuration in configurations if (values := positive_values(configuration, time))
    }
    energies_j = {
        configuration: values
        for configuration in times_s
        if configuration.energy_scope and (values := positive_values(configuration, energy))
    }
    means_s, means_j = positive_means(times_s), positive_means(energies_j)
    results = []
    for configuration, seconds in times_s.items():
        joules = energies_j.get(configuration, [])
        covers = configuration.energy_scope if configuration in energies_j else None
        results.append(
            Cost(configuration, seconds, joules, covers, target, means_s[configuration], means_j.get(configuration))
        )
    return results
