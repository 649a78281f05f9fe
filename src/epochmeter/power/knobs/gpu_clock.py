"""Locked clocks of GPUs, in MHz: of NVIDIA (NVML's locked clocks) and AMD (the clock range, by ROCm's amdsmi).

NVML does not report a lock. The clock shows whether it holds: it may be lower, as with a power limit, but not higher. A
lock that another program set before the run cannot be seen, and is replaced by the default at the end.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from epochmeter.machine import nvml
from epochmeter.machine.amd import AmdSmiGpu, board_card, find_cards
from epochmeter.power.knobs.knob import NO_EFFECT_HINT, Knob, SettingTarget, poll_until
from epochmeter.shared.problem import MachineError, Problem, input_error, machine_error, problem_of, problems_of

Kind = Literal["gpu_clock", "memory_clock"]
FREE = "free"  # the setting of a clock that is not locked by this program
MOST = 8  # most locked clocks that a search tries besides the free one
LOWEST_FRACTION = 0.4  # lowest clock of a search, as a fraction of the highest
TOLERANCE_MHZ = 8  # NVIDIA's clocks have steps of 7.5 or 15 MHz
NOT_REPORTED = "the driver does not report locked clocks; after the run, the clock is free."
DRIVERS = {"gpu_clock": ("GPU clock", "-lgc", "-rgc"), "memory_clock": ("memory clock", "-lmc", "-rmc")}
"""Key -> name of the clock, and the options of nvidia-smi that lock and free it."""


class ClockDevice(NamedTuple):
    """A clock of one GPU. A setting is `free`, `1200 MHz`, or of an AMD GPU `500 to 1700 MHz (auto)`.

    Attributes:
        steps: Clocks that can be locked, in MHz, ascending; of an AMD GPU the ends of a range.
        is_range: Whether all clocks between these can be locked.
        read: Returns the setting; OSError or RuntimeError if it cannot be read.
        write: Changes it; RuntimeError if that is refused.
        by_hand: Returns the shell command that sets it.
    """

    steps: Sequence[int]
    is_range: bool
    read: Callable[[], str]
    write: Callable[[str], None]
    by_hand: Callable[[str], str]


class ClockLock(Knob):
    """A clock of several GPUs, as a `Knob`; its setting is that of each GPU, separated by `; ` if they differ."""

    def __init__(self, key: Kind, vendor: str, clocks: Mapping[str, ClockDevice]) -> None:
        self._key, self.name = key, f"{vendor}-{key}"
        self.devices = list(clocks)
        self._clocks = list(clocks.values())
        common = set.intersection(*(set(clock.steps) for clock in self._clocks))
        self._is_range = all(clock.is_range for clock in self._clocks)
        if self._is_range:
            common = {max(clock.steps[0] for clock in self._clocks), min(clock.steps[-1] for clock in self._clocks)}
        self.steps = sorted(common)

    def get(self) -> str:
        return joined([clock.read() for clock in self._clocks])

    def set(self, setting: str) -> None:
        """Set each GPU, also if another one refuses, and wait until all have the setting."""
        refusals: list[Problem] = []
        written: list[tuple[ClockDevice, str]] = []
        for clock, own in zip(self._clocks, self._settings_of(setting), strict=True):
            try:
                clock.write(own)
                written.append((clock, own))
            except RuntimeError as error:
                refusals += problems_of(error)
        self.pending = bool(written)
        reached = poll_until(lambda: all(is_same(clock.read(), own) for clock, own in written))
        self.pending = not reached
        if refusals:
            raise MachineError(*refusals)
        if not reached:
            raise machine_error(f"cannot set {self.name} to {setting}: the device is at {self.get()}.", NO_EFFECT_HINT)

    def is_equal(self, setting: str, other: str) -> bool:
        """Return whether a setting that was read, the first one, may be the other one.

        `free` may be any: another process, as one that was killed, may have locked the clock, which NVML does not show.
        """
        return all(map(is_same, self._settings_of(setting), self._settings_of(other)))

    def choices(self) -> str:
        if self._is_range:
            return f"{self.steps[0]} to {self.steps[-1]} MHz"
        return f"{format_steps(self.steps)} MHz"

    def target_for(self, value: str | float) -> SettingTarget:
        if self._is_range and self.steps[0] <= float(value) <= self.steps[-1]:
            return SettingTarget(locked(int(value)))
        if value in self.steps:
            return SettingTarget(locked(int(value)), note=f"{self._key}={value}: {NOT_REPORTED}")
        nearest = " or ".join(f"{self._key}={step}" for step in nearest_steps(self.steps, float(value)))
        raise input_error(
            f"{self._key}={value} is not a clock of the GPUs used, which have {self.choices()}", f"give {nearest}"
        )

    def limits(self) -> list[SettingTarget]:
        """Some clocks for a search, evenly distributed from 40 % of the highest, and the free one as the last."""
        high = self.steps[-1]
        low = max(self.steps[0], LOWEST_FRACTION * high)
        aims = [low + number * (high - low) / (MOST - 1) for number in range(MOST)]
        clocks = {round(aim) if self._is_range else nearest_steps(self.steps, aim)[0] for aim in aims}
        return [*(SettingTarget(locked(clock)) for clock in sorted(clocks)), SettingTarget(self.get())]

    def by_hand(self, setting: str) -> str:
        own = zip(self._clocks, self._settings_of(setting), strict=True)
        return " && ".join(clock.by_hand(text) for clock, text in own)

    def _settings_of(self, setting: str) -> list[str]:
        settings = setting.split("; ")
        return settings * len(self._clocks) if len(settings) == 1 else settings


def joined(settings: Sequence[str]) -> str:
    return "; ".join(settings if len({*settings}) > 1 else settings[:1])


def locked(mhz: int) -> str:
    return f"{mhz} MHz"


def mhz_of(setting: str) -> float | None:
    """Return the clock that a setting locks; None if it does not lock one."""
    number = setting.removesuffix(" MHz")
    return float(number) if number.isdecimal() else None


def is_same(setting: str, other: str) -> bool:
    """Return whether a setting that was read may be the other one."""
    own, others = mhz_of(setting), mhz_of(other)
    if own is not None and others is not None:
        return abs(own - others) <= TOLERANCE_MHZ
    return setting in (other, FREE)


def nearest_steps(steps: Sequence[int], mhz: float) -> list[int]:
    """Return the one or two clocks around a value, the nearest one first."""
    place = bisect_left(steps, mhz)
    return sorted(steps[max(0, place - 1) : place + 1], key=lambda step: abs(step - mhz))


def format_steps(steps: Sequence[int]) -> str:
    """Return clocks as text, those at equal distances as ranges: `210 to 1410 in steps of 15`."""
    distances = {high - low for low, high in pairwise(steps)}
    if len(steps) > 3 and len(distances) == 1:
        return f"{steps[0]} to {steps[-1]} in steps of {distances.pop()}"
    return ", ".join(map(str, steps))


def open_clock(key: Kind, gpus: Sequence[Mapping[str, str]], root: str | Path) -> ClockLock | None:
    """Open a clock of the GPUs used; None unless each one has it, and its driver reports which it can lock."""
    vendors = {gpu["vendor"] for gpu in gpus}
    if vendors == {"nvidia"} and all("uuid" in gpu for gpu in gpus):
        return open_nvml_clock(key, [gpu["uuid"] for gpu in gpus])
    if vendors == {"amd"} and all("bus" in gpu for gpu in gpus):
        return open_amd_clock(key, [gpu["bus"] for gpu in gpus], root)
    return None


def open_nvml_clock(key: Kind, uuids: Sequence[str]) -> ClockLock | None:
    """Open a clock of NVIDIA GPUs; NVML stays initialized until this process ends, as locks may end with it."""
    try:
        nvml.start()
        clocks = {uuid: _nvml_clock(key, uuid, nvml.open_gpu(uuid)) for uuid in uuids}
    except nvml.NotSupportedError:
        return None
    except OSError as error:
        raise RuntimeError(f"cannot read the clocks of {', '.join(uuids)}: {error}") from error
    return ClockLock(key, "NVML", clocks) if clocks else None


def _nvml_clock(key: Kind, uuid: str, gpu: nvml.NvmlGpu) -> ClockDevice:
    """The clock of one GPU; NotSupportedError if none can be locked."""
    name, lock_option, free_option = DRIVERS[key]
    is_memory = key == "memory_clock"
    requested: int | None = None  # that this process has locked
    steps = sorted(gpu.supported_clocks_mhz(is_memory=is_memory))
    if not steps:
        raise nvml.NotSupportedError(f"{gpu.name} reports no {name} that can be locked")

    def read() -> str:
        if requested is None:
            return FREE
        now = gpu.clock_mhz(is_memory=is_memory)
        return locked(requested if now <= requested + TOLERANCE_MHZ else round(now))

    def write(setting: str) -> None:
        nonlocal requested
        mhz = mhz_of(setting)
        try:
            gpu.lock_clock(None if mhz is None else int(mhz), is_memory=is_memory)
        except OSError as error:
            problem = problem_of(error).within(f"cannot set the {name} of GPU {uuid} to {setting}")
            if isinstance(error, PermissionError):
                problem = problem._replace(hint="run as root (in a container also with --cap-add SYS_ADMIN)")
            raise MachineError(problem) from error
        requested = None if mhz is None else int(mhz)

    def by_hand(setting: str) -> str:
        mhz = mhz_of(setting)
        return f"sudo nvidia-smi -i {uuid} {free_option if mhz is None else f'{lock_option} {mhz:g},{mhz:g}'}"

    return ClockDevice(steps, False, read, write, by_hand)


def open_amd_clock(key: Kind, buses: Sequence[str], root: str | Path) -> ClockLock | None:
    """Open a clock of AMD GPUs by amdsmi; None if ROCm does not report its range, or another machine is replayed."""
    if Path(root) != Path("/"):
        return None
    cards = find_cards(Path(root))
    with suppress(OSError):
        boards = sorted({board_card(bus, cards).bus for bus in buses} if cards else {*buses})
        return ClockLock(key, "amdgpu", {bus: _amd_clock(key, AmdSmiGpu(bus)) for bus in boards})
    return None


def _amd_clock(key: Kind, gpu: AmdSmiGpu) -> ClockDevice:
    name, *_ = DRIVERS[key]
    is_memory = key == "memory_clock"
    low, high = gpu.clock_range_mhz(is_memory=is_memory)

    def read() -> str:
        low, high = gpu.clock_range_mhz(is_memory=is_memory)
        return locked(low) if low == high else f"{low} to {high} MHz ({gpu.performance_level()})"

    def write(setting: str) -> None:
        mhz, (clocks, _, level) = mhz_of(setting), setting.partition(" MHz (")
        low, high = (int(mhz), int(mhz)) if mhz is not None else map(int, clocks.split(" to "))
        try:
            gpu.set_clock_range_mhz(low, high, level.rstrip(")"), is_memory=is_memory)
        except OSError as error:
            problem = problem_of(error).within(f"cannot set the {name} of GPU {gpu.bus} to {setting}")
            raise MachineError(problem._replace(hint="run as root")) from error

    return ClockDevice([low, high], True, read, write, lambda setting: f"sudo amd-smi reset --gpu {gpu.bus} --clocks")
