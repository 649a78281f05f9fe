"""Let the device cool down before a run, so that the heat of one run does not affect the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from epochmeter.config.schema import Sweep
from epochmeter.console.console import Terminal
from epochmeter.machine.gauge_sampler import Gauges, open_gauges
from epochmeter.results.run_result import RunResult
from epochmeter.run.plan import Plan
from epochmeter.sweep.progress import SweepProgress

TEMPERATURE_KEY = "temperature_max_c"
POLL_S = 1.0


def cool_down(plan: Plan, outcome: RunResult, terminal: Terminal, progress: SweepProgress) -> None:
    """Wait as the sweep requests, and record for how long."""
    limits = plan.job.sweep
    if not limits.cooldown_s and limits.cool_below_c is None:
        return
    with closing(open_gauges(gpus=plan.gpus, root=plan.job.machine.root)) as gauges:
        metadata, notes = wait_until_cool(limits, progress.last_run_ended_s, gauges, terminal.info)
    plan.describe(rest=metadata)
    outcome.notes += notes


def wait_until_cool(
    sweep: Sweep,
    ended_s: float | None,
    gauges: Gauges,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[dict[str, float | str], list[str]]:
    """Wait for `sweep.cooldown_s` after the previous run, and then until every sensor is below `sweep.cool_below_c`.

    Args:
        ended_s: When the previous run ended, by `clock`; None if there was none, which needs no cooldown time.
        gauges: Read the temperatures. If they know none, the run begins without waiting.

    Returns:
        The waiting time and the hottest sensor's temperature, for the record; notes if the device may be too hot.
    """
    begun_s = clock()
    if ended_s is not None and (remaining_s := ended_s + sweep.cooldown_s - begun_s) > 0:
        say(f"Cooling down for {remaining_s:.0f} s (sweep.cooldown_s={sweep.cooldown_s:g}).")
        pause(remaining_s)
    below_c, most_s = sweep.cool_below_c, sweep.cool_wait_s
    temperature_c, cooling_s = gauges.now(TEMPERATURE_KEY), clock()
    if below_c is not None and temperature_c is not None and temperature_c >= below_c:
        say(f"Device temperature {temperature_c:.0f} C: waiting up to {most_s:g} s for less than {below_c:g} C.")
        while temperature_c is not None and temperature_c >= below_c and clock() - cooling_s < most_s:
            pause(POLL_S)
            temperature_c = gauges.now(TEMPERATURE_KEY)
    waited_s = round(clock() - begun_s, 3)
    if temperature_c is None:
        missing = {gauge.quantity: gauge.why for gauge in gauges.unavailable()}
        reason = missing.get(TEMPERATURE_KEY, "no sensor was read in time")
        notes = [] if below_c is None else [f"sweep.cool_below_c={below_c:g} has no effect: {reason}."]
        return {"waited_s": waited_s, "reason": reason}, notes
    notes = []
    if below_c is not None and temperature_c >= below_c:
        waited = f"after {clock() - cooling_s:.0f} s of waiting for less than sweep.cool_below_c={below_c:g}"
        notes = [f"the run began at {temperature_c:.0f} C, {waited}; raise it or `sweep.cool_wait_s={most_s:g}`"]
    return {"waited_s": waited_s, "temperature_c": temperature_c}, notes
