"""A measured run as the rules for its next steps see it (next_steps.py)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from epochmeter.config.schema import Job
from epochmeter.results.bottleneck import FETCH_STALL, PREP_STALL, SYNTHETIC, Bottleneck, of_section
from epochmeter.results.documents import Loading, StragglerFields
from epochmeter.results.intervals import half_width
from epochmeter.results.memory_growth import GROWTHS
from epochmeter.results.roofline import verdict
from epochmeter.results.run_info import LoaderFacts, RunInfo

AMPERE = re.compile(r"\b(?:[ABHL]\d|G[BH]\d|RTX [345]0[5-9]0|Orin|Thor)")
"""Names of devices with the tensor cores of Ampere or newer: `A100`, `L40S`, `GH200`, `RTX 3090`."""
MAX_FRACTION_OF_MEMORY = 0.25
"""Fraction of the machine's memory that a dataset in memory may use: workers, caches and other processes need some."""
USUAL_WORKERS = 4
FULL_PRECISIONS = ("fp32", "tf32")  # those of 32 bits
DECODED_PER_BYTE = 20  # upper bound of the size of decoded images, per byte of their files
MIN_LOWERED = 0.05  # smallest fraction of the time with lowered clocks that matters
MIN_LAUNCHING = 0.1  # fraction of the time that the GPU waits for launches, from which a run is launch-bound


@dataclass(frozen=True)
class Machine:
    """What the machine of a run offers.

    Attributes:
        cores: Processor cores that the run may use.
        gpus: Number of GPUs that the run may use.
        gpu_vendor: `nvidia` or `amd`; empty without a GPU, or if no driver lists it.
        meters: Options of `meter` that can measure the energy here, if the run has not measured it.
        memory_bytes: None if it is not known.
        has_fan: Whether `fan=max` can be set.
    """

    cores: int = 1
    gpus: int = 0
    gpu_vendor: str = ""
    meters: tuple[str, ...] = ()
    memory_bytes: int | None = None
    has_fan: bool = False


class Gain(NamedTuple):
    """The time that a step saves at most, as a fraction of the time per epoch, with its 95 % interval over epochs."""

    at_most: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> "Gain":
        """Return the bound if a step saves only this fraction of it."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return Gain(factor * self.at_most, low, high)


@dataclass(frozen=True)
class MeasuredRun:
    """A run that has ended.

    Attributes:
        metrics: Those of its summary, by full name.
        epochs: Metrics of the epochs whose means are the `steady/` metrics.
        bottleneck: None if it is not known.
        loading: How the last epoch's batches were loaded, in a script.
        straggler: The rank for which the others wait; empty without one.
        folder: Its folder or `SWEEP/NUMBER`, quoted as the value of a key in the shell.
    """

    job: Job
    run: RunInfo
    metrics: Mapping[str, float]
    epochs: Sequence[Mapping[str, float | None]] = ()
    bottleneck: Bottleneck | None = None
    machine: Machine = field(default_factory=Machine)
    folder: str = ""
    loading: Loading = field(default_factory=Loading)
    straggler: StragglerFields = field(default_factory=StragglerFields)

    @property
    def is_script(self) -> bool:
        return bool(self.job.measure.command)

    @property
    def on_gpu(self) -> bool:
        return self.run.training.get("accelerator", "cpu") != "cpu"

    @property
    def parts(self) -> tuple[str, ...]:
        """The largest part of the mean epoch, several if they do not differ significantly; empty if it is not known."""
        return self.bottleneck.parts if self.bottleneck else ()

    def is_bottleneck(self, *parts: str) -> bool:
        """Return whether any of these parts is the largest, or not significantly smaller."""
        return any(part in parts for part in self.parts)

    @property
    def is_undecided(self) -> bool:
        """Whether the epochs vary too much to show which part is the largest."""
        return len(self.parts) > 1 and not (self.bottleneck and self.bottleneck.equal)

    @property
    def ranks(self) -> int:
        """Training processes on this machine, each with DataLoader workers of its own."""
        return (self.job.strategy.ranks or 1) if self.job.strategy.has_processes else 1

    @property
    def cores_per_rank(self) -> int:
        return self.machine.cores // self.ranks

    @property
    def loader(self) -> LoaderFacts:
        """The DataLoader that trains; of a script as far as it is known."""
        if self.is_script:
            loaders = self.run.training.get("loaders")
            return loaders[0] if loaders else {}
        job = self.job
        pin_memory = self.on_gpu if job.pin_memory == "auto" else job.pin_memory
        facts: LoaderFacts = {
            "batch": job.batch,
            "pin_memory": pin_memory,
            "persistent_workers": job.persistent_workers,
        }
        return {**facts, "workers": job.workers} if isinstance(job.workers, int) else facts

    @property
    def compiles(self) -> bool:
        """Whether torch can compile models for the device: on a GPU from version 2 on."""
        version = self.run.training.get("torch") or ""
        return self.on_gpu and version.partition(".")[0].isdigit() and int(version.partition(".")[0]) >= 2

    @property
    def dataset_bytes(self) -> float | None:
        """Size of the dataset's files."""
        return (self.run.dataset or {}).get("bytes")

    @property
    def is_launch_bound(self) -> bool:
        """Whether the host launches kernels too slowly, by the trace or by the roofline."""
        idle = self.traced("idle_launch_fraction")
        return bool(idle and idle.at_most >= MIN_LAUNCHING) or verdict(self.metrics) == "launch-bound"

    @property
    def reads_samples(self) -> bool:
        return self.run.medium != SYNTHETIC

    @property
    def is_limited_below_maximum(self) -> bool:
        """Whether the run had a power limit below the highest one of its device."""
        limit_w, max_w = self.run.power_limit_w, self.run.power_limit_max_w
        return limit_w is not None and max_w is not None and limit_w < max_w

    @property
    def trained_all_epochs(self) -> bool:
        """Whether `epochs=` decided the number of epochs, or a script did."""
        return self.is_script or self.metrics.get("total/epochs") == self.job.epochs

    @property
    def has_trace(self) -> bool:
        return "trace/steps" in self.metrics

    @property
    def computes_in_fp32(self) -> bool:
        """Whether it computes in 32 bits: by its configuration, or by the operators or the kernels of a script."""
        if precision := self.run.training.get("step", {}).get("precision"):
            return precision in FULL_PRECISIONS
        if self.is_script:
            fractions = [self.metrics.get(f"trace/precision_{name}_fraction", 0.0) for name in FULL_PRECISIONS]
            return sum(fractions) > 0.5
        return self.job.precision in FULL_PRECISIONS and self.job.strategy.name != "dp"

    def is_lowered(self, name: str) -> bool:
        """Return whether the clocks were lowered for a part of the time that matters, by the name of its metric."""
        return self.steady.get(name, 0.0) >= MIN_LOWERED

    @property
    def memory_grows(self) -> bool:
        """Whether the memory of the GPU, or of the training's processes, grows from epoch to epoch."""
        return any(f"total/{growth}" in self.metrics for _, growth, _ in GROWTHS.values())

    @cached_property
    def steady(self) -> dict[str, float]:
        """The metrics of the mean epoch by short name."""
        return of_section(self.metrics, "steady")

    def gain(self, *names: str) -> Gain | None:
        """Return the bound if these parts of the mean epoch took no time; None unless all are known."""
        e2e_s = self.steady.get("e2e_s")
        if not e2e_s or not all(name in self.steady for name in names):
            return None
        at_most = min(1.0, sum(self.steady[name] for name in names) / e2e_s)
        rows = [[epoch.get(f"epoch/{name}") for name in ("e2e_s", *names)] for epoch in self.epochs]
        known = [[value for value in row if value is not None] for row in rows if None not in row]
        if len(known) < max(2, len(rows)):
            return Gain(at_most)
        half = half_width([sum(parts_s) / epoch_s for epoch_s, *parts_s in known])
        return Gain(at_most, max(0.0, at_most - half), min(1.0, at_most + half))

    def straggler_gain(self) -> Gain | None:
        """Return the bound if the straggler were as fast as the other ranks; None without one."""
        steps, e2e_s = self.steady.get("steps"), self.steady.get("e2e_s")
        if not (self.straggler and steps and e2e_s):
            return None
        return Gain(min(1.0, self.straggler["saving_s"] * steps / e2e_s))

    def is_slowed_by(self, cause: str) -> bool:
        """Return whether there is a straggler, and this is its largest cause."""
        return self.straggler.get("causes", [])[:1] == [cause]

    def traced(self, name: str) -> Gain | None:
        """Return a fraction of the traced time as a bound; None if it was not traced."""
        fraction = self.metrics.get(f"trace/{name}")
        return None if fraction is None else Gain(fraction)

    def stall_gain(self, stall: str) -> Gain | None:
        """Return the bound of a data stall; if they are not divided, of all of them."""
        kinds = {PREP_STALL, FETCH_STALL} & {name.removesuffix("_s") for name in self.steady}
        return self.gain(f"{stall}_s" if kinds else "data_stall_s")

    def fits_in_memory(self, size: float | None) -> bool:
        """Return whether so many bytes fit into the machine's memory next to the training."""
        memory = self.machine.memory_bytes
        return size is not None and memory is not None and size <= MAX_FRACTION_OF_MEMORY * memory

    @property
    def fits_larger_batch(self) -> bool:
        """Whether the GPU has memory for twice the batch, as far as it is known."""
        batch = self.loader.get("batch")
        if batch and (largest := self.metrics.get("memory/largest_batch")):
            return largest >= 2 * batch
        peak, capacity = self.steady.get("gpu_memory_peak_bytes"), self.run.training.get("gpu", {}).get("memory_bytes")
        return bool(batch and peak and capacity and 2 * peak <= capacity)


def half_precision(*names: str) -> str:
    """Return the 16-bit precision for a device, by the names of its GPU or board."""
    return "bf16" if AMPERE.search(" ".join(names)) else "fp16"


def more_workers(workers: int, most: float) -> int:
    """Return the number of DataLoader workers to try next, at most so many."""
    return int(min(2 * workers or USUAL_WORKERS, most))
