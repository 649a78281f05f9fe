"""Two traces compared: how often an operator that became 5 % slower is found, and how often one that did not.

Simulated traces have known times per operator, with noise from step to step: of each operator alone, and common to all
operators of a step. With the argument `limits`, only the power that any test could have is printed. In the real pairs,
torch's profiler traces a training whose operator waits for a known time.
"""

from __future__ import annotations

import itertools
import math
import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import NormalDist, fmean
from typing import NamedTuple

import torch
from common.output import ARGUMENTS, print_table, sized
from kineto import Kineto
from torch import nn

from epochmeter.report.analyses.trace_changes import Source, TraceChanges, analyze, read_times
from epochmeter.worker.trace import TorchTrace, module_ranges

SLOWER, STEPS, OPERATORS, LEVEL = 1.05, (3, 10), 40, 0.05
Pair = tuple[float, float]


class Noise(NamedTuple):
    """Noise from step to step.

    Attributes:
        own: Median and 90th percentile of the operators' relative standard deviations. In published traces of a
            V100, those of kernels are 0.5 and 4 %.
        of_step: Relative standard deviation that is common to all operators of a step.
        disturbed: Fraction of times that are doubled.
    """

    own: Pair
    of_step: float = 0.0
    disturbed: float = 0.0

    def deviations(self, chance: random.Random) -> list[float]:
        """Return the relative standard deviation of each operator."""
        spread = math.log(self.own[1] / self.own[0]) / NormalDist().inv_cdf(0.9)
        return [self.own[0] * chance.lognormvariate(0, spread) for _ in range(OPERATORS)]


NOISES: dict[str, Noise] = {
    "0.5 %": Noise((0.005, 0.005)),
    "1 %": Noise((0.01, 0.01)),
    "2 %": Noise((0.02, 0.02)),
    "1 %, and 1 % of whole steps": Noise((0.01, 0.01), of_step=0.01),
    "1 %, one of 50 times doubled": Noise((0.01, 0.01), disturbed=0.02),
    "as on a V100": Noise((0.005, 0.04)),
    "2 %, 4 % at most": Noise((0.02, 0.04)),
}
PAIRS, REAL_PAIRS = sized(400, 5), sized(40, 2)
MEAN_US = (20, 2000)
WAIT_S = 0.002
COLUMNS = ("noise", "steps", "slower operator found", "false discoveries", "equal traces with a false alarm")


def simulated(
    chance: random.Random, times_us: list[float], deviations: list[float], noise: Noise, steps: int, folder: Path
) -> Source:
    """Write a trace of some steps, each with a call of every operator."""
    trace, at_us = Kineto(), 0.0
    for step in range(steps):
        factor, begun_us = chance.lognormvariate(0, noise.of_step), at_us
        at_us += 1
        for place, (time_us, deviation) in enumerate(zip(times_us, deviations, strict=True)):
            lasts_us = time_us * factor * chance.lognormvariate(0, deviation)
            lasts_us *= 2 if chance.random() < noise.disturbed else 1
            trace.host(f"aten::operator{place}", round(at_us, 3), round(lasts_us, 3))
            at_us += lasts_us + 1
        trace.step(step, round(begun_us, 3), round(at_us - begun_us, 3))
        at_us += 1
    path = folder / f"{chance.random()}.json"
    return Source(path.name, trace.write(path))


def compared(before: Source, after: Source) -> TraceChanges:
    changes = analyze(read_times(before), read_times(after))
    for source in (before, after):
        source.path.unlink()
    return changes


def found_in(changes: TraceChanges) -> set[str]:
    """Return the operators of a comparison that differ."""
    return {change.difference.title for change in changes.tables["operators"].found}


def print_simulated(folder: Path) -> None:
    """Print the power for one slower operator among many, and the error rates."""
    chance, rows = random.Random(0), []
    for (name, noise), steps in itertools.product(NOISES.items(), STEPS):
        hits, false_rates, alarms = [], [], []
        for pair in range(PAIRS):
            times_us = [chance.uniform(*MEAN_US) for _ in range(OPERATORS)]
            deviations, place = noise.deviations(chance), pair % OPERATORS
            slower_us = [time_us * (SLOWER if each == place else 1) for each, time_us in enumerate(times_us)]
            before, after = (
                simulated(chance, each, deviations, noise, steps, folder) for each in (times_us, slower_us)
            )
            found = found_in(compared(before, after))
            hits.append(f"aten::operator{place}" in found)
            false_rates.append(len(found - {f"aten::operator{place}"}) / max(1, len(found)))
            before, after = (simulated(chance, times_us, deviations, noise, steps, folder) for _ in range(2))
            alarms.append(bool(found_in(compared(before, after))))
        rows.append([name, str(steps), *(f"{100 * fmean(values):.1f} %" for values in (hits, false_rates, alarms))])
    print_table(f"One of {OPERATORS} simulated operators 5 % slower", COLUMNS, rows)


def print_limits() -> None:
    """Print the power of a test that knows the noise of each operator: none that controls the error rates has more.

    Times are logarithms with normal noise; its level is divided by the number of operators. Values that are doubled are
    left out, as such a test can recognize them.
    """
    normal, chance, rows = NormalDist(), random.Random(0), []
    least = normal.inv_cdf(1 - LEVEL / OPERATORS / 2)
    for (name, noise), steps in itertools.product(NOISES.items(), STEPS):
        deviations = [deviation for _ in range(1000) for deviation in noise.deviations(chance)]
        errors = (math.hypot(deviation, noise.of_step) * math.sqrt(2 / steps) for deviation in deviations)
        found = fmean(normal.cdf(math.log(SLOWER) / error - least) for error in errors)
        rows.append([name, str(steps), f"{100 * found:.1f} %"])
    print_table("Power of a test that knows the noise", ("noise", "steps", "slower operator found"), rows)


@torch.library.custom_op("benchmark::wait", mutates_args=())
def wait(values: torch.Tensor, seconds: float) -> torch.Tensor:
    """Use the processor for a time."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass
    return values.clone()


wait.register_autograd(lambda context, gradient: (gradient, None))


class Waiting(nn.Module):
    """A layer whose operator takes a known time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Wait in an operator."""
        output: torch.Tensor = wait(inputs, self._seconds)
        return output


def traced(seconds: float, steps: int, path: Path) -> Source:
    """Trace the training of a model with a layer that waits."""
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), Waiting(seconds), nn.Linear(256, 10))
    inputs, optimizer = torch.randn(64, 256), torch.optim.SGD(model.parameters(), 0.01)

    def train(batches: Iterable[torch.Tensor]) -> None:
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    with module_ranges(model):
        TorchTrace(warmup_steps=10, steps=steps).record_trace(str(path), itertools.repeat(inputs), train)
    return Source(path.name, path)


def print_real(folder: Path) -> None:
    """Print how often a slower operator of real traces is found, and what else differs between them."""
    torch.set_num_threads(1)
    traced(WAIT_S, STEPS[-1], folder / "first.json.gz")  # the profiler's library starts
    rows = []
    for steps in STEPS:
        hits, others, tested = 0, 0, 0
        for _ in range(REAL_PAIRS):
            before, after = (
                traced(seconds, steps, folder / f"{seconds}.json.gz") for seconds in (WAIT_S, WAIT_S * SLOWER)
            )
            changes = compared(before, after)
            found = found_in(changes)
            hits += "benchmark::wait" in found
            others += len(found - {"benchmark::wait"})
            tested += changes.tables["operators"].tested - 1
        rows.append([str(steps), f"{hits} of {REAL_PAIRS}", f"{100 * others / tested:.1f} % of {tested}"])
    print_table("An operator of 2 ms 5 % slower, traced by torch", ("steps", "found", "others that differ"), rows)


if __name__ == "__main__":
    print_limits()
    if ARGUMENTS != ["limits"]:
        with tempfile.TemporaryDirectory() as temporary:
            print_simulated(Path(temporary))
            print_real(Path(temporary))
