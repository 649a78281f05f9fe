"""What the checks of a machine use: its instruments, a load, programs with known times, and a clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import Instrument
from epochmeter.power.knobs.knob import Knob
from epochmeter.power.uncertainty import Response
from epochmeter.shared.problem import MachineError, Problem
from epochmeter.validation.sensor_response import Measured, UnknownResponseError, measure_response
from epochmeter.validation.switched_load import REAL_CLOCK, Clock, Load, Readings, Recording, Work, read_until, record

SWITCHED_S, IDLE_S, WORK_S, WORKS = 100.0, 10.0, 4.0, 6
"""Duration of the switched load, of each idle time and of each work, and number of works, with `minutes=10`."""
LEAST_SWITCHED_S = 40.0  # which the response of a slow sensor and the coverage of a dozen windows need
SETTLING_S = 5.0  # time after a load in which a GPU lowers its clocks
READ_EVERY_S = 0.005
NO_TORCH = "no Python with torch runs the known load"


class Programs(Protocol):
    """Programs with known times: each returns known and measured values, or raises MachineError with the reason."""

    def waits(self) -> "Mapping[str, Mapping[str, Pair]]":
        """Return stall, fetch and prep of scripts with known waits by part and case, in seconds per step."""

    def device_times(self) -> "Mapping[str, Pair]":
        """Return copy and compute of a script by CUDA events of its bare loop, in seconds per step."""

    def overhead(self, pairs: int) -> Sequence[float]:
        """Return the ratios of the times of measured and bare epochs, which alternate."""

    def peaks(self) -> "Peaks":
        """Return the measured peak and that of the datasheet."""

    def kernels(self) -> "Mapping[str, Mapping[str, float]]":
        """Return the performance counters while the GPU ran kernels of a known mix, by the name of the mix."""


class Pair(NamedTuple):
    """A known value and the measured one."""

    known: float
    measured: float


class Peaks(NamedTuple):
    """Peaks in FLOP/s: of several measurements, and of the datasheet; None: this device has none in the table."""

    measured: Sequence[float]
    datasheet: float | None
    device: str


class ChangedSetting(NamedTuple):
    """A setting that was changed: as requested, as read back, after a run, and by the next start after SIGKILL."""

    original: str
    requested: str
    applied: str
    restored: str
    after_kill: str
    is_applied: bool
    is_restored: bool
    is_restored_after_kill: bool


class Idle(NamedTuple):
    """Readings before and after the load, with the borders of each time."""

    before: tuple[float, float, Mapping[str, Readings]]
    after: tuple[float, float, Mapping[str, Readings]]


@dataclass
class Bench:
    """A machine to validate.

    Attributes:
        instruments: Energy counters and power sensors by domain.
        total: The domains that add up to the total.
        no_energy: Why there are no instruments.
        no_load: Why no load can be run.
        knobs: Settings by key that this user may change, or why not.
        minutes: About how long the checks may take together, with `settings` whether settings may be changed.
    """

    instruments: Mapping[str, Instrument] = field(default_factory=dict)
    total: Sequence[str] = ()
    cross_checks: Sequence[CrossCheck] = ()
    no_energy: Problem | None = None
    load: Load | None = None
    no_load: Problem | None = None
    programs: Programs | None = None
    on_gpu: bool = False
    settings: bool = False
    knobs: "Mapping[str, Knob | Problem]" = field(default_factory=dict)
    change: "Callable[[str, Knob], ChangedSetting | Problem] | None" = None
    minutes: float = 10.0
    clock: Clock = REAL_CLOCK
    seed: int = 0

    @property
    def scale(self) -> float:
        """Durations in multiples of those of ten minutes."""
        return self.minutes / 10

    @cached_property
    def switched(self) -> Recording:
        """The readings while the load was switched, after those without load; MachineError if no load can be run."""
        load, _ = self._load, self._idle
        seconds = max(LEAST_SWITCHED_S, SWITCHED_S * self.scale)
        return record(self.instruments, load, seconds, period_s=READ_EVERY_S, clock=self.clock, seed=self.seed)

    @cached_property
    def idle(self) -> Idle:
        """The readings without load, before and after the switched one."""
        _ = self.switched
        self.clock.sleep(SETTLING_S)
        return Idle(self._idle, self._read_idle())

    @cached_property
    def _idle(self) -> tuple[float, float, Mapping[str, Readings]]:
        return self._read_idle()

    def _read_idle(self) -> tuple[float, float, Mapping[str, Readings]]:
        begun_s = self.clock.now_s()
        ends_s = begun_s + max(2.0, IDLE_S * self.scale)
        return begun_s, ends_s, read_until(self.instruments, ends_s, READ_EVERY_S, self.clock)

    @cached_property
    def works(self) -> list[tuple[Work, Mapping[str, Readings]]]:
        """The same number of operations several times, with the readings of each time."""
        done: list[tuple[Work, Mapping[str, Readings]]] = []
        load, seconds = self._load, max(1.0, WORK_S * self.scale)
        for _ in range(WORKS):
            load.work(seconds)
            ends_s = self.clock.now_s() + 1.5 * seconds + 1
            readings = read_until(self.instruments, ends_s, READ_EVERY_S, self.clock)
            done.append((load.done(), readings))
        return done

    @cached_property
    def waits(self) -> "Mapping[str, Mapping[str, Pair]]":
        """Stall, fetch and prep of scripts with known waits, by part and case."""
        return self.known_programs.waits()

    @cached_property
    def device_times(self) -> "Mapping[str, Pair]":
        """Copy and compute of a script by CUDA events of its bare loop."""
        return self.known_programs.device_times()

    @cached_property
    def changed_settings(self) -> "Mapping[str, ChangedSetting | Problem]":
        """What happened to each setting that was changed, or why it was not."""
        return {
            key: knob if isinstance(knob, Problem) else self.change(key, knob)
            for key, knob in self.knobs.items()
            if self.change
        }

    @property
    def known_programs(self) -> Programs:
        """The programs with known times; MachineError if none can be run."""
        if self.programs is None:
            raise MachineError(self.no_load or Problem(NO_TORCH))
        return self.programs

    @property
    def _load(self) -> Load:
        if self.load is None:
            raise MachineError(self.no_load or Problem(NO_TORCH))
        return self.load

    def problem(self, name: str) -> str:
        """Return why an instrument was not read while the load was switched; empty if it was."""
        return self.switched.readings[name].problem(self.switched.begun_s, self.switched.ended_s)

    @cached_property
    def responses(self) -> "dict[str, Measured | str]":
        """The measured response of each instrument by domain, or why it is unknown."""
        found: dict[str, Measured | str] = {}
        for name, instrument in self.instruments.items():
            if problem := self.problem(name):
                found[name] = problem
                continue
            try:
                found[name] = measure_response(self.switched, name, instrument.domain)
            except UnknownResponseError as reason:
                found[name] = str(reason)
        return found

    def used_response(self, name: str) -> Response | None:
        """The measured response with which runs replace the assumed one; None if they do not."""
        found = self.responses[name]
        is_used = isinstance(found, Measured) and (found.is_held or self.instruments[name].domain.source == "sampled")
        return found.response if isinstance(found, Measured) and is_used else None
