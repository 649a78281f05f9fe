"""The validation of this machine with which a run's numbers stand, and the measured responses that it uses."""

from collections.abc import Mapping
from pathlib import Path

from epochmeter.config.schema import Host
from epochmeter.machine import host
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.uncertainty import Response
from epochmeter.results import validation
from epochmeter.results.run_info import SensorResponse
from epochmeter.results.validation import Validation


def find_validation(machine: Host) -> Validation | None:
    """Return the validation of this machine with its present GPUs and drivers; None without one."""
    if not any(validation.state_folder(machine.state_dir).glob("*.json")):
        return None  # the description of the host takes time
    return validation.find(validation.machine_identity(host.describe(Path(machine.root))), machine.state_dir)


def stored_responses(found: Validation | None, meter: str) -> dict[str, SensorResponse]:
    """Return the measured responses that runs with a meter use, by domain."""
    if found is None or found.get("meter") != meter:
        return {}
    return {one["name"]: one["response"] for one in found.get("instruments", []) if one.get("response")}


def use_validated(meter: EnergyMeter, found: Validation | None, name: str) -> dict[str, SensorResponse]:
    """Let a meter use the measured responses of its instruments; return those that it uses, by domain.

    A sensor of the same name that covers something else, or is of another kind, is another one.
    """
    if found is None:
        return {}
    stored = stored_responses(found, name)
    known = {one["name"]: (one.get("source"), one.get("covers")) for one in found.get("instruments", [])}
    used = {
        domain: stored[domain]
        for domain, instrument in meter.instruments.items()
        if domain in stored and known[domain] == (instrument.domain.source, instrument.domain.covers)
    }
    meter.use_responses({domain: as_response(response) for domain, response in used.items()})
    return used


def as_response(record: Mapping[str, object]) -> Response:
    """Return a response as the meter uses it."""
    return Response(**record)  # type: ignore[arg-type]  # the fields by name, checked when it was read
