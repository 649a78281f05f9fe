"""How costs grow with the size of the work: the time and memory of each operation at several sizes, with the exponent.

    PYTHONPATH=src:tests:benchmarks python benchmarks/cost/scale.py [full] [ROW ...]

The largest size of each row is measured with `full` only, in a table of its own: all rows need an hour of
processor time, 6 GB of memory and 20 GB of disk. Other words select the rows whose names contain one of them.

Each row is an operation that depends on one size, such as the epochs of a run. The cost of a total, such as a report,
should grow in proportion to the size (exponent 1). The cost of one more, such as the publication of one more epoch,
should not depend on the earlier ones (exponent 0). The exponent is the slope of the cost over the size, both as
logarithms, from the last but one to the last size: a constant part counts least there. Costs are processor time, so
that other load disturbs less. Each size has a process of its own.
"""

from __future__ import annotations

import math
import resource
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from common.grown_records import real_record
from common.output import ARGUMENTS, print_table, sized
from common.scaled_operations import ROWS, TIMES, Row, processor_s

TOLERANCE = 0.2  # of an exponent
SMALLEST_S = 1e-4  # shorter times count as this one: they do not matter, and their noise has no exponent
SHORT = 100  # divides all sizes in a short run
COLUMNS = ("operation", "size", "of", "sizes", "seconds", "MB more", "exponent", "linear")


def cost_of(row: Row, size: int) -> tuple[float, int]:
    """Return the time of an operation in s, and the memory in bytes that it needs more, in a process of its own."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=measure, args=(row, size, sender))
    process.start()
    sender.close()
    try:
        result: tuple[float, int] = receiver.recv()
    except EOFError:
        raise RuntimeError(f"{row.name} with {size:,} {row.of} failed: see above") from None
    finally:
        process.join()
    return result


def measure(row: Row, size: int, sender: Any) -> None:
    folder = Path(tempfile.mkdtemp(prefix="epochmeter-scale-"))
    try:
        call = row.prepare(size, folder)
        before_bytes = memory_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
        times = []
        for _ in range(TIMES if row.is_each else 1):
            begun_s = processor_s()
            own_s = call()  # of a call whose preparation does not count
            times.append(own_s if isinstance(own_s, float) and row.is_each else processor_s() - begun_s)
        of_children = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        sender.send((statistics.median(times), max(memory_bytes("VmHWM") - before_bytes, of_children)))
    finally:
        shutil.rmtree(folder)


def memory_bytes(name: str) -> int:
    """Return a figure of this process's memory."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith(f"{name}:"))


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of the cost over the size, as logarithms, between the last two sizes."""
    (before, last), (earlier, latest) = sizes[-2:], [max(SMALLEST_S, cost) for cost in costs[-2:]]
    return math.log(latest / earlier) / math.log(last / before)


def cells(row: Row, sizes: Sequence[int]) -> list[str]:
    costs = []
    for size in sizes:
        costs.append(cost_of(row, size))
        print(f"{row.name}: {size:,} {row.of}: {costs[-1][0]:.4g} s, {costs[-1][1] / 1e6:.1f} MB", file=sys.stderr)
    seconds = [cost[0] for cost in costs]
    slope = exponent(sizes, seconds)
    is_linear = slope <= row.expected + TOLERANCE
    verdict = "yes" if is_linear else row.reason or "no"
    times = " ".join(f"{second:.3g}" for second in seconds)
    numbers = " ".join(f"{size:,}" for size in sizes)
    kind = "one more" if row.is_each else "all"
    return [row.name, row.of, kind, numbers, times, f"{costs[-1][1] / 1e6:.0f}", f"{slope:.2f}", verdict]


def main() -> None:
    real_record()  # before the processes that use it
    words = [word for word in ARGUMENTS if word != "full"]
    rows = [row for row in ROWS if not words or any(word in row.name for word in words)]
    measured, failures, is_full = [], [], "full" in ARGUMENTS
    for row in rows:
        try:
            measured.append(cells(row, sizes_of(row)))
        except RuntimeError as error:  # the other rows took an hour
            failures.append(str(error))
    print_table(f"Costs by the size of the work{', to the largest' * is_full}", COLUMNS, measured)
    if failures:
        sys.exit("\n".join(failures))


def sizes_of(row: Row) -> Sequence[int]:
    """Return two or more sizes to measure."""
    all_sizes = row.sizes if "full" in ARGUMENTS or len(row.sizes) < 3 else row.sizes[:-1]
    short = sorted({max(1, size // SHORT) for size in row.sizes[:2]})
    return sized(all_sizes, short if len(short) > 1 else [1, 2])


if __name__ == "__main__":
    main()
