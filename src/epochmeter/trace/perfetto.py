"""One file for Perfetto: a run's windows, steps, power and gauges, and the events of its profiler trace if it has one.

All times are of the run's monotonic clock. The profiler's are of the wall clock, and the training process recorded the
difference of the two clocks, `wall_offset_ns`, after it wrote the trace. The format is Chrome's trace event format.
"""

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from epochmeter.power.phases.step_timeline import PHASES, phase_durations_s
from epochmeter.results.power_trace import downsample
from epochmeter.results.run_info import RunInfo, read_run
from epochmeter.shared.atomic_files import write_atomically
from epochmeter.shared.problem import input_error
from epochmeter.shared.record import GAUGES, PERFETTO, POWER, TRACE, Record
from epochmeter.shared.units import NANOSECOND
from epochmeter.trace.kineto import NS_PER_US, TraceError

MAX_POINTS = 20_000  # most points of a counter; longer runs have means of adjacent samples
MAX_STEPS = 20_000  # most steps; longer runs have the last ones
REBOOT_NS = 60 * 10**9  # smallest change between the wall clock and the monotonic clock that means another boot
RUN, COUNTERS = 1 << 30, {POWER: (1 << 30) + 1, GAUGES: (1 << 30) + 2}
"""Groups of tracks, as numbers that no process has: the format has one group per process."""
TITLES = {RUN: "epochmeter: run", COUNTERS[POWER]: "epochmeter: power", COUNTERS[GAUGES]: "epochmeter: gauges"}
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)\s*[,}]')
Slice = tuple[str, str, int, int, Mapping[str, Any]]
"""Track, name, start and end in ns of the monotonic clock, and arguments of an interval."""


def write_perfetto_file(record: Record, folder: Path) -> Path:
    """Write a run's file for Perfetto into a folder, and return its path; ValueError if the run's files are damaged."""
    trace, path = record.folder / TRACE, folder / PERFETTO
    content, base_ns = b'{"traceEvents": []}', None
    if trace.exists():
        try:
            content = gzip.decompress(trace.read_bytes())
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(f"{trace} is not a complete trace of torch's profiler: {error}") from error
        base_ns = int(match[1]) if (match := BASE.search(content)) else 0  # older versions of torch write wall times
    if not (begin := EVENTS.search(content)):
        raise TraceError(f"{trace} is not a complete trace of torch's profiler: it has no `traceEvents`")
    separator = b"" if content.startswith(b"]", begin.end()) else b",\n"
    try:
        events = ",\n".join(run_events(record, base_ns)).encode()
    except (KeyError, ValueError) as error:
        cause = f"it has no `{error.args[0]}`" if isinstance(error, KeyError) else str(error)
        raise input_error(f"the record {record.folder} is damaged: {cause}", "run the configuration again") from error
    merged = b"".join((content[: begin.end()], events, separator, content[begin.end() :]))
    compressed = gzip.compress(merged, compresslevel=3, mtime=0)  # the format has no time after 2106
    write_atomically(path, lambda file: file.buffer.write(compressed))
    return path


def run_events(record: Record, base_ns: int | None) -> Iterator[str]:
    """Yield the events of a record, as JSON. `base_ns` is the wall time of zero; None: zero is the start of the run."""
    run = read_run(record)
    offset_ns = run.traced.get("wall_offset_ns") or _offset_ns(run, math.inf)
    start_ns = run.clock_of(0).monotonic_ns
    zero_ns = start_ns if base_ns is None else base_ns - offset_ns

    def event(kind: str, name: str, process: int, at_ns: int, **fields: object) -> str:
        return json.dumps({"ph": kind, "name": name, "pid": process, "ts": (at_ns - zero_ns) / NS_PER_US, **fields})

    for place, (process, title) in enumerate(TITLES.items()):
        yield event("M", "process_name", process, start_ns, args={"name": title})
        yield event("M", "process_sort_index", process, start_ns, args={"sort_index": place - len(TITLES)})
    tracks: dict[str, int] = {}
    for track, name, begin_ns, end_ns, args in _slices(record, run):
        if track not in tracks:
            tracks[track] = len(tracks) + 1
            yield event("M", "thread_name", RUN, start_ns, tid=tracks[track], args={"name": track})
        yield event("X", name, RUN, begin_ns, dur=(end_ns - begin_ns) / NS_PER_US, tid=tracks[track], args=args)
    for name, process in COUNTERS.items():
        for at_ns, _, means in downsample(record.folder / name, MAX_POINTS):
            for column, mean in means.items():
                yield event("C", column, process, at_ns, args={"value": mean})


def _slices(record: Record, run: RunInfo) -> Iterator[Slice]:
    """Yield the windows, the steps of epochs with their phases, the traced steps, and the loading of their batches."""
    lasts_s = phase_durations_s(record.steps())
    first = 0
    for window in record.windows():
        name, epoch, metrics = window["window"], window["epoch"], window["metrics"]
        shift_ns = _offset_ns(run, epoch) - _offset_ns(run, math.inf)
        shift_ns = shift_ns if abs(shift_ns) > REBOOT_NS else 0  # nonzero for windows measured before a reboot
        title = f"epoch {epoch + 1}" + {"epoch": "", "val": ", evaluation"}.get(name, f", {name}")
        opened_ns = window["opened_ns"] + shift_ns
        finite = {key: value for key, value in metrics.items() if math.isfinite(value)}  # JSON has no NaN
        yield ("windows", title, opened_ns, window["closed_ns"] + shift_ns, finite)
        if count := int(metrics.get("epoch/steps", 0)):
            e2e_s, residual_s = metrics["epoch/e2e_s"], metrics.get("epoch/clock_residual_s", 0.0)
            scale = e2e_s / (e2e_s - residual_s) / NANOSECOND  # the device's clock may run faster or slower
            skipped = max(0, len(lasts_s) - MAX_STEPS - first)
            yield from _steps(lasts_s[first : first + count] * scale, opened_ns, skipped, first)
            first += count
    traced = run.traced
    if "opened_ns" in traced:
        yield ("windows", "profiler's trace", traced["opened_ns"], traced["closed_ns"], {})
    for read_ns, preprocess_ns, decode_ns, begin_ns, worker in traced.get("loads", ()):
        track = "training process" if worker < 0 else f"DataLoader worker {worker}"
        parts_ns = {"read_s": read_ns, "decode_s": decode_ns, "transform_s": preprocess_ns - decode_ns}
        args = {name: duration_ns * NANOSECOND for name, duration_ns in parts_ns.items()}
        yield (track, "load batch", begin_ns, begin_ns + read_ns + preprocess_ns, args)


def _steps(lasts_ns: np.ndarray, opened_ns: int, skipped: int, first: int) -> Iterator[Slice]:
    """Yield an epoch's steps after the `skipped` ones, each followed by its phases; the first one is number `first`."""
    edges = opened_ns + np.rint(np.concatenate([[0.0], np.cumsum(lasts_ns)])).astype(np.int64)
    for step in range(skipped, len(lasts_ns)):
        bounds = edges[len(PHASES) * step :][: len(PHASES) + 1].tolist()
        yield ("steps", f"step {first + step}", bounds[0], bounds[-1], {})
        for phase, begin_ns, end_ns in zip(PHASES, bounds[:-1], bounds[1:], strict=True):
            if end_ns > begin_ns:
                yield ("steps", "data stall" if phase == "stall" else phase, begin_ns, end_ns, {})


def _offset_ns(run: RunInfo, epoch: float) -> int:
    """Return the wall time at zero of the monotonic clock that timed an epoch."""
    clock = run.clock_of(epoch)
    return round(clock.wall_s / NANOSECOND - clock.monotonic_ns)
