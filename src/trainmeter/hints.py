"""What an override may have meant that names no key, group or choice there is, and what it may be set to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import OmegaConf

from trainmeter.schema import Schema

CONF = Path(__file__).resolve().parents[2] / "conf"
KNOWN = {*(entry.name for entry in fields(Schema)), "experiment", "supply", "hydra"}
"""What an override may begin with."""


def hints(arguments: Sequence[str]) -> str:
    """A line for each override that names no key, group or choice there is, with what it may have meant."""
    typed = [argument.partition("=")[::2] for argument in arguments if "=" in argument]
    names = [key.partition(".")[0] for key, _ in typed]
    lines = [unknown(name) for name in names if name.isidentifier() and name not in KNOWN]
    lines += [unknown_below(key) for key, _ in typed]
    lines += [meant(key, choice) for key, value in typed if key in KNOWN for choice in value.split(",")]
    return "".join(f"{line}\n" for line in lines if line)


def unknown(name: str) -> str:
    """What to say of a key that is none."""
    near = "".join(f" Did you mean {match}=?" for match in get_close_matches(name, KNOWN, 1))
    return f"There is no key {name}.{near} The keys are: {', '.join(sorted(KNOWN - {'hydra'}))}."


def unknown_below(key: str) -> str:
    """What to say of `optimizer.learning_rate`, a key below a group's or another's that has none of that name."""
    group, _, name = key.partition(".")
    name = name.partition(".")[0]
    known = below(group)
    if not name or not known or name in known:
        return ""
    near = "".join(f" Did you mean {group}.{match}=?" for match in get_close_matches(name, known, 1, cutoff=0.5))
    return f"There is no key {group}.{name}.{near} The keys of {group} are: {', '.join(known)}."


def meant(group: str, choice: str) -> str:
    """What a choice that is none of its group's may have meant; nothing where there is no telling."""
    folder = CONF / group
    known = [str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.yaml")]
    near = get_close_matches(choice, known, 1) if choice not in known else []
    return "".join(f"There is no {group}={choice}. Did you mean {group}={match}?" for match in near)


def below(group: str) -> list[str]:
    """The keys below one that has some: those of all choices of a group, or those of its type."""
    part = get_type_hints(Schema).get(group)
    if is_dataclass(part):
        return [entry.name for entry in fields(part)]
    keys = [key for path in sorted((CONF / group).glob("*.yaml")) for key in defaults(group, path.stem)]
    return [key for key in dict.fromkeys(keys) if key not in ("_target_", "name", "defaults")]


def check_numbers(overrides: Sequence[str], choices: Mapping[str, str], job: Mapping[str, Any]) -> None:
    """Refuses overrides of a group's key that make a text of what its file has as a number; ValueError."""
    wrong = []
    for key in (override.lstrip("+").partition("=")[0] for override in overrides):
        group, _, name = key.partition(".")
        default = defaults(group, choices[group]).get(name) if group in choices else None
        given = (job.get(group) or {}).get(name) if default is not None else None
        if isinstance(default, int | float) and not isinstance(default, bool) and isinstance(given, str):
            wrong.append(f"{key}={given}: give a number, as {json.dumps(default)} is")
    if wrong:
        raise ValueError("; ".join(wrong) + ".")


@cache
def defaults(group: str, choice: str) -> dict[str, Any]:
    """What the file of a group's choice has, as it stands there; empty where there is none."""
    path = CONF / group / f"{choice}.yaml"
    return OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}  # type: ignore[return-value]
