"""Simulated Jetsons: time and power of training by batch size and clocks, by other laws than those of predictions.

A step computes kernel by kernel, each limited by arithmetic, by memory or by the cores that launch it. Batches are
prepared by some cores meanwhile. Voltages have a floor and then increase with the clock; leakage increases with the
temperature, and so with the power. Constants are made up, in the range of data sheets.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

Clocks = tuple[int, float, float, float]  # CPU cores, and clocks of CPU, GPU and memory in Hz
KERNELS = 24
TIME_NOISE, POWER_NOISE = 0.01, 0.015


class Board(NamedTuple):
    """A board: its highest clocks, speeds and powers at these, and voltages relative to the highest."""

    name: str
    highest: Clocks
    gpu_flops: float  # FLOP/s
    memory_bytes: float  # bytes/s
    core_speed: float
    base_w: float  # power that depends on nothing
    core_w: float
    gpu_w: float
    memory_w: float
    lowest: float  # lowest voltage of CPU and GPU
    flat: float  # fraction of the highest clock up to which the voltage is the lowest

    def modes(self, cores: int = 3, cpu: int = 8, gpu: int = 8, memory: int = 3) -> list[Clocks]:
        """Return all combinations of a number of values of each clock."""
        most = self.highest
        counts = sorted({max(1, round(most[0] * (n + 1) / cores)) for n in range(cores)})
        steps = [np.linspace(low, 1.0, count) for low, count in ((0.25, cpu), (0.15, gpu), (0.4, memory))]
        return list(itertools.product(counts, *(tuple(most[n + 1] * step) for n, step in enumerate(steps))))


BOARDS = (
    Board("AGX Orin", (12, 2.2e9, 1.3e9, 3.2e9), 4e12, 150e9, 1.0, 9.0, 0.9, 24.0, 5.0, 0.58, 0.35),
    Board("Orin NX", (8, 2.0e9, 0.92e9, 3.2e9), 1.6e12, 80e9, 0.9, 4.0, 0.8, 9.0, 3.0, 0.62, 0.40),
    Board("Orin Nano", (6, 1.5e9, 0.62e9, 2.1e9), 1.1e12, 50e9, 0.7, 3.0, 0.5, 4.5, 2.0, 0.70, 0.45),
    Board("AGX Xavier", (8, 2.3e9, 1.4e9, 2.1e9), 1.3e12, 100e9, 0.8, 6.0, 1.3, 14.0, 3.5, 0.55, 0.30),
    Board("Xavier NX", (6, 1.9e9, 1.1e9, 1.9e9), 0.8e12, 45e9, 0.7, 3.0, 0.8, 7.0, 2.0, 0.60, 0.35),
)


class Workload(NamedTuple):
    """A model on a dataset: FLOPs and bytes per sample of each kernel, and seconds of a core of speed 1."""

    name: str
    flops: np.ndarray
    memory_bytes: np.ndarray
    half_batch: float
    launch_s: float
    prepare_s: float
    step_s: float
    samples: int


def workload(seed: int) -> Workload:
    """Return a workload between LeNet and ResNet-50, with random kernels."""
    drawn = np.random.default_rng(seed)
    flops = 10 ** drawn.uniform(8.3, 10.2) * drawn.dirichlet(np.ones(KERNELS))
    intensity = 10 ** drawn.normal(1.5, 0.5, KERNELS)  # FLOPs per byte
    return Workload(
        f"model{seed}", flops, flops / intensity, 2 ** drawn.uniform(0, 4), 10 ** drawn.uniform(-5.3, -4.3),
        10 ** drawn.uniform(-4, -2.4), 10 ** drawn.uniform(-3.3, -2.2), 20_000,
    )  # fmt: skip


def measure(
    board: Board, of: Workload, batch: int, clocks: Clocks, noise: np.random.Generator | None = None
) -> tuple[float, float]:
    """Return the time of an epoch in seconds and the mean power in watts, with the noise of a run if asked."""
    cores = clocks[0]
    cpu, gpu, memory = (clock / most for clock, most in zip(clocks[1:], board.highest[1:], strict=True))
    core_speed = board.core_speed * cpu
    arithmetic_s = of.flops * (batch + of.half_batch) / (board.gpu_flops * gpu)
    memory_s = of.memory_bytes * batch / (board.memory_bytes * memory)
    on_gpu_s = np.maximum(arithmetic_s, memory_s).sum()
    launch_s = 3 * KERNELS * of.launch_s / core_speed
    prepare_s = batch * of.prepare_s / (core_speed * min(cores, 5) ** 0.85)
    step_s = max(max(on_gpu_s, launch_s), prepare_s) + of.step_s / core_speed
    time_s = of.samples / batch * step_s
    busy, traffic = on_gpu_s / step_s, memory_s.sum() / step_s
    working = 1.0 + batch * of.prepare_s / core_speed / step_s  # cores, one of which launches kernels
    idle_cores = 0.15 * max(0.0, cores - working)
    dynamic_w = (
        board.core_w * (min(working, cores) + idle_cores) * cpu * _voltage(board, cpu) ** 2
        + board.gpu_w * (0.08 + 0.92 * busy) * gpu * _voltage(board, gpu) ** 2
        + board.memory_w * (0.4 * memory + 0.6 * min(1.0, traffic) * memory)
    )
    power_w = board.base_w + dynamic_w
    for _ in range(3):  # leakage heats, and heat leaks
        power_w = board.base_w * (1 + 0.004 * power_w) + dynamic_w
    if noise is not None:
        time_s *= np.exp(noise.normal(0, TIME_NOISE))
        power_w *= np.exp(noise.normal(0, POWER_NOISE))
    return float(time_s), float(power_w)


def _voltage(board: Board, clock: float) -> float:
    return board.lowest + (1 - board.lowest) * max(0.0, clock - board.flat) / (1 - board.flat)
