"""A recorded `power.csv`, played as if it happened now: what a run would have used, had its power been this."""

from __future__ import annotations

import csv
import math
import time
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from epochmeter.power.meter import Absent, Domain, Instruments, Meter, Power
from epochmeter.power.meters.board_total import total_of
from epochmeter.power.sampler import Sampler
from epochmeter.shared.units import NANOSECOND

TIME, TOTAL = "monotonic_ns", "total_w"


def open_replay(
    *,
    gpus: Sequence[str],
    root: str | PathLike[str],
    file: str | None,
    period_s: float,
    rails: Mapping[str, Any] | None = None,
) -> Meter:
    """The powers of a recording from its beginning, over and over, sampled every `period_s`.

    Which of them make the total, `rails.total` says, or else the rule for a board without a table. Absent, with the
    reason, where the file is none that a run left.
    """
    if not file:
        return Absent("meter=replay plays a recording: name it by meter.file=multirun/.../power.csv")
    try:
        times_s, watts = load(Path(file))
    except (OSError, ValueError) as error:
        return Absent(f"meter.file={file} cannot be played: {error}")
    total = total_of(list(watts), rails or {}).rails
    if lacking := set(total) - watts.keys():
        return Absent(f"{file} has no {', '.join(sorted(lacking))} to make the total of: it has {', '.join(watts)}.")
    begun_s = time.monotonic()
    powers = {
        name: Power(Domain("sampled", period_s, f"recorded {name}"), partial(at, times_s, values, begun_s))
        for name, values in watts.items()
    }
    sampler = Sampler(powers, total=total, period_s=period_s)
    return Instruments(
        powers=sampler, total=total, covers=f"recording of {' + '.join(total)}", reason=f"Played from {file}."
    )


def load(file: Path) -> tuple[array, dict[str, array]]:
    """A recording's moments in seconds from its beginning, and the watts by domain, NaN where one was not read."""
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    if len(rows) < 2 or TIME not in rows[0]:
        raise ValueError(f"it is no power.csv of at least two samples, whose first column is {TIME}")
    begun_ns = int(rows[0][TIME])
    times_s = array("d", ((int(row[TIME]) - begun_ns) * NANOSECOND for row in rows))
    if any(after <= before for before, after in pairwise(times_s)):
        raise ValueError("its samples are not in the order of time")
    names = [name.removesuffix("_w") for name in rows[0] if name not in (TIME, TOTAL)]
    return times_s, {name: array("d", (float(row[f"{name}_w"] or "nan") for row in rows)) for name in names}


def at(times_s: array, watts: array, begun_s: float) -> float:
    """The watts at this moment of the recording, on the straight line between two samples; OSError in a hole."""
    now_s = (time.monotonic() - begun_s) % times_s[-1]
    after = bisect_right(times_s, now_s)
    before = after - 1
    share = (now_s - times_s[before]) / (times_s[after] - times_s[before])
    value = watts[before] + share * (watts[after] - watts[before])
    if math.isnan(value):
        raise OSError(f"the recording has no reading at {now_s:.2f} s")
    return value
