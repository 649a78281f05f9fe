"""A meter of GPUs of any vendor: energy counters, and sampled power as a cross-check or a replacement."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from epochmeter.power.meter import Instrument, Meter
from epochmeter.power.sampler import Sampler

BOARD_SCOPE, DUAL_SCOPE = "GPU board", "GPU board, both its dies"
MODULE_SCOPE = "module (GPU and CPU of a superchip)"
COVERS = {
    BOARD_SCOPE: "GPUs used (whole boards)",
    DUAL_SCOPE: "GPUs used (whole boards, both dies of each)",
    MODULE_SCOPE: "modules of the GPUs used (GPU and CPU of a superchip)",
}
"""Scope of the energy of several GPUs, by the scope of each one."""


class GpuInstruments(NamedTuple):
    """The working instruments of one GPU, at least one; `reason`: why it has no counter."""

    name: str
    counter: Instrument | None
    power: Instrument | None
    reason: str | None


def open_gpu(name: str, counter: Callable[[], Instrument], power: Callable[[], Instrument]) -> GpuInstruments:
    """Open the instruments of a GPU; OSError if neither `counter` nor `power` can be opened."""
    (counted, no_counter), (sampled, no_power) = _opened(counter), _opened(power)
    if not counted and not sampled:
        raise OSError(f"{no_counter}; {no_power}")
    return GpuInstruments(name, counted, sampled, None if counted else f"{no_counter}; its power is sampled instead.")


def _opened(open_instrument: Callable[[], Instrument]) -> tuple[Instrument | None, str]:
    try:
        return open_instrument(), ""
    except OSError as error:
        return None, str(error)


def gpu_meter(
    gpus: Sequence[GpuInstruments], *, period_s: float, cross_check: bool, close: Callable[[], None] = lambda: None
) -> Meter:
    """Build the meter of GPUs; `cross_check` also samples GPUs with a counter, outside of the total."""
    powers = {gpu.name: gpu.power for gpu in gpus if gpu.power and not gpu.counter}
    for gpu in gpus if cross_check else ():
        if gpu.power and gpu.counter:
            domain = gpu.power.domain._replace(covers=f"{gpu.power.domain.covers}, sampled as a cross-check")
            powers[f"{gpu.name}_sampled"] = gpu.power._replace(domain=domain)
    checks = all(gpu.counter for gpu in gpus)
    scopes = (instrument.domain.covers for gpu in gpus if (instrument := gpu.counter or gpu.power))
    return Meter(
        counters={gpu.name: gpu.counter for gpu in gpus if gpu.counter},
        powers=Sampler(powers, total=list(powers), period_s=period_s, checks=checks) if powers else None,
        sampled_in_part=len(powers) < len(gpus),
        total=[gpu.name for gpu in gpus],
        covers=" + ".join(dict.fromkeys(COVERS[scope] for scope in scopes)),
        reason=" ".join(gpu.reason for gpu in gpus if gpu.reason) or None,
        close=close,
    )
