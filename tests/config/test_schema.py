"""The declarations of the keys, and the files of conf/ that are written from them."""

from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_type_hints

import pytest
from cases import case, cases
from golden import assert_text
from project import ROOT

from epochmeter.config import rules
from epochmeter.config.entries import COMMANDS
from epochmeter.config.schema import RULES_OF_OPTIONS, is_section, rules_of
from epochmeter.config.suggestions import entry_keys
from epochmeter.config.validation import format_value, key_rules

HINT = "write it by `UPDATE_GOLDEN=1 make test ARGS=tests/config/test_schema.py`"


@pytest.mark.parametrize("entry", COMMANDS)
def test_file_of_a_command_has_its_keys_as_they_are_declared(entry):
    path = ROOT / f"conf/{entry}.yaml"
    head, _, rest = path.read_text().partition("\n\n")
    hydra = rest[rest.index("hydra:") :]
    assert_text(path, "\n".join([head, "", *key_lines(COMMANDS[entry]), "", hydra]), HINT)
    assert entry_keys(entry)[1] == declared(COMMANDS[entry])


def key_lines(section, indent=""):
    """Yield the lines of a section's keys in the file of its command."""
    for name, kind, default, metadata in declarations(section):
        value = "" if is_section(kind) else f" {format_value(default)}"
        effect = f" # {metadata['effect']}" if metadata["effect"] else ""
        yield from [""] if metadata["new_paragraph"] else []
        yield f"{indent}{name}:{value}{effect}"
        yield from key_lines(kind, f"{indent}  ") if is_section(kind) else []


def declared(section):
    """The default of each key in the file of a command."""
    return {name: declared(kind) if is_section(kind) else value for name, kind, value, _ in declarations(section)}


def declarations(section):
    """Yield name, type, default and metadata of each key that the file of a command has."""
    kinds = get_type_hints(section)
    for entry in fields(section):
        if "effect" in entry.metadata:
            default = entry.default_factory() if entry.default is MISSING else entry.default
            yield entry.name, kinds[entry.name], default, entry.metadata


@pytest.mark.parametrize("entry", COMMANDS)
def test_defaults_are_allowed_and_keys_with_a_rule_have_one_declaration(entry):
    keys = dict(rules_of(COMMANDS[entry]))
    for name, rule in keys.items():
        value = entry_keys(entry)[1]
        for part in name.split("."):
            value = value.get(part, MISSING) if isinstance(value, dict) else MISSING
        assert value is MISSING or rule.is_allowed(value), name
    of_options = [key for names, _ in RULES_OF_OPTIONS for key in names.split()]
    assert sorted({*of_options}) == sorted(of_options)
    assert keys.keys().isdisjoint(of_options)


def test_key_of_the_same_name_has_the_rule_of_its_command():
    train, report = key_rules("train"), key_rules("report")
    for key in ("footprint.pue", "sweep"):
        assert not train[key].is_allowed(None)
        assert report[key].is_allowed(None)


@cases(
    case(kind=bool, allowed="one of true, false", valid=[True, False], invalid=[1, "true", None]),
    case(kind=bool | None, allowed="one of true, false, or null", valid=[True, None], invalid=[0, "null"]),
    case(kind=str, allowed="a non-empty text", valid=["a"], invalid=["", " ", 1, None]),
    case(kind=Literal["a", "b"], allowed="one of a, b", valid=["a", "b"], invalid=["c", None, True]),
    case(kind=Literal["a"] | bool, allowed="one of a, true, false", valid=["a", True], invalid=["b", "true", 1, None]),
    case(
        kind=Literal["a"] | bool | None,
        allowed="one of a, true, false, or null",
        valid=["a", False, None],
        invalid=["false", 0],
    ),
    case(
        kind=rules.PositiveCount,
        allowed="a whole number, 1 or more, at most 1,000,000,000",
        valid=[1],
        invalid=[0, True, 1.0, None],
    ),
    case(
        kind=rules.PositiveCount | None,
        allowed="a whole number, 1 or more, at most 1,000,000,000, or null",
        valid=[1, None],
        invalid=[0, ""],
    ),
    case(
        kind=Annotated[int | None, rules.POSITIVE_COUNT],
        allowed=rules.POSITIVE_COUNT.allowed,
        valid=[1],
        invalid=[None],
    ),
)
def test_rule_follows_from_the_type(kind, allowed, valid, invalid):
    rule = rules.rule_of(kind)
    assert rule.allowed == allowed
    assert [rule.is_allowed(value) for value in valid] == [True] * len(valid)
    assert [rule.is_allowed(value) for value in invalid] == [False] * len(invalid)


@pytest.mark.parametrize("kind", [int, float | None, float | str, dict[str, Any], list[str] | None])
def test_type_with_a_part_without_a_rule_has_none(kind):
    assert rules.rule_of(kind) is None
