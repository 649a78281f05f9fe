"""A meter of GPUs of any vendor: energy counters, and sampled power as a cross-check or a replacement."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from epochmeter.machine.energy_codes import EnergyCode, energy_problem
from epochmeter.machine.slurm import sharing_problem
from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import Instrument
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.sampler import Sampler
from epochmeter.shared.problem import MachineError

BOARD_SCOPE, DUAL_SCOPE = "GPU board", "GPU board, both its dies"
MODULE_SCOPE = "module (GPU and CPU of a superchip)"
APU_SCOPE = "APU (GPU and CPU)"
SLICE_SCOPE = "MIG slice of a GPU"
WITH_CPU = {APU_SCOPE, MODULE_SCOPE}  # scopes that include the CPU
COVERS = {
    BOARD_SCOPE: "GPUs used (whole boards)",
    DUAL_SCOPE: "GPUs used (whole boards, both dies of each)",
    APU_SCOPE: "APUs used (GPU and CPU)",
    SLICE_SCOPE: "MIG slices used, as the driver attributes energy to them",
    MODULE_SCOPE: "modules of the GPUs used (GPU and CPU of a superchip)",
}
"""Scope of the energy of several GPUs, by the scope of each one."""
ONLY_GPUS = tuple(COVERS[scope] for scope in (BOARD_SCOPE, DUAL_SCOPE, SLICE_SCOPE))
"""Scopes that exclude the processor."""


class GpuInstruments(NamedTuple):
    """The working instruments of one GPU, at least one.

    Attributes:
        reason: Why it has no counter.
        board: Serial number of its board; None if it is not known.
    """

    name: str
    counter: Instrument | None
    power: Instrument | None
    reason: str | None
    board: str | None = None

    @property
    def scope(self) -> str | None:
        """What the GPU's energy covers: that of its counter, or else of its power."""
        used = self.counter or self.power
        return used.domain.covers if used else None


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


def counted_power_w(joules: Callable[[], float], seconds: float) -> float:
    """Wait for some seconds, and return the mean power by an energy counter meanwhile, in watts."""
    begun_j, begun_s = joules(), time.monotonic()
    time.sleep(seconds)
    return (joules() - begun_j) / (time.monotonic() - begun_s)


def one_per_module(gpus: Sequence[GpuInstruments]) -> list[GpuInstruments]:
    """Leave out GPUs on the module of another one, whose energy includes theirs.

    Raises:
        MachineError: It is not known which GPUs are on the same module.
    """
    modules = {gpu.board: gpu for gpu in reversed(gpus) if gpu.scope == MODULE_SCOPE}
    if modules and len(gpus) > 1 and any(gpu.board is None for gpu in gpus):
        names = ", ".join(gpu.name for gpu in gpus)
        problem = f"NVML reports energy of modules, but no board serial: {names} may be on the same module"
        raise MachineError(energy_problem(EnergyCode.SCOPE_UNKNOWN, problem))
    return [gpu for gpu in gpus if modules.get(gpu.board, gpu) is gpu]


def gpu_meter(
    used: Sequence[GpuInstruments], *, period_s: float, cross_check: bool, close: Callable[[], None] = lambda: None
) -> EnergyMeter:
    """Build the meter of the GPUs used; `cross_check` also samples GPUs with a counter, outside of the total.

    Raises:
        MachineError: The energy may include that of other jobs, or that of a module several times.
    """
    if WITH_CPU.intersection(gpu.scope for gpu in used) and (others := sharing_problem()):
        raise MachineError(others)
    gpus = one_per_module(used)
    shared = [f"{gpu.name} is on a module that is counted once." for gpu in used if gpu not in gpus]
    powers = {gpu.name: gpu.power for gpu in gpus if gpu.power and not gpu.counter}
    cross_checks = []
    for gpu in gpus if cross_check else ():
        if gpu.power and gpu.counter:
            cross_checks.append(_cross_check(gpu.name, gpu.power.domain.covers, gpu.counter.domain.covers))
            domain = gpu.power.domain._replace(covers=f"{gpu.power.domain.covers}, sampled as a cross-check")
            powers[f"{gpu.name}_sampled"] = gpu.power._replace(domain=domain)
    checks = all(gpu.counter for gpu in gpus)
    return EnergyMeter(
        counters={gpu.name: gpu.counter for gpu in gpus if gpu.counter},
        powers=Sampler(powers, total=list(powers), period_s=period_s, checks=checks) if powers else None,
        sampled_in_part=len(powers) < len(gpus),
        cross_checks=cross_checks,
        total=[gpu.name for gpu in gpus],
        covers=" + ".join(dict.fromkeys(COVERS[gpu.scope] for gpu in gpus if gpu.scope)),
        reason=" ".join([*(gpu.reason for gpu in gpus if gpu.reason), *shared]) or None,
        close=close,
    )


def _cross_check(name: str, sampled: str, counted: str) -> CrossCheck:
    """The check of a GPU's sampled power and its counter, given their scopes: a GPU is a part of its module."""
    domains = (f"{name}_sampled",), (name,)
    if sampled == counted:
        return CrossCheck(domains[0], "equal to", domains[1])
    contained, reference = domains if counted == MODULE_SCOPE else domains[::-1]
    return CrossCheck(contained, "at most", reference)
