"""What jtop's service reports, as a table: each attribute of its client by name, with a result or an error."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from epochmeter.machine import jtop
from epochmeter.machine.recorded import inventory
from epochmeter.machine.recorded.driver_calls import Call, DriverCalls, encode, without_identifiers
from epochmeter.machine.recorded.identifiers import Identifiers
from epochmeter.shared.problem import problem_of
from epochmeter.shared.types import Document

ONCE = ("interval", "board")
POWER = ("uptime", "power")
GAUGES = ("temperature", "cpu", "gpu", "memory", "engine", "fan", "nvpmodel", "jetson_clocks")
"""Attributes of the client: read once, read often, and read rarely. It also has processes and network addresses."""
MEMBERS: Mapping[str, tuple[str, ...]] = {
    "nvpmodel": ("id", "name", "models", "status"),
    "jetson_clocks": ("get_enable", "get_boot"),
}
"""Attributes that are objects with these members; the others are values, or mappings of values."""


def jtop_calls(root: Path, opened: ExitStack, identifiers: Identifiers) -> tuple[Document, DriverCalls]:
    """Connect to the service until `opened` closes; return why there is none, if so, and the attributes to read."""
    if reason := jtop.no_service(root):
        return {"no_service": identifiers.replace(reason)}, DriverCalls()
    try:
        client = opened.enter_context(jtop.connect_client(inventory.JTOP_PERIOD_S))
    except RuntimeError as error:
        problem = problem_of(error)
        texts = {"reason": problem.message, "hint": problem.hint}
        return {key: identifiers.replace(text) for key, text in texts.items()}, DriverCalls()

    def call_of(name: str) -> Call:
        return lambda: _outcome(client, name, identifiers)

    calls = DriverCalls()
    calls.once = {name: call_of(name)() for name in ONCE}
    calls.often, calls.rarely = ({name: call_of(name) for name in names} for names in (POWER, GAUGES))
    calls.read_all()
    return {}, calls


def _outcome(client: Any, name: str, identifiers: Identifiers) -> Document:
    try:
        client.ok(spin=True)  # raises an error of its thread, and waits for nothing
        value = getattr(client, name)
        if name in MEMBERS and value is not None:
            value = {member: _called(getattr(value, member)) for member in MEMBERS[name]}
        elif hasattr(value, "items"):  # of a class of the client
            value = dict(value.items())
        return {"result": without_identifiers(encode(value), identifiers)}
    except Exception as error:  # a service of another version may send anything
        return {"error": identifiers.replace(str(error) or type(error).__name__)}


def _called(member: Any) -> Any:
    return member() if callable(member) else member
