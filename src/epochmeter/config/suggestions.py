"""Suggestions for invalid overrides: similar keys, groups, options and values, and lists of all valid ones."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import ValidationError

from epochmeter.config.errors import InputError, Problem
from epochmeter.config.schema import Schema

CONF = Path(__file__).resolve().parents[3] / "conf"
TOP_LEVEL_KEYS = {*(entry.name for entry in fields(Schema)), "experiment", "data_source", "hydra"}
"""First names of keys in a training configuration."""
INTERNAL_KEYS = ("_target_", "name", "defaults")
"""Keys in the files of groups that suggestions leave out, since overrides rarely set them."""
TYPE_NAMES = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a mapping",
}
EXACT_TYPE_NAMES = {**TYPE_NAMES, int: "a whole number"}


class Hint(NamedTuple):
    """A problem with an override.

    Attributes:
        about: Text that Hydra's error about the same problem contains.
        problem: The problem, with its hint.
    """

    fragment: str
    problem: Problem


def override_hints(arguments: Sequence[str], entry: str = "train") -> list[Hint]:
    """Return a hint for each override with an unknown key, an unknown option, or a value of the wrong type.

    Args:
        arguments: The command line.
        entry: Name of the command, and of its file in conf/.
    """
    groups, keys = entry_keys(entry)
    candidates: list[tuple[str, Problem | None]] = []
    for key, value in (argument.partition("=")[::2] for argument in arguments if "=" in argument):
        name, _, below = key.partition(".")
        if not name.isidentifier() or name == "hydra":
            continue
        if name not in (*groups, *keys):
            candidates.append((name, unknown_key_problem(name, [*groups, *keys])))
        elif below:
            candidates.append((key, unknown_subkey_problem(key, keys.get(name))))
        if key in groups:
            candidates += [(f"{key}/{option}", unknown_choice_problem(key, option)) for option in value.split(",")]
        elif entry == "train":
            candidates += [(f"{key}={item}", wrong_type_problem(key, item)) for item in value.split(",")]
    return [Hint(about, problem) for about, problem in candidates if problem]


def list_choices(group: str) -> list[str]:
    """Return the options of a group, including those in subfolders; files such as `_study.yaml` are not options."""
    folder = CONF / group
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("[!_]*.yaml"))


def entry_keys(entry: str) -> tuple[list[str], dict[str, Any]]:
    """Return the groups of a command, and its keys with their defaults."""
    keys: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{entry}.yaml"))
    groups = [group for default in keys.pop("defaults") if isinstance(default, dict) for group in default]
    return [group for group in groups if not group.startswith("override ")], keys


def unknown_key_problem(name: str, available: Collection[str] = TOP_LEVEL_KEYS) -> Problem:
    """Return the problem of an unknown key."""
    keys = sorted({*available} - {"hydra"})
    return Problem(f"unknown key `{name}`", f"{did_you_mean(closest_names(name, keys), '{}=')}keys: {', '.join(keys)}")


def unknown_subkey_problem(key: str, section: Mapping[str, Any] | None) -> Problem | None:
    """Return the problem of an unknown key in a section or group, such as `optimizer.learning_rate`.

    Args:
        key: The dotted key.
        section: The keys in the command's file below the first name; None for a group, whose options have the keys.

    Returns:
        The problem, or None if the key exists.
    """
    group, _, name = key.partition(".")
    name = name.partition(".")[0]
    available = choice_keys(group) if section is None else list(section)
    if not available or name in (*available, *INTERNAL_KEYS):
        return None
    add = f"; to add a new key: `+{key}=`" if section is None else ""
    guess = did_you_mean(closest_names(name, available, 0.5), f"{group}.{{}}=")
    return Problem(f"unknown key `{group}.{name}`", f"{guess}keys of {group}: {', '.join(available)}{add}")


def unknown_choice_problem(group: str, option: str) -> Problem | None:
    """Return the problem of an option that its group does not have; None for expressions, such as `glob(*)`."""
    options = list_choices(group)
    if option in (*options, "null") or not re.fullmatch(r"[\w./-]+", option):
        return None
    guess = did_you_mean(closest_names(option, options), f"{group}={{}}")
    return Problem(f"`{group}={option}` does not exist", f"{guess}options: {', '.join(options)}")


def wrong_type_problem(key: str, value: str) -> Problem | None:
    """Return the problem of a value that does not have its key's type; None if it has."""
    kind: Any = Schema
    for name in key.split("."):
        kind = get_type_hints(kind).get(name) if is_dataclass(kind) else None
    kind = next((member for member in get_args(kind) if member is not type(None)), kind)
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    if (
        not (is_enum or kind in (int, float, bool))
        or not re.fullmatch(r"[\w.+-]+", value)
        or value == "null"
        or has_type(key, value)
    ):
        return None
    allowed = f"one of {', '.join(kind.__members__)}" if is_enum else EXACT_TYPE_NAMES[kind]
    return Problem(f"`{key}={value}` is not valid", f"give {allowed}")


def has_type(key: str, value: str) -> bool:
    """Return whether a value has its key's type."""
    try:
        OmegaConf.update(OmegaConf.structured(Schema), key, value)
    except ValidationError:
        return False
    return True


def closest_names(name: str, names: Sequence[str], cutoff: float = 0.6) -> list[str]:
    """Return similar names: those that start with `name`, then those with a word that does, else one close match."""
    prefixed = [other for other in names if other.startswith(name)]
    prefixed += [
        other for other in names if other not in prefixed and any(word.startswith(name) for word in split_words(other))
    ]
    return prefixed or get_close_matches(name, names, 1, cutoff)


def split_words(name: str) -> list[str]:
    """Split a name into its words: edge/lenet_mnist into edge, lenet and mnist."""
    return re.split("[/_]", name)


def did_you_mean(names: Sequence[str], form: str) -> str:
    """Return "did you mean ...? " with each name formatted by `form`; empty without names."""
    *first, last = [f"`{form.format(name)}`" for name in names] or [""]
    return last and f"did you mean {' or '.join([*([', '.join(first)] if first else []), last])}? "


def choice_keys(group: str) -> list[str]:
    """Return the keys of all options of a group."""
    keys = [key for path in sorted((CONF / group).glob("*.yaml")) for key in own_defaults(group, path.stem)]
    return [key for key in dict.fromkeys(keys) if key not in INTERNAL_KEYS]


def check_types(overrides: Sequence[str], chosen: Mapping[str, str], job: Mapping[str, Any]) -> None:
    """Check that values have the type of their key's default; refuses `storage.root=5`, for example.

    Hydra checks the types of keys outside groups, except that it accepts any whole number as true or false.

    Args:
        overrides: The overrides of the configuration.
        chosen: The selected option of each group.
        job: The configuration.

    Raises:
        InputError: With one problem for each invalid override.
    """
    wrong = []
    for key, _, text in (override.lstrip("+").partition("=") for override in overrides):
        group, _, below = key.partition(".")
        if group in chosen:
            default, given = value_at(own_defaults(group, chosen[group]), below), value_at(job.get(group), below)
        else:
            default = value_at(job, key)
            given = int(text) if isinstance(default, bool) and text.lstrip("-").isdecimal() else default
        kind = type_name(default)
        if kind and given is not None and given not in (0, 1) and type_name(given) != kind:
            wrong.append(Problem(f"`{key}={text}` is not valid", f"give {kind}, such as {json.dumps(default)}"))
    if wrong:
        raise InputError(*wrong)


def type_name(value: Any) -> str:
    """Return the type of a value in words; empty for null and for references to other keys."""
    if value is None or (isinstance(value, str) and "${" in value):
        return ""
    return TYPE_NAMES.get(type(value), "another value")


def value_at(tree: Any, key: str) -> Any:
    """Return the value of a dotted key; None if it does not exist."""
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def check_names(overrides: Sequence[str], chosen: Mapping[str, str]) -> None:
    """Refuse overrides of names that would label a run as another option than the one it uses.

    Each option has its name from its file, for example `model.name` in conf/model/lenet.yaml. Only an option that uses
    `${<group>.name}` as a value, such as model=torchvision, changes with its name.

    Args:
        overrides: The overrides of the configuration.
        chosen: The selected option of each group.

    Raises:
        InputError: With one problem for each invalid override.
    """
    wrong = []
    for key, _, given in (override.lstrip("+").partition("=") for override in overrides):
        group, _, name = key.partition(".")
        if group not in chosen or given == merged_defaults(group, chosen[group]).get(name):
            continue
        option, hint = f"{group}={chosen[group]}", suggest_choice(group, given)
        if name == "name" and not is_alias(group, chosen[group]):
            wrong.append(Problem(f"`{key}={given}` would only change the label of {option}", hint))
        elif merged_defaults(group, chosen[group]).get(name) == name_reference(group):
            wrong.append(Problem(f"`{key}={given}` would not change the name of {option}", hint))
    if wrong:
        raise InputError(*wrong)


def suggest_choice(group: str, name: str) -> str:
    """Return a hint how to select the option of a group by its name."""
    options = list_choices(group)
    if name in options:
        return f"use `{group}={name}`"
    aliases = [f"`{group}={option} {group}.name={name}`" for option in options if is_alias(group, option)]
    if aliases:
        return f"use {aliases[0]}"
    return f"use `{group}=` with one of {', '.join(options)}, or add conf/{group}/{name}.yaml"


def is_alias(group: str, option: str) -> bool:
    """Return whether an option uses its name as a value."""
    return name_reference(group) in own_defaults(group, option).values()


def name_reference(group: str) -> str:
    """Return the reference to the name of a group's option."""
    return f"${{{group}.name}}"


def merged_defaults(group: str, option: str) -> dict[str, Any]:
    """Return the keys of an option's file, merged with the files in its defaults list."""
    own = own_defaults(group, option)
    bases = [base for base in own.get("defaults", ()) if isinstance(base, str) and base != "_self_"]
    return {
        key: value for part in (*(merged_defaults(group, base) for base in bases), own) for key, value in part.items()
    }


@cache
def own_defaults(group: str, option: str) -> dict[str, Any]:
    """Return the content of an option's file, references not resolved; empty if there is no such file."""
    path = CONF / group / f"{option}.yaml"
    return OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}  # type: ignore[return-value]
