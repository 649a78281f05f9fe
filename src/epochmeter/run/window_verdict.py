"""The verdict on the energy of a window, from what its instruments and other processes did."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from epochmeter.machine.cpu_load import CpuUse
from epochmeter.machine.energy_codes import CODES, EnergyCode, Finding, judge
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.meters.gpu import ONLY_GPUS
from epochmeter.power.phases.phase_energy import PhaseEnergy
from epochmeter.power.window_energy import WindowEnergy
from epochmeter.shared.protocol import NodeWindow

SHARED = "no energy: another process computed on the GPU, and the driver reports no energy by process."
NO_NET_ENERGY = "no net energy: idle power was not measured."


def energy_fields(
    metrics: Mapping[str, float],
    used: WindowEnergy,
    meter: EnergyMeter,
    *,
    phases: PhaseEnergy,
    in_step: Sequence[str],
    gpu_processes: Sequence[str],
    cpu: CpuUse,
    pause: str,
    contradictions: Sequence[str],
    nodes: Sequence[NodeWindow],
) -> dict[str, object]:
    """Return `energy_valid` and `energy_reasons` of a window with these metrics, under their short names.

    `in_step` has the note on a part-time sensor, `pause` the cause of a suspension.
    """
    has_energy = "energy_j" in metrics
    findings = [*meter_findings(meter), *used.findings, *_node_findings(nodes)]
    if has_energy:
        includes_cpu = any(part not in ONLY_GPUS for part in (meter.energy["covers"] or "").split(" + "))
        code = EnergyCode.IN_STEP if used.is_in_step else EnergyCode.IN_STEP_UNKNOWN
        findings += [
            *_found(EnergyCode.COUNTERS_DISAGREE, contradictions),
            *_found(EnergyCode.SHARED_GPU, gpu_processes),
            *_found(EnergyCode.SHARED_CPU, [cpu.note] if includes_cpu else []),
            *_found(EnergyCode.SUSPENDED, [pause]),
            *_found(code, in_step),
            *_found(EnergyCode.NO_PHASES, [phases.reason or ""]),
            *_found(EnergyCode.NO_IDLE_POWER, [] if "net_energy_j" in metrics else [NO_NET_ENERGY]),
        ]
    return judge(findings, has_energy=has_energy).to_record()


def without_others_energy(used: WindowEnergy, meter: EnergyMeter, *, is_shared: bool) -> WindowEnergy:
    """Return the energy of a window; none if another process is known to have computed on the GPUs metered.

    The driver reports no energy by process, and the energy of a GPU includes that of all.
    """
    if not is_shared or not (used.metrics or used.term) or is_of_processor(meter):
        return used
    return used._replace(joules={}, metrics={}, findings=[Finding(EnergyCode.SHARED_GPU, SHARED)], term={})


def is_of_processor(meter: EnergyMeter) -> bool:
    """Return whether the energy of a meter includes nothing but processors and their memory."""
    return (meter.energy["covers"] or "").startswith("CPU")


def meter_findings(meter: EnergyMeter) -> list[Finding]:
    """Return what is absent or doubtful about every energy of a meter."""
    text = meter.energy["reason"] or ""
    return [Finding(CODES[code], text) for code in meter.energy.get("codes", [])]


def with_changed_settings(line: Mapping[str, Any], drift: Sequence[str]) -> dict[str, object]:
    """Return the verdict's fields of a recorded window during which other programs changed settings."""
    if not drift:
        return {}
    changes = [finding.to_record() for finding in _found(EnergyCode.SETTINGS_CHANGED, drift)]
    return {"energy_valid": False, "energy_reasons": [*line.get("energy_reasons", []), *changes]}


def _node_findings(nodes: Sequence[NodeWindow]) -> list[Finding]:
    """Return the findings of other nodes, with their reasons."""
    return [Finding(CODES[code], f"{node.node}: {node.reason}") for node in nodes for code in node.codes]


def _found(code: EnergyCode, texts: Iterable[str]) -> list[Finding]:
    return [Finding(code, text) for text in texts if text]
