"""How an NVIDIA GPU's energy counter and power reading see a load that switches on and off.

A matrix product runs for some milliseconds, then the GPU idles, and so on. A reading that averages over all of its
renewal period varies little between such cycles. One that measures only a part of that period sometimes meets the load
and sometimes the pause. The table compares the standard deviation of the readings with both expectations.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import torch
from common.output import print_table, sized

from epochmeter.machine import nvml
from epochmeter.shared.units import NANOSECOND

LOADS_MS = ((40, 40), (25, 25), (12, 13), (30, 60))
LOAD_S = sized(7.0, 2.0)
SETTLING_S = 0.6
READ_EVERY_S = 0.0015
PERIOD_S, PART_S = 0.1, 0.025
"""Renewal period of both readings, and the part of it that the sensor measures by arXiv:2312.02741."""


class Reading(NamedTuple):
    at_s: float
    energy_j: float
    power_w: float


def read_all(uuid: str, pipe: Connection) -> None:
    """Read counter and power until a message arrives, then send all readings."""
    nvml.start()
    gpu = nvml.open_gpu(uuid)
    readings = []
    while not pipe.poll(READ_EVERY_S):
        readings.append(Reading(time.monotonic_ns() * NANOSECOND, gpu.energy_j(), gpu.instant_power_w()))
    pipe.send(readings)


def switch(on_s: float, off_s: float, matrix: torch.Tensor) -> list[tuple[float, float]]:
    """Switch the load on and off for `LOAD_S`; return the times of each pulse."""
    pulses = []
    end_s = time.monotonic() + LOAD_S
    while time.monotonic() < end_s:
        begun_s = time.monotonic()
        while time.monotonic() < begun_s + on_s:
            matrix @ matrix
            torch.cuda.synchronize()
        pulses.append((begun_s, time.monotonic()))
        time.sleep(off_s)
    return pulses


def changes(readings: Sequence[Reading], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return when a reading changed, and its new values."""
    values = np.array([getattr(reading, column) for reading in readings])
    changed = np.flatnonzero(np.diff(values)) + 1
    return np.array([readings[place].at_s for place in changed]), values[changed]


def busy_fraction(pulses: Sequence[tuple[float, float]], ends_s: np.ndarray, length_s: float) -> np.ndarray:
    """Return the fraction of the time before each of `ends_s`, of that length, in which the load was on."""
    edges = np.array(pulses).ravel()
    busy_s = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])
    return np.asarray(np.interp(ends_s, edges, busy_s) - np.interp(ends_s - length_s, edges, busy_s)) / length_s


def main() -> None:
    if not torch.cuda.is_available():
        print("benchmarks/accuracy/gpu_sensor.py needs an NVIDIA GPU: skipped.")
        return
    ours, theirs = multiprocessing.Pipe()
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    reader = multiprocessing.get_context("spawn").Process(target=read_all, args=(uuid, theirs))
    reader.start()
    matrix = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
    switch(LOAD_S, 0.0, matrix)  # starts CUDA, and gives the power of the load
    constant_s = time.monotonic()
    pulses = {load: switch(load[0] / 1e3, load[1] / 1e3, matrix) for load in LOADS_MS}
    pause_s = time.monotonic()
    time.sleep(LOAD_S)
    ours.send(None)
    readings = ours.recv()
    reader.join()
    print_table(
        f"Readings of {torch.cuda.get_device_name()} under a load that switches: standard deviation in W",
        ("on + off ms", "counter", "power reading", f"expected of {PERIOD_S:g} s", f"expected of {PART_S:g} s"),
        table(readings, pulses, constant_s, pause_s),
    )


def table(
    readings: Sequence[Reading], pulses: dict[tuple[int, int], list], constant_s: float, pause_s: float
) -> list[list[str]]:
    """Return a row for each load: measured standard deviations, and those expected of two averaging times."""
    ticks_s, energies_j = changes(readings, "energy_j")
    counted_s, counted_w = ticks_s[1:], np.diff(energies_j) / PERIOD_S
    power_s, power_w = changes(readings, "power_w")

    def within(times_s: np.ndarray, values: np.ndarray, begin_s: float, end_s: float) -> np.ndarray:
        return values[(times_s > begin_s) & (times_s < end_s)]

    constant_w = within(counted_s, counted_w, constant_s - LOAD_S + SETTLING_S, constant_s)
    swing_w = constant_w.mean() - within(counted_s, counted_w, pause_s + SETTLING_S, pause_s + LOAD_S).mean()
    rows = []
    for load, times in pulses.items():
        begin_s, end_s = times[0][0] + SETTLING_S, times[-1][0] - PERIOD_S
        counter = within(counted_s, counted_w, begin_s, end_s)
        power = within(power_s, power_w, begin_s, end_s)
        ends_s = np.linspace(begin_s, end_s, 10_000)
        expected = [np.hypot(swing_w * busy_fraction(times, ends_s, length_s).std(), constant_w.std())
                    for length_s in (PERIOD_S, PART_S)]  # fmt: skip
        spreads = (statistics.pstdev(counter), statistics.pstdev(power), *expected)
        rows.append([f"{load[0]} + {load[1]}", *(f"{spread:.0f}" for spread in spreads)])
    return rows


if __name__ == "__main__":
    main()
