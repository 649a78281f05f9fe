"""Checks of times, peaks and performance counters, with programs whose times and operations are known."""

import statistics
from collections.abc import Iterator, Mapping

from epochmeter.results.intervals import MIN_OF_MEDIAN, median_interval
from epochmeter.validation.bench import Bench, Pair
from epochmeter.validation.line import Finding, Found, Untestable

OFF, OFF_S = 0.02, 0.002  # largest error of a time: as a fraction, or in seconds per step
DEVICE_OFF, DEVICE_OFF_S = 0.02, 0.0001  # the same against CUDA events
OVERHEAD, UNDECIDED = 1.05, 0.1  # largest ratio of a measured and a bare epoch; widest interval that decides it
PAIRS = 12
PEAK = (0.5, 1.05)  # of the datasheet: kernels reach less, and a boost clock slightly more
PEAK_SPREAD = 0.1
NO_GPU = "training does not use an NVIDIA GPU here"
BUSY_KERNELS: Mapping[str, Mapping[str, tuple[float | None, float | None]]] = {
    "products": {"gpu_sm_active_fraction": (0.6, None), "gpu_tensor_active_fraction": (0.2, None)},
    "copies": {"gpu_dram_active_fraction": (0.4, None), "gpu_tensor_active_fraction": (None, 0.05)},
    "idle": {"gpu_sm_active_fraction": (None, 0.05), "gpu_tensor_active_fraction": (None, 0.05)},
}
"""Mix of kernels -> counter -> lowest and highest value: tensor cores do products only, and copies use the memory."""


def _compared(pairs: Mapping[str, Pair], off: float, off_s: float) -> Iterator[Found]:
    """Yield the measured time per step of each case; the bound is the known time and the error that is allowed."""
    for case, (known_s, measured_s) in pairs.items():
        most_s = max(off_s, off * known_s)
        yield Finding(
            subject=case, value=measured_s, unit="s", low=known_s - most_s, high=known_s + most_s,
            failure="the measured time per step is not the known one", details={"known_s": known_s},
        )  # fmt: skip


def _waits(bench: Bench, part: str) -> Iterator[Found]:
    yield from _compared(bench.waits[part], OFF, OFF_S)


def stall(bench: Bench) -> Iterator[Found]:
    """Data stall of a script, compared with the time between its steps by a clock of its loop."""
    return _waits(bench, "stall")


def fetch(bench: Bench) -> Iterator[Found]:
    """Waits in the loader, compared with known ones."""
    return _waits(bench, "fetch")


def prep(bench: Bench) -> Iterator[Found]:
    """Work in the loader, compared with known one."""
    return _waits(bench, "prep")


def _device_time(bench: Bench, part: str) -> Iterator[Found]:
    if not bench.on_gpu:
        yield Untestable(why=NO_GPU)
    else:
        yield from _compared({"": bench.device_times[part]}, DEVICE_OFF, DEVICE_OFF_S)


def copy(bench: Bench) -> Iterator[Found]:
    """Copies to the device, compared with CUDA events of the bare loop."""
    return _device_time(bench, "copy")


def compute(bench: Bench) -> Iterator[Found]:
    """Compute, compared with CUDA events of the bare loop."""
    return _device_time(bench, "compute")


def overhead(bench: Bench) -> Iterator[Found]:
    """Measured epochs and bare ones in turns."""
    ratios = bench.known_programs.overhead(max(MIN_OF_MEDIAN, round(PAIRS * bench.scale)))
    middle, (low, high) = statistics.median(ratios), median_interval(ratios)
    is_narrow = high - low <= UNDECIDED
    if low <= OVERHEAD < high and not (is_narrow and middle <= OVERHEAD):
        why = f"undecided: the 95 % interval of the median of {len(ratios)} ratios is {low:.3f} to {high:.3f}"
        yield Untestable(why=why, hint="end other load, and give more `minutes=`", again=True)
        return
    details = {"low": low, "high": high, "pairs": float(len(ratios))}
    yield Finding(
        value=middle, unit="", high=OVERHEAD, failure="measuring slows this machine's epochs", details=details
    )


def peaks(bench: Bench) -> Iterator[Found]:
    """The measured peak, compared with the datasheet, or with itself if there is none."""
    measured, datasheet, device = bench.known_programs.peaks()
    highest = max(measured)
    if datasheet is None:
        yield Untestable(subject="of the datasheet", why=f"no datasheet of {device} is in the table of peaks")
    else:
        yield Finding(
            subject="of the datasheet", value=highest / datasheet, unit="%", low=PEAK[0], high=PEAK[1],
            failure="MFU would be of a wrong peak: a clock or power limit may be set",
            details={"flop_per_s": highest, "datasheet_flop_per_s": datasheet},
        )  # fmt: skip
    yield Finding(
        subject="repeated", value=1 - min(measured) / highest, unit="%", high=PEAK_SPREAD,
        failure="the peak does not repeat: so does no MFU", details={"flop_per_s": highest},
    )  # fmt: skip


def counters(bench: Bench) -> Iterator[Found]:
    """Performance counters while the GPU runs kernels of a known mix."""
    if not bench.on_gpu:
        yield Untestable(why=NO_GPU)
        return
    measured = bench.known_programs.kernels()
    for mix, bounds in BUSY_KERNELS.items():
        for name, (low, high) in bounds.items():
            subject = f"{mix}: {name.removeprefix('gpu_').removesuffix('_fraction')}"
            if name not in measured[mix]:
                yield Untestable(subject=subject, why="the driver does not report this counter")
                continue
            yield Finding(
                subject=subject, value=measured[mix][name], unit="%", low=low, high=high,
                failure="the counter is not what these kernels do",
            )  # fmt: skip
