"""The fields of the live view, which terminal, page and metrics show.

Every number is one of the record, or is computed as the run's summary and the sweep's report compute it. Names,
overrides and titles are texts of the user, to be escaped. A `reason` is why a run has its state; empty without one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from epochmeter.shared.problem import Problem
from epochmeter.watch.appended import Series

State = Literal["planned", "preparing", "training", "stalled", "completed", "failed", "killed", "unreadable"]
"""State of a run or of a sweep.

planned     of a sweep's run: not started
preparing   the dataset, the device or the model is prepared; of a sweep: no run trains at this moment
stalled     the process may live, but the record has not grown for long
killed      stopped or killed, with or without a summary
"""
ACTIVE: tuple[State, ...] = ("training", "stalled", "preparing")
"""States of a run that has not ended."""
BY_INTEREST: tuple[State, ...] = (*ACTIVE, "failed", "unreadable", "killed", "completed", "planned")
"""A sweep has the first of these states that any of its runs has. A table that is too long omits later states."""
PARTS = ("data_stall", "copy", "compute", "overhead")
"""The parts of an epoch, whose times add up to its end-to-end time."""
ROW_METRICS = {
    "epoch_s": "steady/e2e_s",
    "energy_j": "steady/energy_j",
    "estimated_energy_j": "steady/estimated_energy_j",
    "stall_fraction": "steady/data_stall_fraction",
}
"""Attribute of a row of a sweep -> its metric."""


@dataclass(frozen=True)
class Progress:
    """How far a run is; `fraction` and `remaining_*` are estimates, None if they are not known.

    Attributes:
        epoch: The epoch in progress, counted from 1; after the end, the last recorded one, 0 without any.
        epochs: Number of configured epochs; None for a measured script.
        steps: Steps of all recorded epochs.
        silent_s: Time since the record has last grown; after the end, 0.
        fraction: Fraction of the epochs that are trained, 0 to 1.
        is_maximum: Whether the run may end earlier, since it has a quality target.
        pid: The process, if it ran already: it has no epochs that are known.
    """

    epoch: int
    recorded: int
    epochs: int | None
    steps: int
    elapsed_s: float
    silent_s: float
    fraction: float | None = None
    remaining_s: float | None = None
    remaining_j: float | None = None
    is_maximum: bool = False
    pid: int | None = None


@dataclass(frozen=True)
class Split:
    """An epoch, or the mean of some: its number, as `4 so far`, `1 (warm-up)` or `mean 2-3`, and metrics by short name.

    The current epoch has the `steps` that the device has finished, and the times of their parts on the first rank.
    """

    title: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class RunView:
    """One run in detail.

    Attributes:
        splits: Those that exist of `current`, `last` (the last recorded epoch), and `mean` (epochs after the warm-up).
        metrics: `steady/`, `std/` and `total/` metrics so far; at the end, all metrics of the summary.
        verdict: The bottleneck of the last of `splits`, as a sentence.
        bottleneck: The same: the largest part, or several about equal ones -> fraction of the epoch, 0 to 1.
        straggler: The rank for which the others wait, as a sentence; empty without one.
        energy_source: `counter`, `sampled`, `estimated` or `none`.
        energy_valid: Whether the energy of the mean epoch so far, or of all windows before it, holds; None before the
            first window.
        energy_reasons: Code of each reason why it is absent or doubtful (machine/energy_codes.py) -> its text.
        cost_per_j: Cost of a joule in `currency`, with the PUE; None without a price or measured energy.
        power: Column of power.csv -> watts (`total_w`, one per rail).
        gauges: Column of gauges.csv (machine/gauge_series.py) -> values in its unit.
        missing: `energy`, `power` or `gauges` -> why it is not recorded.
        throttling: Devices with lowered clocks in the last recorded second, and the causes; empty if there are none,
            None if no sensor reports it.
        warnings: Disturbances and notes of the record, the newest first.
        unlisted: Title, short name and unit of the metrics of epochs that the project does not know.
        account: Where the time of the whole run went, so far or at its end: `run/` metrics; empty if it is not known.
        rehearsal: The settings that were not applied; empty if the run is not a rehearsal.
        failure: The error of a failed or stopped run.
    """

    folder: str
    number: int
    name: str
    overrides: Mapping[str, str]
    state: State
    reason: str
    host: str
    progress: Progress
    splits: Mapping[str, Split]
    metrics: Mapping[str, float]
    verdict: str
    bottleneck: Mapping[str, float]
    straggler: str
    energy_source: str
    energy_valid: bool | None
    energy_reasons: Mapping[str, str]
    cost_per_j: float | None
    currency: str | None
    power: Mapping[str, Series]
    gauges: Mapping[str, Series]
    missing: Mapping[str, str]
    throttling: str | None
    warnings: Sequence[str]
    unlisted: Sequence[tuple[str, str, str]]
    account: Mapping[str, float]
    rehearsal: Sequence[str]
    failure: Problem | None


@dataclass(frozen=True)
class SweepRow:
    """One run in the table of a sweep.

    Attributes:
        overrides: Overrides in which the runs of the sweep differ, by key.
        host: The machine that measures or measured it; empty if it is not known, like `slurm_job`.
        epoch_s: Time of the mean steady epoch; None before the first, like its energy and its fraction in data stalls.
        duration_s: Time from the start to the end, or to now; None if it has not started.
        progress: None unless the run is active.
        is_reused: Whether another sweep measured it.
    """

    number: int
    state: State
    overrides: Mapping[str, str]
    reason: str = ""
    host: str = ""
    slurm_job: str = ""
    epoch_s: float | None = None
    energy_j: float | None = None
    estimated_energy_j: float | None = None
    stall_fraction: float | None = None
    duration_s: float | None = None
    progress: Progress | None = None
    is_reused: bool = False
    is_on_front: bool = False


@dataclass(frozen=True)
class FrontPoint:
    """A configuration on the Pareto front so far: the keys in which it differs, its runs, and its mean epoch."""

    title: str
    numbers: Sequence[int]
    time_s: float
    energy_j: float


@dataclass(frozen=True)
class Snapshot:
    """State of a folder at the Unix time `at_s`; a sweep of one run is shown as that run.

    Attributes:
        remaining_s: Estimated time to the end; None if it is not known, as the energy `remaining_j`.
        active: The runs in detail: the single run; of a sweep, those that are active.
        fraction: Fraction of the runs of a sweep that have ended, with the parts of those that train; None for a run.
        counts: State -> number of runs; empty for a single run, as the attributes below.
        runs: All runs of a sweep by number, those that have not started included.
        front: The Pareto front so far, the fastest first; `no_front` is why it is empty.
        rehearsal: The settings that ended runs of a sweep did not apply.
    """

    folder: str
    name: str
    at_s: float
    state: State
    reason: str
    remaining_s: float | None
    remaining_j: float | None
    active: Sequence[RunView]
    fraction: float | None = None
    is_sweep: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    runs: Sequence[SweepRow] = ()
    front: Sequence[FrontPoint] = ()
    no_front: str = ""
    rehearsal: Sequence[str] = ()
