"""What an override may have meant that Hydra refuses: the key, group, choice or value that it asked for, what is near
it, and all that there are.
"""

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
KNOWN = {*(entry.name for entry in fields(Schema)), "experiment", "supply", "hydra"}
"""What an override of a job may begin with."""
UNLISTED = ("_target_", "name", "defaults")
"""What files of groups have that is seldom typed."""
WORDS = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a mapping"}
KINDS = {**WORDS, int: "a whole number"}


class Hint(NamedTuple):
    """A problem with an override, and text that is in Hydra's error about the same problem."""

    about: str
    problem: Problem


def hints(arguments: Sequence[str], entry: str = "train") -> list[Hint]:
    """A hint for each override that names no key, choice or value of an entry's that there is."""
    groups, keys = known(entry)
    found: list[tuple[str, Problem | None]] = []
    for key, value in (typed.partition("=")[::2] for typed in arguments if "=" in typed):
        name, _, below = key.partition(".")
        if not name.isidentifier() or name == "hydra":
            continue
        if name not in (*groups, *keys):
            found.append((name, unknown(name, [*groups, *keys])))
        elif below:
            found.append((key, unknown_below(key, keys.get(name))))
        if key in groups:
            found += [(f"{key}/{choice}", unknown_choice(key, choice)) for choice in value.split(",")]
        elif entry == "train":
            found += [(f"{key}={each}", wrong_value(key, each)) for each in value.split(",")]
    return [Hint(about, problem) for about, problem in found if problem]


def choices(group: str) -> list[str]:
    """What a group may be set to, those in folders below its own too; not what others build on, `_study.yaml`."""
    folder = CONF / group
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("[!_]*.yaml"))


def known(entry: str) -> tuple[list[str], dict[str, Any]]:
    """What an entry's overrides may begin with: the groups of its file, and its keys with what it has for each."""
    keys: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{entry}.yaml"))
    groups = [group for each in keys.pop("defaults") if isinstance(each, dict) for group in each]
    return [group for group in groups if not group.startswith("override ")], keys


def unknown(name: str, there: Collection[str] = KNOWN) -> Problem:
    """The problem of a key that does not exist."""
    keys = sorted({*there} - {"hydra"})
    return Problem(f"There is no key {name}", f"{meant(near(name, keys), '{}=')}The keys are: {', '.join(keys)}.")


def unknown_below(key: str, part: Mapping[str, Any] | None) -> Problem | None:
    """The problem of `optimizer.learning_rate`, a key below another that has none of that name.

    `part`: what an entry's file has below that other; None of a group, where its choices have the keys.
    """
    group, _, name = key.partition(".")
    name = name.partition(".")[0]
    there = keys_of_choices(group) if part is None else list(part)
    if not there or name in (*there, *UNLISTED):
        return None
    added = f" One that is in no file is added by +{key}=." if part is None else ""
    guess = meant(near(name, there, 0.5), f"{group}.{{}}=")
    return Problem(f"There is no key {group}.{name}", f"{guess}The keys of {group} are: {', '.join(there)}.{added}")


def unknown_choice(group: str, choice: str) -> Problem | None:
    """The problem of a choice that its group does not have; None for text that is not a name, such as `glob(*)`."""
    there = choices(group)
    if choice in (*there, "null") or not re.fullmatch(r"[\w./-]+", choice):
        return None
    guess = meant(near(choice, there), f"{group}={{}}")
    return Problem(f"There is no {group}={choice}", f"{guess}There are: {', '.join(there)}.")


def wrong_value(key: str, value: str) -> Problem | None:
    """The problem of a value that is not of its key's type."""
    kind: Any = Schema
    for name in key.split("."):
        kind = get_type_hints(kind).get(name) if is_dataclass(kind) else None
    kind = next((each for each in get_args(kind) if each is not type(None)), kind)
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    if (
        not (is_enum or kind in (int, float, bool))
        or not re.fullmatch(r"[\w.+-]+", value)
        or value == "null"
        or is_of(key, value)
    ):
        return None
    takes = f"one of {', '.join(kind.__members__)}" if is_enum else KINDS[kind]
    return Problem(f"`{key}={value}` is not valid", f"give {takes}")


def is_of(key: str, value: str) -> bool:
    """Whether a value is of its key's type."""
    try:
        OmegaConf.update(OmegaConf.structured(Schema), key, value)
    except ValidationError:
        return False
    return True


def near(asked: str, names: Sequence[str], alike: float = 0.6) -> list[str]:
    """All that begin with what was asked for, or have a word that does; where none does, what is spelled alike."""
    begin = [name for name in names if name.startswith(asked)]
    begin += [name for name in names if name not in begin and any(word.startswith(asked) for word in words(name))]
    return begin or get_close_matches(asked, names, 1, alike)


def words(name: str) -> list[str]:
    """The words of a name: of edge/lenet_mnist edge, lenet and mnist."""
    return re.split("[/_]", name)


def meant(names: Sequence[str], form: str) -> str:
    """The question whether one of these was meant, each written as one types it; nothing where there is none."""
    *most, last = [form.format(name) for name in names] or [""]
    return last and f"Did you mean {' or '.join([*([', '.join(most)] if most else []), last])}? "


def keys_of_choices(group: str) -> list[str]:
    """The keys that the choices of a group have."""
    keys = [key for path in sorted((CONF / group).glob("*.yaml")) for key in defaults(group, path.stem)]
    return [key for key in dict.fromkeys(keys) if key not in UNLISTED]


def check_types(overrides: Sequence[str], chosen: Mapping[str, str], job: Mapping[str, Any]) -> None:
    """Refuse overrides that give another type than their key has in its file: `storage.root=5`.

    Hydra checks the types of keys outside groups, except that it accepts any whole number as true or false.

    Raises:
        InputError: with one problem for each override.
    """
    wrong = []
    for key, _, text in (override.lstrip("+").partition("=") for override in overrides):
        group, _, below = key.partition(".")
        if group in chosen:
            default, given = at(defaults(group, chosen[group]), below), at(job.get(group), below)
        else:
            default = at(job, key)
            given = int(text) if isinstance(default, bool) and text.lstrip("-").isdecimal() else default
        kind = kind_of(default)
        if kind and given is not None and given not in (0, 1) and kind_of(given) != kind:
            wrong.append(Problem(f"`{key}={text}` is not valid", f"give {kind}, as {json.dumps(default)} is"))
    if wrong:
        raise InputError(*wrong)


def kind_of(value: Any) -> str:
    """The type of a value in words; empty for null and for values that refer to other keys."""
    if value is None or (isinstance(value, str) and "${" in value):
        return ""
    return WORDS.get(type(value), "another value")


def at(tree: Any, key: str) -> Any:
    """The value of a dotted key; None if there is none."""
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def check_names(overrides: Sequence[str], chosen: Mapping[str, str]) -> None:
    """Refuses overrides that would have a run say that it is of a choice that it is not of; ValueError.

    A choice has its name from its file. One that follows `<group>.name` is another by another name; in all others
    that changes what is said, and nothing that is done.
    """
    wrong = []
    for key, _, given in (override.lstrip("+").partition("=") for override in overrides):
        group, _, name = key.partition(".")
        if group not in chosen or given == standing(group, chosen[group]).get(name):
            continue
        choice, instead = f"{group}={chosen[group]}", f"Type {called(group, given)}."
        if name == "name" and not follows(group, chosen[group]):
            wrong.append(f"{key}={given}: it would only call {choice} so. {instead}")
        elif standing(group, chosen[group]).get(name) == name_of(group):
            wrong.append(f"{key}={given}: {choice} would keep its name. {instead}")
    if wrong:
        raise ValueError(" ".join(wrong))


def called(group: str, name: str) -> str:
    """What to type for the choice of a group that goes by a name."""
    there = choices(group)
    if name in there:
        return f"{group}={name}"
    any_name = [f"{group}={choice} {group}.name={name}" for choice in there if follows(group, choice)]
    return any_name[0] if any_name else f"{group}= and one of {', '.join(there)}, or add conf/{group}/{name}.yaml"


def follows(group: str, choice: str) -> bool:
    """Whether a choice is another by another name."""
    return name_of(group) in defaults(group, choice).values()


def name_of(group: str) -> str:
    """As files refer to it."""
    return f"${{{group}.name}}"


def standing(group: str, choice: str) -> dict[str, Any]:
    """What the file of a group's choice has, and those that it is built on."""
    own = defaults(group, choice)
    built_on = [base for base in own.get("defaults", ()) if isinstance(base, str) and base != "_self_"]
    return {key: value for part in (*(standing(group, base) for base in built_on), own) for key, value in part.items()}


@cache
def defaults(group: str, choice: str) -> dict[str, Any]:
    """What the file of a group's choice has, as it stands there; empty where there is none."""
    path = CONF / group / f"{choice}.yaml"
    return OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}  # type: ignore[return-value]
