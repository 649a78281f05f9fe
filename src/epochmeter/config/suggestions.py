"""Problems of overrides with suggestions: similar keys and options, and lists of all valid ones."""

from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import MarkedYAMLError

from epochmeter.config.errors import yaml_problem
from epochmeter.config.installation import CONF
from epochmeter.config.validation import value_of
from epochmeter.config.yaml_files import read_mapping
from epochmeter.shared.problem import InputError, Problem, input_error

INTERNAL_KEYS = ("_target_", "name", "defaults")
"""Keys in the files of groups that suggestions leave out, since overrides rarely set them."""
MAX_LESS_SIMILAR = 0.15  # by how much the similarity of a suggestion may be below that of the best, of 1


def list_choices(group: str) -> list[str]:
    """Return the options of a group, including those in subfolders; files such as `_study.yaml` are not options."""
    folder = CONF / group
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("[!_]*.yaml"))


@cache
def entry_keys(command: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the groups of a command, and its other keys, with their defaults."""
    keys = _load(CONF / f"{command}.yaml")
    groups = [group for default in keys["defaults"] if isinstance(default, dict) for group in default.items()]
    return (
        {group: option for group, option in groups if not group.startswith("override ")},
        {key: value for key, value in keys.items() if key not in ("defaults", "hydra")},
    )


@cache
def option_content(group: str, option: str) -> Mapping[str, Any]:
    """Return the content of an option's file; empty if there is no such file."""
    path = CONF / group / f"{option}.yaml"
    return _load(path) if path.is_file() else {}


def unknown_key_problem(key: str, command: str = "train", arguments: Sequence[str] = ()) -> Problem:
    """Return the problem of a key that the composed configuration lacks; `arguments` select options of its group."""
    group, _, rest = key.partition(".")
    parent, _, name = rest.rpartition(".")
    groups, keys = entry_keys(command)
    if group.partition("/")[0] == "hydra":
        return Problem(f"unknown key `{key}`", f"list the keys of Hydra: `python src/{command}.py --cfg hydra`")
    section = keys.get(group)
    if not name or not (group in groups or isinstance(section, Mapping)):
        available = sorted([*groups, *keys])
        return Problem(f"unknown key `{key}`", f"{_did_you_mean(group, available)}keys: {', '.join(available)}")
    if isinstance(section, Mapping):
        available, add, section_name, name = list(section), "", group, rest
    else:
        values = {option: value_of(merged_defaults(group, option), parent) for option in list_choices(group)}
        sections = {option: section for option, section in values.items() if isinstance(section, Mapping)}
        suitable = [option for option, section in sections.items() if name in section]
        if suitable:
            return _missing_key_problem(group, rest, suitable, arguments)
        available = sorted(set().union(*sections.values()).difference(INTERNAL_KEYS))
        add, section_name = f"; to add a new key: `+{key}=`", key.removesuffix(f".{name}")
        if not available:
            return unknown_key_problem(section_name, command)
    guess = _did_you_mean(name, available, f"{section_name}.{{}}=")
    return Problem(f"unknown key `{key}`", f"{guess}keys of {section_name}: {', '.join(available)}{add}")


def _missing_key_problem(group: str, name: str, suitable: Collection[str], arguments: Sequence[str]) -> Problem:
    """Return the problem of a key that only the `suitable` options of its group have."""
    typed = [argument.partition("=")[2] for argument in arguments if argument.partition("=")[0] == group]
    selected = typed[-1].split(",") if typed else []
    lacking = [option for option in selected if option not in suitable]
    having = [option for option in selected if option in suitable]
    named = " and ".join(f"`{group}={option}`" for option in lacking) or f"the selected {group}"
    problem = f"{named} {'have' if len(lacking) > 1 else 'has'} no key `{name}`"
    if having:
        others = f"`{group}={','.join(lacking)}`"
        return Problem(problem, f"sweep over options that have it, `{group}={','.join(having)}`; "
                                f"and over {others} without this key, by a command of its own")  # fmt: skip
    return Problem(problem, f"select one that has it: {', '.join(f'`{group}={option}`' for option in suitable)}")


def unknown_choice_problem(group: str, option: str) -> Problem:
    options = list_choices(group)
    guess = _did_you_mean(option, options, f"{group}={{}}")
    return Problem(f"`{group}={option}` does not exist", f"{guess}options: {', '.join(options)}")


def check_overrides(overrides: Sequence[str], choices: Mapping[str, str]) -> None:
    """Raise InputError for an override of `<group>.name` that would only label the run.

    It has an effect only if the option uses `${<group>.name}` as a value, such as model=torchvision.
    """
    for key, _, value in (override.lstrip("+").partition("=") for override in overrides):
        group, _, name = key.partition(".")
        if group not in choices:
            continue
        option, reference = choices[group], f"${{{group}.name}}"
        content = merged_defaults(group, option)
        is_label = name == "name" and reference not in option_content(group, option).values()
        if content.get(name) != value and (is_label or content.get(name) == reference):
            options = list_choices(group)
            hint = f"use `{group}={value}`" if value in options else f"use `{group}=` with one of {', '.join(options)}"
            raise input_error(f"`{key}={value}` would make the label of {group}={option} wrong", hint)


def merged_defaults(group: str, option: str) -> dict[str, object]:
    """Return the keys of an option's file, merged with the files in its defaults list; references not resolved."""
    merged: dict[str, object] = {}
    for base in option_content(group, option).get("defaults", ()):
        if isinstance(base, str) and base != "_self_":
            merged |= merged_defaults(group, base)
    return {**merged, **option_content(group, option)}


def _did_you_mean(name: str, names: Collection[str], form: str = "{}=") -> str:
    """Suggest the longest name that begins the given one, else similar ones, without case and underscores."""
    plain_name = _without_case(name)
    by_plain = {_without_case(other): other for other in names}
    begins = sorted(plain for plain in by_plain if plain_name.startswith(plain))
    matches = begins[-1:] or _most_similar(plain_name, by_plain)
    similar = [f"`{form.format(by_plain[plain])}`" for plain in matches]
    return f"did you mean {' or '.join(similar)}? " if similar else ""


def _most_similar(name: str, names: Collection[str]) -> list[str]:
    """Return the most similar names, at most three, without those that are clearly less similar than the best."""
    matches = get_close_matches(name, names)
    if not matches:
        return []
    best = SequenceMatcher(None, matches[0], name).ratio()
    return get_close_matches(name, matches, cutoff=best - MAX_LESS_SIMILAR)


def _without_case(name: str) -> str:
    return name.lower().replace("_", "")


def _load(path: Path) -> Mapping[str, Any]:
    if (mapping := read_mapping(path)) is not None:
        return mapping
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except MarkedYAMLError as error:
        raise InputError(yaml_problem(error)) from error
    if not isinstance(content, dict):
        raise input_error(f"`{path}` is not a mapping", "give one key per line: `key: value`")
    return content  # type: ignore[return-value]  # keys are texts
