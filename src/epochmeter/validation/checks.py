"""The table of checks: what is compared, in the order in which it is measured."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from epochmeter.validation import power_lines, setting_lines, time_lines, window_lines
from epochmeter.validation.bench import Bench
from epochmeter.validation.line import Found


class Check(NamedTuple):
    """A comparison with what is known.

    Attributes:
        name: Its name in `validation.json`.
        title: What is compared, in the table and on the page.
        seconds: About how long it takes on a machine that has it, with `minutes=10`, besides earlier checks.
        find: Yields what it finds, of each subject.
        uses_runs: Whether it starts runs, which lock the device themselves.
        needs_quiet: Whether other load may change what it finds.
    """

    name: str
    title: str
    seconds: float
    find: Callable[[Bench], Iterator[Found]]
    uses_runs: bool = False
    needs_quiet: bool = True


CHECKS = (
    Check("resolution", "resolution of a reading", 120, power_lines.resolution),
    Check("renewal", "period of new readings", 0, power_lines.renewal),
    Check("averaging", "averaging time of a reading", 0, power_lines.averaging),
    Check("lag", "lag of a reading", 0, power_lines.lag),
    Check("counter_and_power", "two measurements of one energy", 0, power_lines.counter_and_power),
    Check("additivity", "window and its parts", 0, window_lines.additivity),
    Check("coverage", "windows within the stated uncertainty", 0, window_lines.coverage),
    Check("idle_power", "idle power", 20, power_lines.idle_power),
    Check("idle_drift", "drift of the idle power", 0, power_lines.idle_drift),
    Check("energy_per_work", "spread of joules per GFLOP", 45, power_lines.energy_per_work),
    Check("stall", "data stall per step", 30, time_lines.stall, uses_runs=True),
    Check("fetch", "waits in the loader per step", 0, time_lines.fetch, uses_runs=True),
    Check("prep", "work in the loader per step", 0, time_lines.prep, uses_runs=True),
    Check("copy", "copy per step", 30, time_lines.copy, uses_runs=True),
    Check("compute", "compute per step", 0, time_lines.compute, uses_runs=True),
    Check("overhead", "measured / bare epoch", 90, time_lines.overhead, uses_runs=True),
    Check("peaks", "peak", 20, time_lines.peaks),
    Check("counters", "performance counter", 20, time_lines.counters),
    Check("settings_applied", "setting applied", 30, setting_lines.applied, needs_quiet=False),
    Check("settings_restored", "setting restored", 0, setting_lines.restored, needs_quiet=False),
    Check("settings_after_kill", "setting restored after SIGKILL", 0, setting_lines.after_kill, needs_quiet=False),
)
