"""The rest of a device before a run, so that the heat of one is no part of the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from epochmeter.config.schema import Sweep
from epochmeter.machine.utilization import Gauges

TEMPERATURE_KEY = "temperature_max_c"
POLL_S = 1.0


class Cooldown(NamedTuple):
    """How a device rested: for how long, and how hot its hottest sensor was then, where any could be read."""

    waited_s: float = 0.0
    temperature_c: float | None = None
    reason: str = ""
    """Why there is no temperature."""
    notes: Sequence[str] = ()
    """What to say where it was not seen to be as cool as was asked for."""

    @property
    def metadata(self) -> dict[str, Any]:
        """What the record keeps of it; what is not known is left out."""
        told = {"waited_s": round(self.waited_s, 3), "temperature_c": self.temperature_c, "reason": self.reason}
        return {key: value for key, value in told.items() if value not in (None, "")}


def is_requested(sweep: Sweep) -> bool:
    """Whether the keys of a sweep ask for any rest."""
    return bool(sweep.cooldown_s) or sweep.cool_below_c is not None


def wait_until_cool(
    sweep: Sweep,
    ended_s: float | None,
    gauges: Gauges,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Cooldown:
    """Waits as the keys of a sweep ask: first for so long since the run before `ended_s`, then for the device to cool.

    No run before, no time to wait for. Every temperature that the gauges know has to be below what is asked for; where
    they know none, or in no time, the run begins all the same.
    """
    begun_s = clock()
    if ended_s is not None and (left_s := ended_s + sweep.cooldown_s - begun_s) > 0:
        say(f"Cooling down for {left_s:.0f} s (sweep.cooldown_s={sweep.cooldown_s:g}).")
        pause(left_s)
    below_c, most_s = sweep.cool_below_c, sweep.cool_wait_s
    temperature_c, cooling_s = gauges.now(TEMPERATURE_KEY), clock()
    if below_c is not None and temperature_c is not None and temperature_c >= below_c:
        say(f"Device temperature {temperature_c:.0f} C: waiting up to {most_s:g} s for less than {below_c:g} C.")
        while temperature_c is not None and temperature_c >= below_c and clock() - cooling_s < most_s:
            pause(POLL_S)
            temperature_c = gauges.now(TEMPERATURE_KEY)
    waited_s = clock() - begun_s
    if temperature_c is None:
        why = next(
            (missing.why for missing in gauges.unavailable() if missing.quantity == TEMPERATURE_KEY),
            "no sensor was read in time",
        )
        unseen = [] if below_c is None else [f"sweep.cool_below_c={below_c:g} has no effect: {why}."]
        return Cooldown(waited_s, reason=why, notes=unseen)
    if below_c is not None and temperature_c >= below_c:
        waited = f"after {clock() - cooling_s:.0f} s of waiting for less than sweep.cool_below_c={below_c:g}"
        hot = [f"the run began at {temperature_c:.0f} C, {waited}; raise it or `sweep.cool_wait_s={most_s:g}`"]
        return Cooldown(waited_s, temperature_c, notes=hot)
    return Cooldown(waited_s, temperature_c)
