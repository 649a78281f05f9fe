"""A command of Hydra's: `run("train", task, doc)` hands the task what the command line makes of conf/train.yaml."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps

import hydra
from hydra.errors import (
    CompactHydraException,
    ConfigCompositionException,
    HydraException,
    OverrideParseException,
    SearchPathException,
)
from omegaconf import DictConfig
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from epochmeter.config import errors, help
from epochmeter.config.errors import InputError, Problem, input_error
from epochmeter.config.schema import BUILT
from epochmeter.config.secrets import redacted
from epochmeter.config.suggestions import CONF, choices, hints, standing

TRACES = "HYDRA_FULL_ERROR"
"""Environment variable that makes Hydra raise errors instead of printing a traceback and exiting."""
MULTIRUN = ("-m", "--multirun")
CONVERTED = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
"""OmegaConf's name of a value type -> the value to give."""
NO_OVERRIDE = "it is not key=value"
UNFINISHED = {"missing EQUAL at '<EOF>'": NO_OVERRIDE, "mismatched input '<EOF>'": "it ends too early"}
"""Message of the override parser for an incomplete override -> its meaning."""
WITH_A_VALUE = (
    "--config-dir",
    "-cd",
    "--config-name",
    "-cn",
    "--config-path",
    "-cp",
    "--package",
    "-p",
    "--experimental-rerun",
)
NUMBERED = re.compile(r"/\d+/?$")
REFUSALS = (HydraException, OmegaConfBaseException, YAMLError, OSError, RecursionError, ValueError, AssertionError)
"""Exceptions that Hydra raises for configurations it cannot compose; they have no common base class."""


def run(entry: str, task: Callable[[DictConfig], None], doc: str | None) -> None:
    """Run a task on the configuration that was typed, or on each of a sweep.

    Args:
        entry: the name of the configuration in conf/.
        task: what to do with it.
        doc: the entry's docstring, for its help page.

    Raises:
        SystemExit: Status 1, with an error and a hint on stderr, if the configuration is invalid.
    """
    if {"--help", "-h"} & {*sys.argv[1:]}:
        print(help.page(entry, doc or ""))
        return
    # Hydra's parser takes an option between overrides for the end of these.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda typed: typed not in MULTIRUN)
    with composing(sys.argv[1:], entry) as composed:

        @hydra.main(version_base="1.3", config_path=str(CONF), config_name=entry)
        @wraps(task)
        def composed_task(config: DictConfig) -> None:
            composed()
            task(config)

        composed_task()


@contextmanager
def composing(arguments: Sequence[str], entry: str) -> Iterator[Callable[[], None]]:
    """Print errors of Hydra in this context as an error with a hint, without a traceback.

    Yields a function to call when the configuration is composed. Later errors are raised unchanged, except InputError.
    With HYDRA_FULL_ERROR=1 in the environment, all errors are raised unchanged.
    """
    begun = False

    def begin() -> None:
        nonlocal begun
        begun = True

    before = os.environ.get(TRACES)
    os.environ[TRACES] = "1"
    try:
        if entry != "train" and {"-m", "--multirun"} & {*arguments}:
            raise input_error("-m is for train.py: this command has nothing to sweep over", "leave -m out")
        check_overrides(arguments, entry)
        yield begin
    except REFUSALS as error:
        expected = isinstance(error, InputError | HydraException) if begun else True
        if before == "1" or not expected:
            raise
        sys.exit(errors.line(redacted(explained(error, arguments, entry))))
    finally:
        if before is None:
            del os.environ[TRACES]


def check_overrides(arguments: Sequence[str], entry: str) -> None:
    """Refuse overrides without a key, and overrides that delete a required key; InputError.

    An argument of a constructed object, such as a model, may be deleted: the constructor checks if it has a default.
    """
    for place, typed in enumerate(arguments):
        key = typed.partition("=")[0].lstrip("+~")
        if typed.startswith("-") or (place and arguments[place - 1] in WITH_A_VALUE):
            continue
        if not key:
            raise input_error(f"`{typed}` has no key", "give key=value, such as batch=32")
        value = typed.partition("=")[2].strip("'\"")
        if key == "hydra.sweep.subdir" or (key == "hydra.run.dir" and entry == "train" and not NUMBERED.search(value)):
            raise input_error(f"`{typed}` is not valid: the name of a run's folder is its number",
                          "give hydra.run.dir=FOLDER/0, or hydra.sweep.dir=FOLDER with -m")  # fmt: skip
        if typed.partition("=")[2].startswith("[") and choices(key):
            raise input_error(
                f"`{key}=` takes one choice, not a list", f"give one, or sweep over several: -m {key}=A,B"
            )
        group, _, name = key.partition(".")
        if typed.startswith("~") and not (group in BUILT and name not in ("", "name", "_target_")):
            raise input_error(f"`{typed}` deletes a required key", f"set it instead: {key}=")


def explained(error: BaseException, arguments: Sequence[str], entry: str) -> str:
    """Return the text for an error of Hydra: the problem and a hint.

    The hints on overrides come first. If one of them explains Hydra's error, that error is left out.
    """
    if isinstance(error, InputError) or type(error) is CompactHydraException:  # of this project's own plugins
        return str(error)
    text = f"{error}\n{error.__cause__ or ''}"
    found = hints(arguments, entry)
    if any(hint.about in text for hint in found):
        return str(InputError(*(hint.problem for hint in found)))
    return str(InputError(*(hint.problem for hint in found), problem_of(error, arguments)))


def problem_of(error: BaseException, arguments: Sequence[str]) -> Problem:
    """Return the problem that an error describes, for errors that no hint explains."""
    lines = (str(error) or type(error).__name__).splitlines()
    first = " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(".")
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
        return Problem(
            f"Cannot read {where}: {error.problem or error.context}", "fix the YAML; indent by spaces, not tabs"
        )
    if isinstance(error, OverrideParseException):
        why = re.sub(r"^(Error parsing override .*|LexerNoViableAltException: .*)\n?", "", str(error)).strip()
        why = (
            why.splitlines()[0].partition(" expecting ")[0]
            if why and "^" not in why and not why.startswith("See http")
            else NO_OVERRIDE
        )
        why = UNFINISHED.get(why, why)
        return Problem(f"Cannot read `{error.override}`: {why}", "quote special characters: 'key=\"a (b), c\"'")
    if isinstance(error, InterpolationResolutionError | RecursionError):
        referring = [typed for typed in arguments if "${" in typed]
        what = (
            "it refers to itself"
            if "ecursi" in str(error)
            else re.sub(r"^\w+ raised while resolving interpolation: ", "", first)
        )
        return Problem(
            f"Cannot resolve {' '.join(f'`{typed}`' for typed in referring) or 'a reference ${...} in a file'}: {what}",
            "give a value, or reference an existing key: ${batch}",
        )
    if isinstance(error, OSError) and error.errno:
        return Problem(f"Cannot use {error.filename or 'a file'}: {error.strerror or first}",
                       "give another path, or fix the permissions")  # fmt: skip
    if isinstance(error, SearchPathException):
        return Problem(first, "give a folder that exists")
    if plugin := re.search(r"Could not find '(hydra/\w+)/(.+)'", first):
        group = plugin[1]
        return Problem(f"There is no {group}={plugin[2]}", f"give one of {', '.join(choices(group))}")
    if below := re.match(r"Could not override '(\w+)\.(\w+)'", first):
        group, name = below.groups()
        having = [f"{group}={choice}" for choice in choices(group) if name in standing(group, choice)]
        if having:
            return Problem(f"The chosen {group} has no key {name}", f"use one that has it: {', '.join(having)}")
    cause = (str(error.__cause__ or "").splitlines() or [""])[0]
    place = re.search(r"full_key: (\S+)", f"{error}\n{error.__cause__}")
    what = f"{first}: {cause}" if cause and cause not in first else first
    if merged := re.match(r"Error merging override (.*): Value .* could not be converted to (\w+)", what):
        needed = CONVERTED.get(merged[2], f"a value of type {merged[2]}")
        return Problem(f"`{merged[1]}` is not valid", f"give {needed}")
    what += f" (key `{place[1]}`)" if place and place[1] not in what else ""
    if isinstance(error, ConfigCompositionException) and "--multirun" in str(error):
        return Problem(first, "add -m to sweep over several values")
    if "hydra." in first:
        return Problem(what, "--cfg hydra prints the keys of Hydra and their values")
    return Problem(what, "--cfg job prints all keys and their values, --help the most used keys")
