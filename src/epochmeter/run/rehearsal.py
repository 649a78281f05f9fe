"""Rehearsals: runs that request what this machine is not, or does not have."""

from __future__ import annotations

from collections.abc import Sequence

from epochmeter.config.job import RunRequest
from epochmeter.config.schema import Strategy
from epochmeter.power.knobs.requests import SettingRequest


def rehearsal_reasons(
    request: RunRequest,
    other_device: str | None,
    storage: str | None,
    settings: Sequence[SettingRequest] | None,
    gpus: str | None,
) -> list[str]:
    """Return why a run is a rehearsal; empty if it is a measurement as requested.

    Args:
        other_device: This machine's device, if it is not the requested one.
        storage: Where the dataset is, if that is not the requested storage.
        settings: The requested device settings; None if none may be changed.
        gpus: `missing_gpus`.

    Raises:
        ValueError: There is a reason, and `rehearse=false`.
    """
    job, choices = request.job, request.choices
    reasons = []
    if other_device:
        reasons.append(f"device={choices['device']} requested, this machine is device={other_device}")
    if storage:
        reasons.append(f"storage={choices['storage']} requested, {storage}")
    if job.meter.name == "replay":
        reasons.append("meter=replay requested: the energy is that of a recording")
    if gpus:
        reasons.append(gpus)
    missing = {setting.key: setting.missing_message for setting in settings or [] if setting.missing_message}
    reasons += missing.values()
    if reasons or settings is None:
        unapplied = {key: value for key, value in job.device_settings.items() if key not in missing}
        reasons += [f"{key}={value} requested, not applied" for key, value in unapplied.items()]
    if reasons and job.rehearse is False:
        raise ValueError(f"{'; '.join(reasons)}\n  hint: `rehearse=false` does not allow this; omit it for a rehearsal")
    if job.rehearse is True:
        reasons.append("rehearse=true")
    return reasons


def missing_gpus(strategy: Strategy, gpu_count: int) -> str | None:
    """Return the message that a strategy has more ranks than GPUs; None if not. Rank processes may share a CPU."""
    ranks = strategy.ranks
    if ranks == 1 or gpu_count >= (ranks or 2) or (gpu_count == 0 and strategy.has_processes):
        return None
    requested = f"strategy={strategy.name}" + (f" strategy.ranks={ranks}" if ranks else "")
    return f"{requested} requested, this machine has {gpu_count or 'no'} GPU{'s' if gpu_count > 1 else ''}"
