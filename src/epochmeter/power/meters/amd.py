"""AMD GPUs: what each used, by the counter that amdsmi reads where ROCm is, and its power, as its driver shows it.

amdsmi is asked here and not through zeus, which knows a GPU by HIP's number alone: the environment shifts those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

from epochmeter.machine.amd import Card, board_of, find_cards
from epochmeter.power.meter import Absent, Counter, Domain, Meter, Power
from epochmeter.power.meters.gpu import BOARD, meter_of, open_gpu
from epochmeter.power.uncertainty import UNKNOWN, response_of

COUNTER_PERIOD_S = 0.001
"""The GPU's firmware renews its counter about this often."""
CHECKED_S = 0.5
"""A counter is believed after it was watched for so long,"""
BELIEVED = 3.0
"""and went on as fast as the power says, within this factor: some tell a wrong unit, others stand still."""


def open_amd(
    *,
    gpus: Sequence[str],
    root: str | PathLike[str],
    period_s: float = 0.05,
    cross_check: bool = True,
    sensors: Mapping[str, Any] | None = None,
) -> Meter:
    """The energy of the GPUs used, by UUID or else PCI address; absent, with the reason, unless each tells its energy
    or its power.

    Power is sampled every `period_s`: as `gpu0_sampled` beside a counter, unless `cross_check` is off, or else as
    `gpu0` itself. `sensors` is the device's table of sensor responses, by the name of the driver's file.
    """
    if not gpus:
        return Absent("meter=amd meters the AMD GPUs that a run uses, and none is used.")
    try:
        boards = dict.fromkeys(board_of(name, find_cards(Path(root))) for name in gpus)
        opened = [
            open_gpu(f"gpu{card.number}", partial(counter_of, card, root), partial(power_of, card, period_s, sensors))
            for card in boards
        ]
    except (OSError, ValueError) as error:
        return Absent(str(error))
    both = ", both dies of each" if any(card.dual for card in boards) else ""
    return meter_of(opened, covers=f"GPUs used (whole boards{both})", period_s=period_s, cross_check=cross_check)


def covered(card: Card) -> str:
    return f"{BOARD}, both its dies" if card.dual else BOARD


def power_of(card: Card, period_s: float, sensors: Mapping[str, Any] | None = None) -> Power:
    """The GPU's power as its driver tells it, in microwatts: that of the moment, or else a mean; OSError without."""
    for kind in ("power1_input", "power1_average"):
        response = response_of(sensors, kind, UNKNOWN)
        for file in sorted(card.folder.glob(f"hwmon/hwmon*/{kind}")):
            read = partial(_watts, file)
            with suppress(OSError, ValueError):  # then it tells none, or not as a number
                if read() > 0:
                    return Power(Domain("sampled", period_s, covered(card), 0.0, *response), read)
    raise OSError(f"The driver of GPU {card.bus} tells no power below {card.folder}/hwmon.")


def counter_of(card: Card, root: str | PathLike[str]) -> Counter:
    """The GPU's energy counter, watched until it can be believed; OSError where there is none or it cannot."""
    if Path(root) != Path("/"):
        raise OSError(f"ROCm tells the energy of this machine's GPUs, not of those below {root}.")
    amdsmi = library()

    def read() -> float:
        try:
            told = amdsmi.amdsmi_get_energy_count(handle)
        except amdsmi.AmdSmiException as error:
            raise OSError(f"GPU {card.bus} does not say what energy it used: {_line(error)}.") from error
        return told["energy_accumulator"] * told["counter_resolution"] / 1e6

    try:
        handle = amdsmi.amdsmi_get_processor_handle_from_bdf(card.bus)
    except amdsmi.AmdSmiException as error:
        raise OSError(f"ROCm finds no GPU {card.bus}: {_line(error)}.") from error
    check(card, read, power_of(card, CHECKED_S).read)
    return Counter(Domain("counter", COUNTER_PERIOD_S, covered(card)), read)


def check(card: Card, joules: Callable[[], float], watts: Callable[[], float]) -> None:
    """Watches a counter beside the power; OSError unless they agree, roughly."""
    begun_j, begun_s = joules(), time.monotonic()
    time.sleep(CHECKED_S)
    counted_w, told_w = (joules() - begun_j) / (time.monotonic() - begun_s), watts()
    if not told_w / BELIEVED < counted_w < told_w * BELIEVED:
        raise OSError(f"GPU {card.bus} counts {counted_w:.3g} W while its driver tells {told_w:.3g} W.")


@cache
def library() -> Any:
    """amdsmi, started, and left so until this process ends; OSError where it cannot be had."""
    try:
        with redirect_stdout(None):  # it prints where it finds no ROCm
            import amdsmi
    except (ImportError, OSError, KeyError, AttributeError) as error:
        raise OSError(f"ROCm's amdsmi, which tells energy, does not load ({error}).") from error
    try:
        amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
    except amdsmi.AmdSmiException as error:
        raise OSError(f"ROCm's amdsmi does not start: {_line(error)}.") from error
    return amdsmi


def _watts(file: Path) -> float:
    return int(file.read_text()) / 1e6


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
