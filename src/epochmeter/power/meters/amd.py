"""Energy of AMD GPUs: the counter that ROCm's amdsmi reads, and power from the files of the driver (hwmon)."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from epochmeter.machine.amd import AmdSmiGpu, Card, board_card, find_cards, is_known_to_rocm
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter, unmetered
from epochmeter.power.meters.gpu import APU_SCOPE, BOARD_SCOPE, DUAL_SCOPE, counted_power_w, gpu_meter, open_gpu
from epochmeter.power.uncertainty import UNKNOWN, Sensors, response_of
from epochmeter.shared.problem import MachineError, problem_of

COUNTER_PERIOD_S = 0.001  # approximate update period of the GPU's counter
CHECK_DURATION_S = 0.5  # duration of the check of a counter against the power, in seconds
MAX_POWER_RATIO = 3.0
"""Largest accepted ratio of counter and power: some counters have a wrong unit, others do not advance."""


def open_amd(
    *, gpus: Sequence[str], root: Path, period_s: float = 0.05, cross_check: bool = True, sensors: Sensors | None = None
) -> EnergyMeter:
    """Open the meter of the AMD GPUs used, by UUID, or by PCI address if they have none."""
    if not gpus:
        return NullMeter("meter=amd: the run uses no AMD GPU.")
    try:
        opened = [
            open_gpu(f"gpu{card.number}", partial(counter_of, card, root), partial(power_of, card, period_s, sensors))
            for card in dict.fromkeys(board_card(name, find_cards(root)) for name in gpus)
        ]
        return gpu_meter(opened, period_s=period_s, cross_check=cross_check)
    except (OSError, ValueError, MachineError) as error:
        return unmetered(problem_of(error))


def scope_of(card: Card) -> str:
    """The scope of a card's energy; the first die of a dual board reports both."""
    if card.is_apu:
        return APU_SCOPE
    return DUAL_SCOPE if card.is_dual_die else BOARD_SCOPE


def power_of(card: Card, period_s: float, sensors: Sensors | None = None) -> Instrument:
    """Find the GPU's power sensor: instantaneous power if the driver reports it, else the mean; OSError without."""
    for kind in ("power1_input", "power1_average"):
        response = response_of(sensors, kind, UNKNOWN)
        for file in sorted(card.folder.glob(f"hwmon/hwmon*/{kind}")):
            read = partial(_watts, file)
            with suppress(OSError, ValueError):  # unreadable, or not a number
                if read() > 0:
                    limit_w = _limit_w(file.with_name("power1_cap_max"))
                    return Instrument(Domain("sampled", period_s, scope_of(card), 0.0, response, limit_w), read)
    raise OSError(f"GPU {card.bus}: the driver reports no power below {card.folder}/hwmon")


def counter_of(card: Card, root: Path) -> Instrument:
    """Open the GPU's energy counter; OSError if it has none, or if it contradicts the power."""
    if not is_known_to_rocm(root):
        raise OSError(f"ROCm reads only this machine's GPUs, not those below {root}")
    gpu = AmdSmiGpu(card.bus)

    def read() -> float:
        count = gpu.call("amdsmi_get_energy_count")
        ticks = count["energy_accumulator"] if "energy_accumulator" in count else count["power"]  # before amdsmi 6.2.1
        return float(ticks * count["counter_resolution"] / 1e6)

    check_counter(card, read, power_of(card, CHECK_DURATION_S).read)
    return Instrument(Domain("counter", COUNTER_PERIOD_S, scope_of(card)), read)


def check_counter(card: Card, joules: Callable[[], float], watts: Callable[[], float]) -> None:
    """Compare a counter with the power; OSError if they differ by more than `MAX_POWER_RATIO`."""
    counted_w, driver_w = counted_power_w(joules, CHECK_DURATION_S), watts()
    if not driver_w / MAX_POWER_RATIO < counted_w < driver_w * MAX_POWER_RATIO:
        raise OSError(
            f"GPU {card.bus}: the energy counter is wrong: {counted_w:.3g} W, but the driver reports {driver_w:.3g} W"
        )


def _limit_w(file: Path) -> float | None:
    """The highest power limit that can be set; None if the driver does not report it."""
    with suppress(OSError, ValueError):
        return _watts(file) or None
    return None


def _watts(file: Path) -> float:
    return int(file.read_text()) / 1e6
