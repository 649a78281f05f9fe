"""What a job asks for that this machine is not: it is rehearsed, and told as such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from epochmeter.config.job import RunRequest, local_device_overrides
from epochmeter.config.schema import Strategy
from epochmeter.power.knobs.requests import DEFAULTS, SettingRequest


def rehearsal_reasons(
    order: RunRequest,
    found: str | None,
    medium: str | None,
    demands: Sequence[SettingRequest] | None,
    fewer: str | None = None,
) -> list[str]:
    """What was asked for that this machine is not; ValueError for any of it with rehearse=false.

    `found` is what this machine is where it is another device, `medium` what the data would lie on where it is another
    storage, `demands` are the knobs asked for, None if none is to be touched, `fewer` tells of GPUs that are lacking.
    """
    job, device = order.job, order.choices["device"]
    reasons = [f"device={device} requested, this machine is device={found}"] if found else []
    if medium:
        reasons.append(f"storage={order.choices['storage']} requested, {medium}")
    if job.meter.name == "replay":
        reasons.append("meter=replay requested: the energy is that of a recording")
    reasons += [fewer] if fewer else []
    lacks = {demand.key: demand.missing_message for demand in demands or [] if demand.missing_message}
    reasons += lacks.values()
    if reasons or demands is None:
        left = [key for key, none in DEFAULTS.items() if getattr(job, key) != none and key not in lacks]
        reasons += [f"{key}={getattr(job, key)} requested, not applied" for key in left]
    if reasons and job.rehearse is False:
        raise ValueError(f"{'; '.join(reasons)}\n  hint: `rehearse=false` does not allow this; omit it for a rehearsal")
    if job.rehearse is True:
        reasons.append("rehearse=true")
    return reasons


def missing_gpus(strategy: Strategy, there: int) -> str | None:
    """What to say where there are fewer GPUs than ranks; on a CPU, ranks that are processes are what was asked for."""
    ranks = strategy.ranks
    if ranks == 1 or there >= (ranks or 2) or (there == 0 and strategy.has_processes):
        return None
    asked = f"strategy={strategy.name}" + (f" strategy.ranks={ranks}" if ranks else "")
    return f"{asked} requested, this machine has {there or 'no'} GPU{'s' if there > 1 else ''}"


def for_this_machine(order: RunRequest) -> RunRequest:
    """An order for another machine, as it trains on this one: what that device's file says of its accelerator and
    its Python does not hold here; what was typed does."""
    return replace(order, job=replace(order.job, device=local_device_overrides(order.job.device, order.overrides)))
