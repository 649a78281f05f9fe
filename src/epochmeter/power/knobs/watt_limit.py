"""Power limits in watts: of NVIDIA GPUs (NVML), CPU packages (RAPL) and AMD GPUs (amdgpu).

NVML's limit is set through zeus's privileged service zeusd if one is configured. The others are files of the kernel, in
microwatts.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine import nvml, privilege
from epochmeter.machine.amd import board_card, find_cards
from epochmeter.machine.host import long_term_limits
from epochmeter.machine.recorded.root import root_folder
from epochmeter.power.knobs.knob import NO_EFFECT_HINT, Knob, SettingTarget, poll_until
from epochmeter.shared.problem import MachineError, Problem, input_error, machine_error, problem_of, problems_of

TOLERANCE = 0.01  # largest relative rounding of a limit by the device
LIMITS, ROUND_W = 8, 5.0
"""Steps between the lowest and the highest limit of a search, and the watts of which each step is a multiple."""
LOWEST_FRACTION = 0.4  # lowest limit of a search, as a fraction of the highest, if the device does not report it
ZEUSD_VARIABLES = ("ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT")  # the environment variables that name zeus's service
START_ZEUSD = "start zeusd with gpu-control on the host"
ZEUSD_HINT = f"run zeusd, a service of zeus, on the host and set {' or '.join(ZEUSD_VARIABLES)}"


class DeviceLimit(NamedTuple):
    """The power limit of one device, between `low_w` and `high_w` watts (None: unknown)."""

    low_w: float | None
    high_w: float | None
    read: Callable[[], float]  # returns the limit in watts; raises OSError or RuntimeError
    write: Callable[[float], None]
    by_hand: Callable[[float], str]  # returns the shell command that sets a limit
    file: Path | None = None  # the kernel's file of the limit, if there is one
    switch: Path | None = None  # the kernel's file that switches the limit off, if it contains 0


class WattLimit(Knob):
    """The power limit of several devices, as a `Knob`. A setting is "250 W", or "250 W, 300 W" if they differ."""

    def __init__(self, name: str, limits: Mapping[str, DeviceLimit]) -> None:
        self.name = name
        self.devices = list(limits)
        self._device_limits = list(limits.values())
        self.files = [limit.file for limit in self._device_limits if limit.file]
        self.commands = [("tee", str(file)) for file in self.files]
        # The common range of all devices in watts.
        self._low_w = max((limit.low_w for limit in self._device_limits if limit.low_w), default=None)
        self._high_w = min((limit.high_w for limit in self._device_limits if limit.high_w), default=None)

    def get(self) -> str:
        limits = [format_watts(limit.read()) for limit in self._device_limits]
        return ", ".join(limits if len(set(limits)) > 1 else limits[:1])

    def set(self, setting: str) -> None:
        """Set the limit of each device and wait until all can be read back.

        Every device is tried, so that a refusal by one device does not prevent the restoration of the others.
        """
        written: list[tuple[DeviceLimit, float]] = []
        refusals: list[Problem] = []
        for limit, watts in zip(self._device_limits, self._limits_of(setting), strict=True):
            try:
                limit.write(watts)
                written.append((limit, watts))
            except RuntimeError as error:
                refusals += problems_of(error)
        self.pending = bool(written)
        reached = poll_until(lambda: all(is_close(limit.read(), watts) for limit, watts in written))
        self.pending = not reached
        if refusals:
            raise MachineError(*refusals)
        if not reached:
            state = f"cannot set {self.name} to {setting}: the device is at {self.get()}."
            raise machine_error(state, NO_EFFECT_HINT)

    def is_equal(self, setting: str, other: str) -> bool:
        """Whether two settings are equal except for rounding by the device."""
        return all(map(is_close, self._limits_of(setting), self._limits_of(other)))

    def choices(self) -> str:
        """The range of limits; RuntimeError if a limit is switched off, since setting it would have no effect."""
        for switch in filter(None, (limit.switch for limit in self._device_limits)):
            if switch.exists() and privilege.read_file(switch) == "0":
                command = f"echo 1 | sudo tee {shlex.quote(str(switch))}"
                raise machine_error(f"the CPU's power limit is switched off: {switch} is 0", command)
        low_w, high_w = self._low_w, self._high_w
        if low_w is None:
            return f"{f'up to {high_w:g} W' if high_w else 'watts'} (lowest limit unknown)"
        return f"{low_w:g} to {high_w:g} W" if high_w else f"{low_w:g} W and more"

    def target_for(self, value: str | float) -> SettingTarget:
        choices = self.choices()
        if isinstance(value, str):
            raise input_error(
                f"power_limit={value} is a power mode, which only a Jetson has",
                f"{self.name} has a limit in watts: {choices}",
            )
        if (self._low_w and value < self._low_w) or (self._high_w and value > self._high_w):
            raise input_error(f"power_limit={value} is out of the range of {self.name}", f"give {choices}")
        return SettingTarget(format_watts(value), value, max_w=self._high_w)

    def limits(self) -> list[SettingTarget]:
        self.choices()
        now_w = min(limit.read() for limit in self._device_limits)
        high_w = self._high_w or now_w
        low_w = self._low_w or LOWEST_FRACTION * high_w
        step_w = max(1.0, (high_w - low_w) / LIMITS)
        if step_w > ROUND_W:
            step_w = ROUND_W * round(step_w / ROUND_W)
        watts = [high_w - number * step_w for number in range(1 + int((high_w - low_w) / step_w + TOLERANCE))]
        others = [limit_w for limit_w in watts if not is_close(limit_w, now_w)]
        return [SettingTarget(format_watts(limit_w), limit_w, max_w=high_w) for limit_w in sorted([now_w, *others])]

    def by_hand(self, setting: str) -> str:
        limits = zip(self._device_limits, self._limits_of(setting), strict=True)
        return " && ".join(limit.by_hand(watts) for limit, watts in limits)

    def watts_of(self, setting: str) -> float | None:
        limits = {*self._limits_of(setting)}
        return limits.pop() if len(limits) == 1 else None

    def _limits_of(self, setting: str) -> list[float]:
        """Return the watts of each device in a setting, as `format_watts` and `get` write it."""
        limits = [float(text.removesuffix(" W")) for text in setting.split(", ")]
        return limits * len(self._device_limits) if len(limits) == 1 else limits


def is_close(watts: float, requested_w: float) -> bool:
    """Whether a limit is the requested one except for rounding by the device."""
    return abs(watts - requested_w) <= TOLERANCE * requested_w


def format_watts(watts: float) -> str:
    """Format watts with microwatt resolution, so that the original value is restored exactly."""
    return f"{watts:.6f}".rstrip("0").rstrip(".") + " W"


def open_rapl_limit(root: str | Path) -> WattLimit | None:
    """Open the power limit of all CPU packages, RAPL's long-term constraint; None if the kernel has no limit."""
    try:
        files = long_term_limits(root_folder(root))
    except OSError as error:
        raise privilege.unreadable_error(error) from error
    packages = {}
    for file in files:
        low, high = (file.with_name(file.name.replace("power_limit", name)) for name in ("min_power", "max_power"))
        packages[file.parent.name] = _file_limit(file, low, high)._replace(switch=file.with_name("enabled"))
    return WattLimit("RAPL", packages) if packages else None


def open_amd_cap(buses: Sequence[str], root: str | Path) -> WattLimit | None:
    """Open the power limit of GPUs, one per board; None unless each GPU has one."""
    cards = find_cards(root_folder(root))
    try:
        boards = {board_card(bus, cards) for bus in buses}
    except OSError:
        return None
    limits = {
        board.bus: _file_limit(cap, cap.with_name("power1_cap_min"), cap.with_name("power1_cap_max"))
        for board in sorted(boards)
        for cap in sorted(board.folder.glob("hwmon/hwmon*/power1_cap"))
    }
    return WattLimit("amdgpu", limits) if len(limits) == len(boards) and limits else None


def _file_limit(file: Path, low: Path, high: Path) -> DeviceLimit:
    """The power limit in a file, with its bounds in two others; a bound that is missing, no number or 0 is unknown."""

    def read(file: Path) -> float:
        try:
            return int(file.read_text()) / 1e6
        except ValueError as error:
            raise RuntimeError(f"{file} is not a number: {error}") from error

    def bound_w(file: Path) -> float | None:
        try:
            return read(file) or None
        except (OSError, RuntimeError):
            return None

    return DeviceLimit(
        bound_w(low),
        bound_w(high),
        partial(read, file),
        lambda watts: privilege.write_file(file, str(round(watts * 1e6))),
        lambda watts: f"echo {round(watts * 1e6)} | sudo tee {shlex.quote(str(file))}",
        file,
    )


def open_nvml_limit(uuids: Sequence[str]) -> WattLimit | None:
    """Open the power limit of GPUs; None if a GPU has none, as some laptops.

    NVML stays initialized until this process ends: without persistence mode, a limit is reset as soon as no process
    uses the driver.
    """
    try:
        nvml.start()
        limits = {uuid: _gpu_limit(uuid, nvml.open_gpu(uuid)) for uuid in uuids}
    except nvml.NotSupportedError:
        return None
    except OSError as error:
        raise RuntimeError(f"cannot read the power limit of {', '.join(uuids)}: {error}") from error
    return WattLimit("NVML", limits) if limits else None


def _gpu_limit(uuid: str, gpu: nvml.NvmlGpu) -> DeviceLimit:
    """The limit of one GPU; NotSupportedError if it has none."""

    def write(watts: float) -> None:
        try:
            if any(name in os.environ for name in ZEUSD_VARIABLES):
                ask_zeusd(gpu.index, watts)
            else:
                gpu.set_power_limit_w(watts)
        except (OSError, MachineError) as error:
            problem = problem_of(error).within(f"cannot set the power limit of GPU {uuid} to {watts:g} W")
            if isinstance(error, PermissionError):
                hint = f"run as root (in a container also with --cap-add SYS_ADMIN), or {ZEUSD_HINT}"
                problem = problem._replace(hint=hint)
            raise MachineError(problem) from error

    low_w, high_w = gpu.power_limit_range_w()
    return DeviceLimit(
        low_w, high_w, gpu.power_limit_w, write, lambda watts: f"sudo nvidia-smi -i {uuid} -pl {watts:g}"
    )


def ask_zeusd(index: int = 0, watts: float | None = None) -> None:
    """Set the limit of a GPU, by its index in PCI order, through zeusd. Without `watts`, only check the permission.

    Raises MachineError if zeusd does not answer, refuses, or has other GPUs: an index would then select another
    GPU.
    """
    try:
        from httpx import HTTPError
        from zeus.exception import ZeusBaseError
        from zeus.utils.zeusd import ZeusdClient, ZeusdConfig
    except ImportError as error:
        raise machine_error(f"cannot import zeus ({error})", "pip install 'zeus>=0.16'") from error
    try:
        # Not zeus's own list of GPUs, which does not support UUIDs in CUDA_VISIBLE_DEVICES.
        client = ZeusdClient(ZeusdConfig.from_env())
        if not client.can_control_gpu:
            raise machine_error(f"zeusd: {client.auth_error or 'it was started without gpu-control'}", START_ZEUSD)
        names = [gpu.get("model") for gpu in nvml.list_gpus()]
        if {gpu.id: gpu.name for gpu in client.gpus} != dict(enumerate(names)):
            raise machine_error(
                f"zeusd has {len(client.gpus)} GPUs, but this process has access to {len(names)} or to others",
                "give the process access to all GPUs of the host, and select GPUs with CUDA_VISIBLE_DEVICES",
            )
        if watts is not None:
            client.set_power_limit([index], round(watts * 1000))
    except (ZeusBaseError, HTTPError, ValueError, LookupError, TypeError) as error:  # of another version of zeusd
        raise machine_error(f"zeusd: {error}", START_ZEUSD) from error
