"""`Job` as a structured config of Hydra: keys and types, against which overrides are checked.

Groups are open: an option's file or an override may add keys to them.
"""

from dataclasses import MISSING, Field, field, fields, make_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from epochmeter.config.schema import Group, Job, Section, is_section

CHOICE: Any = Enum  # its words are not known to type checkers


def _structured(section: type[Section], name: str) -> type:
    kinds = get_type_hints(section)
    return make_dataclass(name, [_structured_key(declared, kinds[declared.name]) for declared in fields(section)])


def _structured_key(declared: Field[Any], kind: object) -> tuple[str, Any, Any]:
    """Return a field for `make_dataclass`. Flags (Hydra takes 2 as true) and unions are checked by `validation`."""
    if is_section(kind) and issubclass(kind, Group):
        return declared.name, dict[str, Any], field(default_factory=dict)
    if is_section(kind):
        nested = _structured(kind, kind.__name__)
        return declared.name, nested, field(default_factory=nested)
    if declared.default_factory is not MISSING:
        return declared.name, kind, field(default_factory=declared.default_factory)
    if get_origin(kind) is Literal:
        kind = CHOICE(declared.name, {word: word for word in get_args(kind)})
    elif kind is bool or (get_origin(kind) in (Union, UnionType) and len({*get_args(kind)} - {type(None)}) > 1):
        kind = Any
    return declared.name, kind, field(default=declared.default)


Schema: Any = _structured(Job, "Schema")
