"""A meter that replays a recorded `power.csv` in real time."""

import csv
import math
import time
from array import array
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from epochmeter.power.meter import Domain, Instrument, Meter, NullMeter
from epochmeter.power.meters.board_total import RailTable, total_of
from epochmeter.power.sampler import Sampler
from epochmeter.shared.units import NANOSECOND

TIME_COLUMN, TOTAL_COLUMN = "monotonic_ns", "total_w"


def open_replay(
    *, gpus: Sequence[str], root: Path, file: str | None, period_s: float, rails: RailTable | None = None
) -> Meter:
    """Open a recording (a `power.csv`), replayed from its beginning and repeated."""
    if not file:
        return NullMeter("meter=replay: no recording given. Add meter.file=multirun/.../power.csv")
    try:
        times_s, watts = load_recording(Path(file))
        total = total_of(list(watts), rails or RailTable()).rails
    except (OSError, ValueError, csv.Error) as error:
        return NullMeter(f"Cannot replay meter.file={file}: {error}")
    begun_s = time.monotonic()
    powers = {
        name: Instrument(Domain("sampled", period_s, f"recorded {name}"), partial(watts_at, times_s, values, begun_s))
        for name, values in watts.items()
    }
    sampler = Sampler(powers, total=total, period_s=period_s)
    return Meter(
        powers=sampler, total=total, covers=f"recording of {' + '.join(total)}", reason=f"Replayed from {file}."
    )


def load_recording(file: Path) -> tuple[array, dict[str, array]]:
    """Load a recording: times in seconds from its beginning, and watts by domain, NaN if not read."""
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    if len(rows) < 2 or TIME_COLUMN not in rows[0]:
        raise ValueError(f"not a power.csv with column {TIME_COLUMN} and at least two samples")
    begun_ns = int(rows[0][TIME_COLUMN])
    times_s = array("d", ((int(row[TIME_COLUMN]) - begun_ns) * NANOSECOND for row in rows))
    if any(after <= before for before, after in pairwise(times_s)):
        raise ValueError("the samples are not in the order of time")
    names = [name.removesuffix("_w") for name in rows[0] if name and name not in (TIME_COLUMN, TOTAL_COLUMN)]
    if not names:
        raise ValueError(f"it has no power of a domain, such as VDD_IN_w, besides {TOTAL_COLUMN}")
    return times_s, {name: array("d", (float(row[f"{name}_w"] or "nan") for row in rows)) for name in names}


def watts_at(times_s: array, watts: array, begun_s: float) -> float:
    """Power now, interpolated linearly between two samples of the recording; OSError in a gap."""
    now_s = (time.monotonic() - begun_s) % times_s[-1]
    value = float(np.interp(now_s, times_s, watts))
    if math.isnan(value):
        raise OSError(f"the recording has no reading at {now_s:.2f} s")
    return value
