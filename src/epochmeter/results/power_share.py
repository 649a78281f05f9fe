"""Whether GPUs are really used: their mean power as a fraction of their power limit.

A driver counts a GPU as busy while any kernel is resident, even one that waits for memory or has few threads. Power
follows the work. CSC's course on its MI250X teaches 300 of 500 W as the mark of a GPU that is fully used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from epochmeter.results.quantities import quantity
from epochmeter.results.run_info import RunInfo
from epochmeter.shared.units import percent

FULLY_USED = 0.6  # of the limit
BUSY = 0.8  # utilization by the driver from which on it is in contradiction to a low power
FRACTION, POWER, UTILIZATION = "total/power_limit_fraction", "steady/power_mean_w", "steady/gpu_utilization"


@dataclass(frozen=True)
class PowerShare:
    """Mean power of the GPUs used in the mean epoch, compared with the sum of their limits.

    Attributes:
        utilization: Fraction of time in which the driver counts the GPU as busy; None if it is not known.
    """

    power_w: float
    limit_w: float
    utilization: float | None

    @property
    def fraction(self) -> float:
        return self.power_w / self.limit_w

    @property
    def is_fully_used(self) -> bool:
        return self.fraction >= FULLY_USED

    @property
    def sentence(self) -> str:
        """The power, its share of the limit, and whether the GPU is fully used."""
        power, limit = quantity(self.power_w, "W"), quantity(self.limit_w, "W")
        text = f"GPU power: {power}, {percent(self.fraction)} of the limit of {limit}: "
        if self.is_fully_used:
            return f"{text}fully used, by the rule of {percent(FULLY_USED)}."
        text += "not fully used"
        if self.utilization is not None and self.utilization >= BUSY:
            text += f", although the driver counts it as busy for {percent(self.utilization)} of the time"
        return f"{text}."


def limit_fraction(metrics: Mapping[str, float], run: RunInfo) -> float | None:
    """Return the mean power as a fraction of the limit of all GPUs that it covers; None if one of them is unknown.

    The limit is the one that the run has applied, else the highest one that can be set.
    """
    power_w, highest_w = metrics.get(POWER), run.energy.limit_w
    if power_w is None or not highest_w or not run.energy.is_measured:
        return None
    hosts = {place.get("host") for place in run.training.get("places", ())}
    applied_w = (run.power_limit_w or 0.0) * (run.power_limit_devices or 0)
    is_script = "loaders" in run.training  # the devices of its limit are those of one node
    if applied_w and (len(hosts) <= 1 or not is_script):
        return power_w / applied_w
    return power_w / highest_w if len(hosts) <= 1 else None  # only the limits of the first node are known


def power_share(mean: Callable[[str], float | None]) -> PowerShare | None:
    """Return the share of a run or of a configuration, whose means `mean` returns by name; None if it is not known."""
    power_w, fraction = mean(POWER), mean(FRACTION)
    return PowerShare(power_w, power_w / fraction, mean(UTILIZATION)) if power_w and fraction else None
