"""GPUs as a meter, whoever makes them: a counter of energy, and sampled power that checks it or stands in for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from epochmeter.power.meter import Counter, Instruments, Meter, Power
from epochmeter.power.sampler import Sampler

BOARD = "GPU board"
CHECK = "by sampled power: a cross-check"


class Gpu(NamedTuple):
    """The instruments of one GPU that work; it has at least one."""

    name: str
    counter: Counter | None
    power: Power | None
    reason: str | None
    """Why it has no counter."""

    @property
    def covers(self) -> str:
        """The scope of its energy: the board, or more."""
        instrument = self.counter or self.power
        return instrument.domain.covers if instrument else BOARD


def open_gpu(name: str, counter: Callable[[], Counter], power: Callable[[], Power]) -> Gpu:
    """The GPU whose instruments these open; each raises OSError where it cannot, and so does this where neither can."""
    lacking = None
    try:
        counts = counter()
    except OSError as error:
        counts, lacking = None, str(error)
    try:
        tells = power()
    except OSError as error:
        if not counts:
            raise OSError(f"{lacking} {error}") from error
        tells = None
    return Gpu(name, counts, tells, lacking and f"{lacking} Its power is sampled instead.")


def meter_of(
    gpus: Sequence[Gpu], *, covers: str, period_s: float, cross_check: bool, close: Callable[[], None] = lambda: None
) -> Meter:
    """The meter of GPUs. Power is sampled every `period_s`: as `gpu0` where there is no counter, and with `cross_check`
    as `gpu0_sampled` beside one, where it is no part of the total."""
    powers = {gpu.name: gpu.power for gpu in gpus if gpu.power and not gpu.counter}
    if cross_check:
        powers |= {f"{gpu.name}_sampled": _checking(gpu.power) for gpu in gpus if gpu.power and gpu.counter}
    checks = all(gpu.counter for gpu in gpus)
    return Instruments(
        counters={gpu.name: gpu.counter for gpu in gpus if gpu.counter},
        powers=Sampler(powers, total=list(powers), period_s=period_s, checks=checks) if powers else None,
        sampled_in_part=len(powers) < len(gpus),
        total=[gpu.name for gpu in gpus],
        covers=covers,
        reason=" ".join(gpu.reason for gpu in gpus if gpu.reason) or None,
        close=close,
    )


def _checking(power: Power) -> Power:
    return power._replace(domain=power.domain._replace(covers=f"{power.domain.covers}, {CHECK}"))
