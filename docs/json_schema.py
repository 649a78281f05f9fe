"""The published JSON Schemas, made from the types of the documents: `python docs/json_schema.py` writes the files."""

import json
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from epochmeter.commands.output_fields import OutputFields  # noqa: E402
from epochmeter.results.answer_fields import AnswerFields  # noqa: E402

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS = {"answer": AnswerFields, "output": OutputFields}
SIMPLE = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}
ANY = (Any, object)


def schema_text(name: str) -> str:
    """Return the text of a schema's file in docs/."""
    definitions: dict[str, Any] = {}
    body = schema_of(SCHEMAS[name], definitions)
    root = definitions.pop(SCHEMAS[name].__name__)
    assert body["$ref"].endswith(SCHEMAS[name].__name__)
    document = {"$schema": DIALECT, "$id": f"{name}.schema.json", "title": f"{name} of epochmeter", **root}
    return json.dumps({**document, "$defs": dict(sorted(definitions.items()))}, indent=2) + "\n"


def schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type hint; those of typed dictionaries are added to the definitions."""
    if get_origin(kind) is Annotated:
        inner, text = get_args(kind)
        return {**schema_of(inner, definitions), "description": text}
    if is_typeddict(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # it may contain itself
            definitions[kind.__name__] = object_schema(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(parts)}
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(part, definitions) for part in parts]}
    if origin is list:
        return {"type": "array", "items": schema_of(parts[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(parts[1], definitions)}
    return {} if kind in ANY else {"type": SIMPLE[kind]}


def object_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a typed dictionary. Later versions may add fields, so others are allowed."""
    hints = get_type_hints(kind, include_extras=True)
    properties = {name: schema_of(hint, definitions) for name, hint in hints.items()}
    required = [name for name in hints if name in kind.__required_keys__]
    text = (kind.__doc__ or "").strip()
    described = {"description": text} if text and not text.startswith("dict(") else {}
    return {**described, "type": "object", "properties": properties, **({"required": required} if required else {})}


if __name__ == "__main__":
    for schema in SCHEMAS:
        (ROOT / f"docs/{schema}.schema.json").write_text(schema_text(schema))
