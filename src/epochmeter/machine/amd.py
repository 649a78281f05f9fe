"""AMD GPUs in ROCm's order, read from the files of their driver, amdgpu, and by ROCm's amdsmi.

zeus is not used: it identifies a GPU by its HIP index only, which environment variables change.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.machine.sysfs import match_group, read_text
from epochmeter.shared.units import NANOSECOND

DUAL_DIE_IDS = ("0x7408", "0x740c")
"""Device IDs of MI250X and MI250: two GPUs on a board, whose first die measures and limits the power of both."""
APU_IDS = ("0x74a0",)
"""Device ID of MI300A, an APU without the file by which the driver shows the others."""
ACTIVITIES = {"gpu_gfx_active_fraction": "gfx_activity_acc", "gpu_dram_active_fraction": "mem_activity_acc"}
"""Metric -> counter of 32 bits to which the firmware adds the utilization in percent, once per cycle."""
WRAP = 1 << 32  # of these, and of the counter of cycles, which is 0 again after 50 days
LINKS = {"gpu_xgmi_received_bytes_per_s": "xgmi_read_data_acc", "gpu_xgmi_sent_bytes_per_s": "xgmi_write_data_acc"}
"""Metric -> counters of the links to other GPUs, in KiB."""
PERFORMANCE_LEVEL = "AMDSMI_DEV_PERF_LEVEL_"  # begins amdsmi's names of performance levels
CYCLE_S, PERCENT, KIBIBYTE = 0.001, 0.01, 1024
MIN_CYCLE_S = 0.01 * CYCLE_S
"""Time per counted cycle below which the counter did not wrap around, but was reset."""
_replacement: Any = None
MAX_FRACTION = 1.5
"""Largest accepted fraction: short windows may count one cycle too many. A larger fraction has an unknown unit."""


class Card(NamedTuple):
    """A GPU of the driver; `number` is its index in PCI order, and `uuid` is `GPU-` if it has none."""

    number: int
    bus: str
    folder: Path
    uuid: str
    is_dual_die: bool
    is_apu: bool  # its power includes the CPU


def find_cards(root: Path) -> list[Card]:
    """List the GPUs of amdgpu in PCI order."""
    folders = {}
    for file in root.glob("sys/class/drm/card*/device/uevent"):
        if match_group("^(DRIVER=amdgpu)$", uevent := read_text(file)):
            folders[match_group("^PCI_SLOT_NAME=(.*)", uevent)] = file.parent
    cards = []
    for number, (bus, folder) in enumerate(sorted(folders.items())):
        uuid, device = (read_text(folder / name) for name in ("unique_id", "device"))
        # Only an APU has the voltage of the northbridge (the kernel's amdgpu_pm.c, "only APUs have vddnb").
        is_apu = device in APU_IDS or any(folder.glob("hwmon/hwmon*/in1_label"))
        cards.append(Card(number, bus, folder, f"GPU-{uuid}", device in DUAL_DIE_IDS, is_apu))
    return cards


def find_card(name: str, cards: Sequence[Card]) -> Card | None:
    return next((card for card in cards if name in (card.uuid, card.bus)), None)


def board_card(name: str, cards: Sequence[Card]) -> Card:
    """Return the card that measures a GPU (by UUID or PCI address): itself, or the first die of its board."""
    card = find_card(name, cards)
    if card is None:
        raise OSError(f"amdgpu has no GPU {name}; it has {', '.join(card.bus for card in cards) or 'none'}")
    dies = [candidate for candidate in cards if candidate.is_dual_die]
    return dies[dies.index(card) // 2 * 2] if card.is_dual_die else card


def list_gpus(root: Path) -> list[dict[str, str]]:
    """List the GPUs in the driver's order, which is ROCm's, as `machine.gpus` describes them."""
    gpus = []
    for node in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*"), key=lambda node: int(node.name)):
        numbers = re.findall(r"^(\w+) (\d+)$", read_text(node / "properties"), re.MULTILINE)
        values = defaultdict(int, {name: int(value) for name, value in numbers})
        location, unique = values["location_id"], values["unique_id"]
        bus = f"{values['domain']:04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        uuid = f"GPU-{unique:016x}" if unique else ""  # ROCm's format
        gpu = {"vendor": "amd", "model": read_text(node / "name"), "bus": bus if location else "", "uuid": uuid}
        if values["simd_count"]:  # the other nodes are CPUs
            gpus.append(gpu)
    return gpus


class AmdSmiGpu:
    """A GPU of ROCm's amdsmi, by its PCI address; OSError if ROCm does not list it."""

    def __init__(self, bus: str) -> None:
        self.bus, self._amdsmi = bus, load_amdsmi()
        with _os_errors(self._amdsmi, f"GPU {bus}: not known to ROCm"):
            self._handle = self._amdsmi.amdsmi_get_processor_handle_from_bdf(bus)

    def call(self, function: str, *arguments: object) -> Any:
        """Return the result of a function of amdsmi; OSError if it fails."""
        with _os_errors(self._amdsmi, f"GPU {self.bus}: {function}"):
            return getattr(self._amdsmi, function)(self._handle, *arguments)

    def clock_range_mhz(self, *, is_memory: bool) -> tuple[int, int]:
        """The lowest and the highest clock that are allowed now; OSError if they are not reported."""
        clock = self.call("amdsmi_get_clock_info", self._clock(is_memory))
        if not (isinstance(clock["min_clk"], int) and isinstance(clock["max_clk"], int)):
            raise OSError(f"GPU {self.bus}: the range of its clock is not reported")
        return clock["min_clk"], clock["max_clk"]

    def performance_level(self) -> str:
        """How the driver selects clocks, such as `auto` or `manual`."""
        return str(self.call("amdsmi_get_gpu_perf_level")).removeprefix(PERFORMANCE_LEVEL).lower()

    def set_clock_range_mhz(self, low: int, high: int, level: str, *, is_memory: bool) -> None:
        """Set the range of a clock, and then the performance level, if one is given."""
        self.call("amdsmi_set_gpu_clk_range", low, high, self._clock(is_memory))
        if level:
            levels = self._amdsmi.AmdSmiDevPerfLevel
            self.call("amdsmi_set_gpu_perf_level", levels[level.upper()])

    def _clock(self, is_memory: bool) -> Any:
        return self._amdsmi.AmdSmiClkType.MEM if is_memory else self._amdsmi.AmdSmiClkType.GFX


class AmdCounters(AmdSmiGpu):
    """Counters of an AMD GPU that its firmware accumulates; OSError if it has none."""

    def __init__(self, bus: str) -> None:
        super().__init__(bus)
        self._last = self.call("amdsmi_get_gpu_metrics_info")
        if not any(isinstance(self._last.get(name), int) for name in ACTIVITIES.values()):
            raise OSError(f"GPU {bus}: its firmware does not accumulate its utilization, as of Instinct GPUs")

    def read(self) -> dict[str, float]:
        """Read the counters, and return the metrics since the last reading; OSError if the utilization is impossible.

        From gpu_metrics 1.6 on, the firmware counts its cycles; in older versions, a cycle is a millisecond
        (`amdsmi_get_utilization_count` in amdsmi.h). A counter that the GPU lacks is `N/A` or missing.
        """
        before, self._last = self._last, self.call("amdsmi_get_gpu_metrics_info")
        borders = before, self._last

        def increases(name: str) -> list[int]:
            readings = (border.get(name) for border in borders)
            first, last = (reading if isinstance(reading, list) else [reading] for reading in readings)
            pairs = zip(first, last, strict=False)  # a list may be N/A at one border
            return [end - start for start, end in pairs if isinstance(start, int) and isinstance(end, int)]

        seconds = sum(increases("system_clock_counter")) * NANOSECOND
        if seconds <= 0:
            return {}
        cycles = sum(increases("accumulation_counter")) % WRAP or seconds / CYCLE_S
        if seconds / cycles < MIN_CYCLE_S:
            return {}
        percents = {metric: increases(name) for metric, name in ACTIVITIES.items()}
        metrics = {metric: values[0] % WRAP * PERCENT / cycles for metric, values in percents.items() if values}
        if any(fraction > MAX_FRACTION for fraction in metrics.values()):
            raise OSError(f"GPU {self.bus}: the counters {', '.join(ACTIVITIES.values())} have an unknown unit")
        traffic = {metric: increases(name) for metric, name in LINKS.items()}
        counted = {metric: values for metric, values in traffic.items() if values and min(values) >= 0}  # else: reset
        return metrics | {metric: sum(values) * KIBIBYTE / seconds for metric, values in counted.items()}


def replace_client(replacement: Any) -> None:
    """Use an object with the functions of amdsmi in its place from now on, as of a recorded machine; None: not."""
    global _replacement
    _replacement = replacement
    load_amdsmi.cache_clear()


def is_known_to_rocm(root: Path) -> bool:
    """Whether amdsmi reports the GPUs below a root: this machine's, or those of a recording."""
    return root == Path("/") or _replacement is not None


@cache
def load_amdsmi() -> Any:
    """Return the module amdsmi, initialized until this process ends, or what replaces it; OSError if that fails."""
    if _replacement is not None:
        _replacement.check()
        return _replacement
    try:
        with redirect_stdout(None):  # it prints a message if there is no ROCm
            import amdsmi
    except (ImportError, OSError, KeyError, AttributeError) as error:
        raise OSError(f"cannot import amdsmi ({error}): install ROCm's amd-smi-lib, and pip install amdsmi") from error
    with _os_errors(amdsmi, "cannot initialize ROCm's amdsmi"):
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
    return amdsmi


@contextmanager
def _os_errors(amdsmi: Any, failure: str) -> Iterator[None]:
    """Raise an error of amdsmi as OSError, with `failure` as the beginning of its message."""
    try:
        yield
    except amdsmi.AmdSmiException as error:
        raise OSError(f"{failure}: {' '.join(str(error).split())}") from error
