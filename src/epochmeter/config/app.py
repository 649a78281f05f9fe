"""Commands with Hydra: `run("train", task, doc)` composes conf/train.yaml with the command line and calls the task."""

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
from epochmeter.config.schema import INSTANTIATED_GROUPS
from epochmeter.config.secrets import redact
from epochmeter.config.suggestions import CONF, list_choices, merged_defaults, override_hints

TRACEBACK_VARIABLE = "HYDRA_FULL_ERROR"
"""Environment variable that makes Hydra raise errors instead of printing a traceback and exiting."""
MULTIRUN = ("-m", "--multirun")
TYPE_NAMES = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
"""OmegaConf's name of a value type -> its name in messages."""
NOT_KEY_VALUE = "it is not key=value"
SYNTAX_ERRORS = {"missing EQUAL at '<EOF>'": NOT_KEY_VALUE, "mismatched input '<EOF>'": "it ends too early"}
"""Message of Hydra's parser about an incomplete override -> its name in messages."""
FLAGS_WITH_VALUE = (
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
"""Options of Hydra whose value is the next argument."""
RUN_NUMBER_SUFFIX = re.compile(r"/\d+/?$")
"""End of a run folder's path: the number of the run."""
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, OSError, RecursionError, ValueError, AssertionError)
"""Exceptions that Hydra raises for configurations it cannot compose; they have no common base class."""


def run(entry: str, task: Callable[[DictConfig], None], doc: str | None) -> None:
    """Call a task with the composed configuration, or with each configuration of a sweep; print help for `--help`.

    Args:
        entry: Name of the command, and of its file in conf/.
        task: Function to call with a configuration.
        doc: Docstring of the command, for `--help`.

    Raises:
        SystemExit: Status 1, with an error and a hint on stderr, if the configuration is invalid.
    """
    if {"--help", "-h"} & {*sys.argv[1:]}:
        print(help.help_page(entry, doc or ""))
        return
    # Hydra's parser stops reading overrides at an option between them.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda argument: argument not in MULTIRUN)
    with friendly_hydra_errors(sys.argv[1:], entry) as end_composing:

        @hydra.main(version_base="1.3", config_path=str(CONF), config_name=entry)
        @wraps(task)
        def composed_task(config: DictConfig) -> None:
            end_composing()
            task(config)

        composed_task()


@contextmanager
def friendly_hydra_errors(arguments: Sequence[str], entry: str) -> Iterator[Callable[[], None]]:
    """Print errors of Hydra in this context as an error with a hint, without a traceback.

    With HYDRA_FULL_ERROR=1 in the environment, all errors are raised unchanged.

    Args:
        arguments: The command line.
        entry: Name of the command.

    Yields:
        A function to call when the configuration is composed. Later errors are raised unchanged, except InputError and
        errors of Hydra itself.

    Raises:
        SystemExit: With the text of the error.
    """
    is_composed = False

    def end_composing() -> None:
        nonlocal is_composed
        is_composed = True

    before = os.environ.get(TRACEBACK_VARIABLE)
    os.environ[TRACEBACK_VARIABLE] = "1"
    try:
        if entry != "train" and {"-m", "--multirun"} & {*arguments}:
            raise input_error("`-m` is only for src/train.py: other commands have no sweeps", "leave out `-m`")
        check_overrides(arguments, entry)
        yield end_composing
    except CONFIG_ERRORS as error:
        expected = not is_composed or isinstance(error, InputError | HydraException)
        if before == "1" or not expected:
            raise
        sys.exit(errors.format_error(redact(explain_hydra_error(error, arguments, entry))))
    finally:
        if before is None:
            del os.environ[TRACEBACK_VARIABLE]


def check_overrides(arguments: Sequence[str], entry: str) -> None:
    """Refuse overrides without a key, overrides that delete a required key, and invalid run folders.

    An argument of a constructed object, such as a model, may be deleted: the constructor checks if it has a default.

    Raises:
        InputError: For the first invalid override.
    """
    for position, argument in enumerate(arguments):
        key, _, value = argument.partition("=")
        key, text = key.lstrip("+~"), value.strip("'\"")
        if argument.startswith("-") or (position and arguments[position - 1] in FLAGS_WITH_VALUE):
            continue
        if not key:
            raise input_error(f"`{argument}` has no key", "give key=value, such as `batch=32`")
        if key == "hydra.sweep.subdir" or (
            key == "hydra.run.dir" and entry == "train" and not RUN_NUMBER_SUFFIX.search(text)
        ):
            raise input_error(f"`{argument}` is not valid: the name of a run's folder is its number",
                              "give `hydra.run.dir=FOLDER/0`, or `-m hydra.sweep.dir=FOLDER`")  # fmt: skip
        if value.startswith("[") and list_choices(key):
            raise input_error(
                f"`{argument}` is not valid: `{key}=` takes one option, not a list",
                f"give one option, or sweep over several: `-m {key}={value.strip('[]').replace(' ', '')}`",
            )
        group, _, name = key.partition(".")
        if argument.startswith("~") and not (group in INSTANTIATED_GROUPS and name not in ("", "name", "_target_")):
            raise input_error(f"`{argument}` deletes a required key", f"set the key instead: `{key}=`")


def explain_hydra_error(error: BaseException, arguments: Sequence[str], entry: str) -> str:
    """Return the text for an error of Hydra: problems and hints.

    Hints about overrides come first. Hydra's error is left out if one of them explains it.
    """
    if isinstance(error, InputError) or type(error) is CompactHydraException:  # raised by this project's plugins
        return str(error)
    text = f"{error}\n{error.__cause__ or ''}"
    suggestions = override_hints(arguments, entry)
    problems = [suggestion.problem for suggestion in suggestions]
    if not any(suggestion.fragment in text for suggestion in suggestions):
        problems.append(describe_hydra_error(error, arguments, entry))
    return str(InputError(*problems))


def describe_hydra_error(error: BaseException, arguments: Sequence[str], entry: str) -> Problem:
    """Return the problem that an error of Hydra describes."""
    lines = (str(error) or type(error).__name__).splitlines()
    first = " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(".")
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
        return Problem(
            f"cannot read {where}: {error.problem or error.context}", "fix the YAML; indent with spaces, not tabs"
        )
    if isinstance(error, OverrideParseException):
        why = re.sub(r"^(Error parsing override .*|LexerNoViableAltException: .*)\n?", "", str(error)).strip()
        why = (
            why.splitlines()[0].partition(" expecting ")[0]
            if why and "^" not in why and not why.startswith("See http")
            else NOT_KEY_VALUE
        )
        why = SYNTAX_ERRORS.get(why, why)
        hint = "give key=value, and quote special characters: `'key=\"a (b), c\"'`"
        return Problem(f"cannot parse `{error.override}`: {why}", hint)
    if isinstance(error, InterpolationResolutionError | RecursionError):
        referring = [argument for argument in arguments if "${" in argument]
        cause = (
            "it refers to itself"
            if "ecursi" in str(error)
            else re.sub(r"^\w+ raised while resolving interpolation: ", "", first)
        )
        return Problem(
            f"cannot resolve {' '.join(map('`{}`'.format, referring)) or 'a reference ${...} in a file'}: {cause}",
            "give a value, or refer to an existing key, such as `${batch}`",
        )
    if isinstance(error, OSError) and error.errno:
        return Problem(f"cannot use `{error.filename or 'a file'}`: {error.strerror or first}",
                       "give another path, or fix the permissions")  # fmt: skip
    if isinstance(error, SearchPathException):
        return Problem(first, "give an existing folder")
    if plugin := re.search(r"Could not find '(hydra/\w+)/(.+)'", first):
        group = plugin[1]
        return Problem(f"`{group}={plugin[2]}` does not exist", f"options: {', '.join(list_choices(group))}")
    if below := re.match(r"Could not override '(\w+)\.(\w+)'", first):
        group, name = below.groups()
        suitable = [f"`{group}={option}`" for option in list_choices(group) if name in merged_defaults(group, option)]
        if suitable:
            return Problem(
                f"the selected {group} has no key `{name}`", f"select one that has it: {', '.join(suitable)}"
            )
    cause = (str(error.__cause__ or "").splitlines() or [""])[0]
    key = re.search(r"full_key: (\S+)", f"{error}\n{error.__cause__}")
    what = f"{first}: {cause}" if cause and cause not in first else first
    if merged := re.match(r"Error merging override (.*): Value .* could not be converted to (\w+)", what):
        return Problem(
            f"`{merged[1]}` is not valid", f"give {TYPE_NAMES.get(merged[2], f'a value of type {merged[2]}')}"
        )
    what += f" (key `{key[1]}`)" if key and key[1] not in what else ""
    if isinstance(error, ConfigCompositionException) and "--multirun" in str(error):
        argument = re.sub(r"^Ambiguous value for argument '(.*)'$", r"\1", first)
        return Problem(
            f"`{argument}` has several values: a single run takes one", f"for a sweep add `-m`: `-m {argument}`"
        )
    if "hydra." in first:
        return Problem(what, f"list the keys of Hydra: `python src/{entry}.py --cfg hydra`")
    return Problem(what, f"list all keys and their values: `python src/{entry}.py --cfg job`")
