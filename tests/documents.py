"""Checks of documents for other programs against the types that their published schemas are made from."""

import json
from importlib.util import find_spec
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from project import ROOT

from epochmeter.commands.output_fields import OutputFields
from epochmeter.results.answer_fields import AnswerFields
from epochmeter.results.documents import check

KINDS = {"answer": AnswerFields, "output": OutputFields}
WITHOUT_SCHEMA = ("ReportPages",)  # have analyses that no schema describes


def assert_conforms(name: str, document: object) -> None:
    """Assert that a document has all fields of its schema, of their types, and no others.

    The published file is used as well where jsonschema is installed.
    """
    plain = json.loads(json.dumps(document, allow_nan=False))
    check(plain, KINDS[name])
    if find_spec("jsonschema"):
        import jsonschema

        jsonschema.Draft202012Validator(json.loads((ROOT / f"docs/{name}.schema.json").read_text())).validate(plain)
    assert unknown_fields(plain, KINDS[name]) == []


def unknown_fields(value: Any, kind: Any, place: str = "") -> list[str]:
    """Return the places of fields that a type lacks."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return min((unknown_fields(value, part, place) for part in parts), key=len)
    if origin is list and isinstance(value, list):
        return [name for item in value for name in unknown_fields(item, parts[0], f"{place}[]")]
    if origin is dict and isinstance(value, dict):
        return [name for item in value.values() for name in unknown_fields(item, parts[1], f"{place}.*")]
    if not is_typeddict(kind):
        return []
    if not isinstance(value, dict):
        return [place]
    hints = get_type_hints(kind)
    known = {name: item for name, item in value.items() if name in hints}
    others = [] if kind.__name__ in WITHOUT_SCHEMA else [f"{place}.{name}" for name in value if name not in hints]
    for name, item in known.items():
        others += unknown_fields(item, hints[name], f"{place}.{name}")
    return others
