"""Energy of NVIDIA GPUs through NVML: the GPU's energy counter (Volta and newer) and sampled power.

Sampled power checks the counter, and replaces it on GPUs without one. This module only reads.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from epochmeter.machine import nvml
from epochmeter.machine.energy_codes import EnergyCode, energy_problem
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter, unmetered
from epochmeter.power.meters.gpu import (
    BOARD_SCOPE,
    MODULE_SCOPE,
    SLICE_SCOPE,
    GpuInstruments,
    counted_power_w,
    gpu_meter,
    open_gpu,
)
from epochmeter.power.uncertainty import UNKNOWN, Response, Sensors, response_of
from epochmeter.shared.problem import MachineError, problem_of

COUNTER_PERIOD_S = 0.1  # approximate update period of the counter: it measures windows of seconds, not single steps
GA100 = (8, 0)
"""Up to this compute capability `nvmlDeviceGetPowerUsage` returns instantaneous power; on newer GPUs a mean."""
MEAN_RESPONSE = Response(averaging_s=1.0, renewal_s=0.1)
"""Response of the mean (NVML's documentation); it is renewed like the instantaneous reading."""
SLICE_REASON = "a MIG slice has no energy counter, and the GPU's counter covers all slices"
SCOPE_CHECK_S = 1.0  # duration of the check of what a superchip's counter covers, in seconds
MAX_SCOPE_RATIO = 1.25
"""Largest ratio of counted and reported power if both cover the same: one period of the counter, and changes of power.
"""
MAX_SLICE_FRACTION = 0.99  # of the whole GPU's energy or power: what is more is that of the GPU itself
STEP = 0.001  # resolution: NVML reports millijoules and milliwatts


def open_nvml(
    *, gpus: Sequence[str], root: Path, period_s: float = 0.05, cross_check: bool = True, sensors: Sensors | None = None
) -> EnergyMeter:
    """Open the meter of the GPUs used, by UUID: a `NullMeter` unless each one has a counter or a power sensor.

    The table `sensors` has responses by compute capability, and `... counter` for the energy counter.
    """
    if not gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible and visible.startswith("MIG-"):
            name = visible.partition(",")[0].strip()
            if meter := _slice_meter(name, period_s, cross_check=cross_check):
                return meter
            return NullMeter(f"The run uses a MIG slice: {SLICE_REASON}.", code=EnergyCode.PARTITIONED_GPU.value)
        selection = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        return NullMeter(f"meter=nvml: the run uses no GPU with a known UUID{selection}.")
    try:
        shut_down = nvml.start()
    except OSError as error:
        return unmetered(problem_of(error))
    try:
        opened = [open_instruments(uuid, period_s, sensors) for uuid in gpus]
        return gpu_meter(opened, period_s=period_s, cross_check=cross_check, close=shut_down)
    except (OSError, MachineError) as error:
        shut_down()
        return unmetered(problem_of(error))


def _slice_meter(uuid: str, period_s: float, *, cross_check: bool) -> EnergyMeter | None:
    """Open the meter of a MIG slice; None unless the driver attributes energy or power to it."""
    with suppress(OSError, MachineError):
        shut_down = nvml.start()
        try:
            return gpu_meter([open_slice(uuid, period_s)], period_s=period_s, cross_check=cross_check, close=shut_down)
        except (OSError, MachineError):
            shut_down()
            raise
    return None


def open_instruments(uuid: str, period_s: float, sensors: Sensors | None) -> GpuInstruments:
    """Open the instruments of a GPU; OSError if it has none, MachineError if they cover more than the slice used."""
    if uuid.startswith("MIG-"):
        return open_slice(uuid, period_s)
    gpu = nvml.open_gpu(uuid)
    if gpu.is_in_mig_mode():
        raise MachineError(energy_problem(EnergyCode.PARTITIONED_GPU, f"{gpu.name} is in MIG mode: {SLICE_REASON}"))
    capability: tuple[int, ...] = ()
    with suppress(OSError):
        capability = gpu.call("nvmlDeviceGetCudaComputeCapability")
    name = ".".join(map(str, capability))
    response = response_of(sensors, name, UNKNOWN)
    mean_response = MEAN_RESPONSE if capability > GA100 else response
    powers, no_power = find_powers(gpu, period_s, response, mean_response)
    # Unless listed, it is assumed to add up the power sensor's readings, which may miss a part of the time.
    counted = response_of(sensors, f"{name} counter", response)._replace(renewal_s=COUNTER_PERIOD_S)

    def open_power() -> Instrument:
        if not powers:
            raise OSError(no_power)
        return next(iter(powers.values()))

    def open_counter() -> Instrument:
        read = checked(gpu.energy_j, f"the energy counter of {gpu.name} is 0")
        may_be_of_module = gpu.is_superchip() or MODULE_SCOPE in powers
        scope = counter_scope(gpu.name, read, powers) if may_be_of_module else BOARD_SCOPE
        limit_w = highest_limit_w(gpu) if scope == BOARD_SCOPE else None
        return Instrument(Domain("counter", COUNTER_PERIOD_S, scope, STEP, counted, limit_w), read)

    opened = open_gpu(gpu.name, open_counter, open_power)
    with suppress(OSError):
        return opened._replace(board=gpu.board_serial())
    return opened


def open_slice(uuid: str, period_s: float) -> GpuInstruments:
    """Open the instruments of a MIG slice; MachineError if its driver reports the energy of the whole GPU only."""
    refused = MachineError(energy_problem(EnergyCode.PARTITIONED_GPU, f"{uuid}: {SLICE_REASON}"))
    try:
        part = nvml.open_gpu(uuid)
        board = part.board_of_slice()
        counter, power = _of_slice(part.energy_j, board.energy_j), _of_slice(part.power_w, board.power_w)
    except OSError:
        raise refused from None
    if not (counter or power):
        raise refused
    counted = Domain("counter", COUNTER_PERIOD_S, SLICE_SCOPE, STEP, UNKNOWN._replace(renewal_s=COUNTER_PERIOD_S))
    sampled = Domain("sampled", period_s, SLICE_SCOPE, STEP, UNKNOWN)
    return GpuInstruments(
        part.name,
        Instrument(counted, counter) if counter else None,
        Instrument(sampled, power) if power else None,
        None if counter else f"{part.name}: its slice has no energy counter; its power is sampled instead.",
    )


def _of_slice(read: Callable[[], float], of_board: Callable[[], float]) -> Callable[[], float] | None:
    """Return the reader of a slice's own instrument; None if it has none, or shows that of the whole GPU."""
    try:
        whole = of_board()
    except OSError:
        return None
    try:
        own = read()
    except OSError:
        return None
    return read if 0 < own < MAX_SLICE_FRACTION * whole else None


def find_powers(
    gpu: nvml.NvmlGpu, period_s: float, response: Response, mean_response: Response
) -> tuple[dict[str, Instrument], str]:
    """Find the working power sensors of a GPU by scope, and why the last one does not work, if so.

    The first one is to be used: the GPU's own instantaneous power, else that of its module, else the GPU's mean power.
    """
    sources = (
        (BOARD_SCOPE, gpu.instant_power_w, response),
        (MODULE_SCOPE, gpu.module_power_w, response),
        (BOARD_SCOPE, gpu.power_w, mean_response),
    )
    powers: dict[str, Instrument] = {}
    reason = ""
    for scope, read, own_response in sources:
        limit_w = highest_limit_w(gpu) if scope == BOARD_SCOPE else None  # NVML's limits are of the board
        domain = Domain("sampled", period_s, scope, STEP, own_response, limit_w)
        try:
            powers.setdefault(scope, Instrument(domain, checked(read, f"the power of {gpu.name} is 0")))
        except OSError as error:
            reason = str(error)
    return powers, reason


def counter_scope(gpu: str, joules: Callable[[], float], powers: Mapping[str, Instrument]) -> str:
    """Find out whether a superchip's counter is of the GPU or of the module, which NVML does not state, by its power.

    Raises:
        OSError: The power matches neither or both, or the counter is of the module, and the GPU's own power is known.
    """
    counted_w = counted_power_w(joules, SCOPE_CHECK_S)
    watts = {scope: power.read() for scope, power in powers.items()}
    ratios = {scope: counted_w / power_w for scope, power_w in watts.items()}
    matching = [scope for scope, ratio in ratios.items() if 1 / MAX_SCOPE_RATIO < ratio < MAX_SCOPE_RATIO]
    if len(matching) == 1 and matching[0] in (BOARD_SCOPE, next(iter(powers))):
        return matching[0]
    reported = " and ".join(f"{power_w:.3g} W of the {scope}" for scope, power_w in watts.items()) or "no power"
    raise OSError(
        f"the energy counter of {gpu} may not be its own: it counts {counted_w:.3g} W, NVML reports {reported}"
    )


def highest_limit_w(gpu: nvml.NvmlGpu) -> float | None:
    """The highest power limit that can be set, which is a limit of the board; None if it is not reported."""
    try:
        return gpu.power_limit_range_w()[1]
    except OSError:
        return None


def checked(read: Callable[[], float], zero: str) -> Callable[[], float]:
    """Return the reader of an instrument that works; OSError if reading fails now, or with `zero` if it returns 0."""
    if not read() > 0:
        raise OSError(zero)
    return read
