"""The validation of a machine: the document that `validate.py` writes, and where runs find the one of their machine.

The document has no name of the host or of a user. Which machine it is of is the name of its file in the state folder.
"""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from epochmeter.config.identity import hash_value
from epochmeter.results import documents
from epochmeter.results.run_info import SensorResponse, ValidationFacts
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.types import Document

SCHEMA = 1
FILE, STORED = "validation.json", "validations"
PASSED, FAILED, UNTESTED = "passed", "failed", "cannot be tested here"
STATES = (PASSED, FAILED, UNTESTED)


class Line(TypedDict, total=False):
    """One comparison: of a check, and of one of its subjects, such as a sensor."""

    check: str
    subject: str
    value: float | None
    bound: list[float | None]  # lowest and highest value that passes; None: any
    unit: str
    state: str
    why: str  # it failed, or cannot be tested
    hint: str
    again: bool  # whether the same command may test it later: the machine was busy, or the time was over
    details: dict[str, float]


class Versions(TypedDict, total=False):
    epochmeter: str
    python: str
    torch: str | None
    driver: str | None
    kernel: str


class MachineFacts(TypedDict, total=False):
    """What a machine is, without its name."""

    device: str
    board: str | None
    cpu: str | None
    cores: int | None
    gpus: list[str]
    os: str | None


class Instrument(TypedDict, total=False):
    """A sensor or counter, and its measured response."""

    name: str
    source: str
    covers: str
    response: SensorResponse
    assumed: SensorResponse


class Validation(TypedDict, total=False):
    """`validation.json`."""

    schema: int
    validated: str  # time of day of the last line, in ISO 8601
    minutes: float
    settings: bool
    meter: str  # of the runs that use the measured responses
    versions: Versions
    machine: MachineFacts
    instruments: list[Instrument]
    lines: list[Line]


def read(path: Path) -> Validation:
    """Return a validation; OSError, or ValueError if the file is damaged or of another version."""
    document: Validation = documents.read(path, Validation)
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {document.get('schema')}, not {SCHEMA}")
    return document


def counts(lines: Sequence[Line]) -> dict[str, int]:
    """Return the number of lines by state."""
    return {state: sum(line["state"] == state for line in lines) for state in STATES}


def machine_facts(host: Document, device: str) -> MachineFacts:
    """Return what a machine is by its description (`host.describe`), without its name."""
    cpu, board = host.get("cpu") or {}, host.get("board") or {}
    facts: MachineFacts = {
        "device": device,
        "board": board.get("model"),
        "cpu": cpu.get("model"),
        "cores": cpu.get("cores"),
        "gpus": [str(gpu.get("model") or gpu.get("vendor")) for gpu in host.get("gpus") or []],
        "os": host.get("os"),
    }
    return facts


def machine_identity(host: Document) -> str:
    """Return the checksum of a machine by its description: its name, processor, all GPUs in their order, and drivers.

    A response that was measured with one driver may not hold with another.
    """
    gpus = [gpu.get("uuid") or gpu.get("bus") for gpu in host.get("gpus") or []]
    board, drivers = host.get("board") or {}, [host.get(name) for name in ("driver", "l4t", "kernel")]
    return hash_value([host.get("hostname") or platform.node(), board.get("model"), host.get("cpu"), gpus, drivers])


def state_folder(state_dir: str | None) -> Path:
    """Return the folder of the validations of this user's machines, next to the journal of device settings."""
    default = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state", "epochmeter")
    return Path(state_dir or default).expanduser() / STORED


def store(document: Validation, identity: str, state_dir: str | None) -> Path:
    """Keep a validation for the runs of its machine, and return its file; OSError if that cannot be written."""
    path = state_folder(state_dir) / f"{identity}.json"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(path, document)
    return path


def find(identity: str, state_dir: str | None) -> Validation | None:
    """Return the validation of a machine; None without one that can be read."""
    with suppress(OSError, ValueError):
        return read(state_folder(state_dir) / f"{identity}.json")
    return None


def facts_of(document: Validation, used: Mapping[str, SensorResponse]) -> ValidationFacts:
    """Return what a run records of a validation; `used` has the measured responses that it uses, by domain."""
    states = counts(document.get("lines", []))
    return {
        "validated": document.get("validated", ""),
        "version": document.get("versions", {}).get("epochmeter", ""),
        "driver": document.get("versions", {}).get("driver"),
        "passed": states[PASSED],
        "failed": states[FAILED],
        "untested": states[UNTESTED],
        "validated_response": dict(used),
    }


def is_within(value: float, bound: Sequence[float | None]) -> bool:
    """Return whether a value is within its bound; a value that is not finite never is."""
    low, high = bound
    return math.isfinite(value) and (low is None or value >= low) and (high is None or value <= high)
