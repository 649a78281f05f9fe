"""How often a leak of memory is found, and how often other memory is taken for one.

The memory of simulated runs has noise from epoch to epoch. Real processes allocate memory that they keep, free or fill
a cache with; it is read as that of a training.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from common.output import print_table, sized

from epochmeter.machine.process_memory import ProcessMemory
from epochmeter.results.memory_growth import memory_growth

MB, BASE_BYTES = 2**20, 2**30
RUNS, REAL_RUNS, REAL_EPOCHS = sized(1000, 20), sized(10, 1), 12
EPOCHS, NOISES_MB = (6, 10, 20, 50), (0.2, 2.0)
Make = Callable[[random.Random, int], list[float]]


def leak(size_mb: float) -> Make:
    return lambda chance, epochs: [size_mb * epoch for epoch in range(epochs)]


def steady(chance: random.Random, epochs: int) -> list[float]:
    return [0.0] * epochs


def sawtooth(chance: random.Random, epochs: int) -> list[float]:
    """Return memory that grows and is freed, at least twice."""
    period, height, phase = chance.randint(2, max(2, epochs // 2)), chance.uniform(5, 100), chance.randint(0, epochs)
    return [height * ((epoch + phase) % period) / period for epoch in range(epochs)]


def filling(chance: random.Random, epochs: int) -> list[float]:
    """Return a cache that fills more and more slowly."""
    period, size = chance.uniform(1, epochs / 4), chance.uniform(10, 500)
    return [size * (1 - math.exp(-epoch / period)) for epoch in range(epochs)]


def stopping(chance: random.Random, epochs: int) -> list[float]:
    """Return a cache that fills evenly, and is full at half of the run at the latest."""
    last, growth = chance.randint(1, epochs // 2), chance.uniform(1, 50)
    return [growth * min(epoch, last) for epoch in range(epochs)]


def walk(chance: random.Random, epochs: int) -> list[float]:
    """Return memory that changes by up to 2 MB from epoch to epoch, and returns to its mean."""
    value, values = 0.0, []
    for _ in range(epochs):
        value = 0.5 * value + chance.uniform(-2, 2)
        values.append(value)
    return values


LEAKS: dict[str, Make] = {f"leak of {size_mb} MB": leak(size_mb) for size_mb in (1, 10, 100)}
OTHERS: dict[str, Make] = {
    "steady": steady, "sawtooth": sawtooth, "cache, exponential": filling, "cache, even": stopping, "fluctuating": walk,
}  # fmt: skip


def found(make: Make, epochs: int, noise_mb: float) -> float:
    """Return the fraction of runs in which a growth is found."""
    count = 0
    for number in range(RUNS):
        chance = random.Random(number)
        values = make(chance, epochs)
        points = [(epoch, BASE_BYTES + MB * (value + chance.gauss(0, noise_mb))) for epoch, value in enumerate(values)]
        count += memory_growth(points) is not None
    return count / RUNS


def print_simulated() -> None:
    rows = [
        [name, f"{noise_mb:g} MB", *(f"{100 * found(make, epochs, noise_mb):.1f} %" for epochs in EPOCHS)]
        for name, make in {**LEAKS, **OTHERS}.items()
        for noise_mb in NOISES_MB
    ]
    columns = ("memory", "noise", *(f"{epochs} epochs" for epochs in EPOCHS))
    print_table("Growth of memory that is found in simulated runs", columns, rows)


PROGRAM = """
import sys
kept = []
for line in sys.stdin:
    action, megabytes = line.split()
    if action == "free":
        kept.clear()
    kept.append(bytearray(b"1") * int(float(megabytes) * 2**20))
    print(flush=True)
"""
"""Allocates memory on request, which it keeps, or in place of the earlier one."""
REAL: dict[str, Sequence[tuple[str, float]]] = {
    **{f"leak of {size} MB": [("keep", size)] * REAL_EPOCHS for size in (1, 10, 100)},
    "steady": [("free", 20)] * REAL_EPOCHS,
    "sawtooth": [("free" if epoch % 4 == 0 else "keep", 10) for epoch in range(REAL_EPOCHS)],
    "cache, even": [("keep", 10 if epoch < REAL_EPOCHS // 2 else 0) for epoch in range(REAL_EPOCHS)],
}


def measured(requests: Sequence[tuple[str, float]]) -> list[tuple[int, float]]:
    """Return the memory of a process after each of its requests."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        memory, points = ProcessMemory(), []
        memory.own_pids.add(process.pid)
        for epoch, (action, megabytes) in enumerate(requests):
            opened_ns = time.monotonic_ns()
            memory.mark()
            process.stdin.write(f"{action} {megabytes}\n")
            process.stdin.flush()
            process.stdout.readline()
            memory.mark()
            used = memory.window(opened_ns, time.monotonic_ns())
            points.append((epoch, used["process_memory_bytes"]))
        process.stdin.close()
    return points


def print_real() -> None:
    rows = []
    for name, requests in REAL.items():
        growths = [memory_growth(measured(requests)) for _ in range(REAL_RUNS)]
        sizes = [growth.bytes / MB for growth in growths if growth]
        text = f"{min(sizes):.2f} to {max(sizes):.2f} MB" if sizes else ""
        rows.append([name, f"{len(sizes)} of {REAL_RUNS}", text])
    print_table(f"Growth of memory that is found in processes, {REAL_EPOCHS} epochs", ("memory", "found", "size"), rows)


if __name__ == "__main__":
    print_simulated()
    print_real()
