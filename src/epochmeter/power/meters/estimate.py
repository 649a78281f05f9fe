"""The estimate where nothing measures: the CPU's rated power times the share of it that was busy.

Rated power comes from the person who runs it, for a guess of ours would be a made-up number.
"""

import os
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from epochmeter.machine.gauges import ticks
from epochmeter.machine.slurm import company
from epochmeter.power.meter import Absent, Counter, Domain, Instruments, Meter

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def open_estimate(
    *, gpus: Sequence[str], root: str | PathLike[str], tdp_w: float | None = None, because: str | None = None
) -> Meter:
    """Joules by busy share x `tdp_w`; absent without `tdp_w`. `because` is why nothing better counts."""
    if others := company(os.environ):
        return Absent(others)
    because = because or "meter=estimate measures nothing."
    if tdp_w is None:
        return Absent(f"{because} For an estimate give the CPU's rated power in watts: meter=estimate meter.tdp_w=65")
    if not tdp_w > 0:
        raise ValueError(f"meter.tdp_w={tdp_w} is no CPU's rated power. Give it in watts: meter.tdp_w=65")
    stat = Path(root) / "proc/stat"
    try:
        cores = len(re.findall(r"^cpu\d", stat.read_text(), re.MULTILINE))
        ticks(stat)
    except (OSError, ValueError) as error:
        return Absent(f"{because} Nor can it be estimated: {error}")
    covers = f"CPU, as its busy share of {tdp_w:g} W"
    domain = Domain("estimated", 1 / TICKS_PER_S, covers)
    counter = Counter(domain, lambda: ticks(stat)[0] / TICKS_PER_S * tdp_w / cores)
    return Instruments(counters={"cpu": counter}, total=["cpu"], covers=covers, reason=because)
