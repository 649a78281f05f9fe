"""An energy estimate for machines without a counter: the CPU's rated power times its busy fraction.

The user gives the rated power, since no default would be right.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from epochmeter.machine.gauges import cpu_ticks
from epochmeter.machine.slurm import sharing_reason
from epochmeter.power.meter import Domain, Instrument, Meter, NullMeter

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def open_estimate(*, gpus: Sequence[str], root: Path, tdp_w: float | None = None, because: str | None = None) -> Meter:
    """Open the estimate: busy time of all cores / number of cores x `tdp_w`."""
    if others := sharing_reason():
        return NullMeter(others)
    because = because or "meter=estimate: an estimate, not a measurement."
    if tdp_w is None:
        return NullMeter(
            f"{because} For an estimate, add the CPU's rated power in watts: meter=estimate meter.tdp_w=65"
        )
    if not tdp_w > 0:
        raise ValueError(f"meter.tdp_w={tdp_w} is not a rated power\nhint: give it in watts: meter.tdp_w=65")
    stat = root / "proc/stat"
    try:
        cores = len(re.findall(r"^cpu\d", stat.read_text(), re.MULTILINE))
        cpu_ticks(stat)
    except (OSError, ValueError) as error:
        return NullMeter(f"{because} It cannot be estimated either: {error}")
    covers = f"CPU: busy fraction of {tdp_w:g} W"
    domain = Domain("estimated", 1 / TICKS_PER_S, covers)
    counter = Instrument(domain, lambda: cpu_ticks(stat)[0] / TICKS_PER_S * tdp_w / cores)
    return Meter(counters={"cpu": counter}, total=["cpu"], covers=covers, reason=because)
