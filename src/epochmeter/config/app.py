"""Commands with Hydra: `run("train", task, doc)` composes conf/train.yaml with the command line and calls the task."""

import errno
import os
import re
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from textwrap import TextWrapper

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
    SearchPathException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from epochmeter.config import config_source
from epochmeter.config.arguments import conceal_override, defer_keys, with_current_names
from epochmeter.config.composition import composed_once
from epochmeter.config.errors import refuse, yaml_problem
from epochmeter.config.installation import CONF, with_own_commands
from epochmeter.config.schema import INSTANTIATED_GROUPS
from epochmeter.config.suggestions import entry_keys, list_choices, unknown_choice_problem, unknown_key_problem
from epochmeter.config.validation import key_rules
from epochmeter.config.versions import DEFAULTS
from epochmeter.shared.problem import InputError, Problem, input_error
from epochmeter.shared.types import Document

TRACEBACK_VARIABLE = "HYDRA_FULL_ERROR"
"""Environment variable that makes Hydra raise errors instead of printing a traceback and exiting."""
MULTIRUN = ("-m", "--multirun")
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, OSError, RecursionError, ValueError, AssertionError)
"""Exceptions that Hydra raises for configurations it cannot compose; they have no common base class."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
FOLDER_KEYS = "`hydra.run.dir=FOLDER/0`; for a sweep `hydra.sweep.dir=FOLDER`"  # of another folder of runs
SWEEP_KEYS = ("format", *(f"sweep.{key}" for key in ("sample", "repeats", "order", "seed", "prior", "again", "resume")))
"""Keys with one value for all runs of a sweep."""
KeyFilter = Callable[[str], bool]
HELP_COLUMNS = 100
INDENT = "  "


def run(command: str, task: Callable[[DictConfig], None], doc: str | None, is_used: KeyFilter = lambda _: True) -> None:
    """Call a task with the composed configuration, or with each one of a sweep; print help for `--help`.

    `command` is the name of a command, and of its file in conf/; `doc` is its docstring. The help has the groups and
    the keys, or mappings of keys, whose names `is_used` accepts.
    """
    if {"--help", "-h"} & {*sys.argv[1:]}:
        print(help_page(command, doc or "", is_used))
        return
    try:
        sys.argv[1:] = with_current_names(sys.argv[1:])
        if command == "train":  # other commands have no secrets, except the token of the live view, which is printed
            sys.argv[1:] = [conceal_override(item) if is_override(item) else item for item in sys.argv[1:]]
    except InputError as refused:
        refuse(refused)
    config_source.register()
    # Hydra's parser stops reading overrides at an option between them.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda argument: (argument not in MULTIRUN, not is_override(argument)))
    broken_pipes: list[BrokenPipeError] = []
    with friendly_hydra_errors(sys.argv[1:], command) as end_composing:
        if {*MULTIRUN} & {*sys.argv[1:]}:
            sys.argv[1:] = defer_keys(sys.argv[1:], entry_keys(command)[0])

        @hydra.main(**DEFAULTS, config_path=str(CONF), config_name=command)
        @wraps(task)
        def composed_task(config: DictConfig) -> None:
            end_composing()
            try:
                task(config)
            except BrokenPipeError as error:  # the reader of the output has ended; Hydra would report it as a failure
                broken_pipes.append(error)

        with composed_once():
            composed_task()
    for error in broken_pipes:
        raise error


def plain_keys(config: DictConfig) -> Document:
    """Return a composed configuration as plain values, with its references resolved."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]  # of a mapping


@contextmanager
def friendly_hydra_errors(arguments: Sequence[str], command: str) -> Iterator[Callable[[], None]]:
    """Print errors of Hydra in this context as an error with a hint; with HYDRA_FULL_ERROR=1, raise them unchanged.

    Yields:
        A function to call when the configuration is composed. Later errors are raised unchanged, except InputError and
        errors of Hydra itself.
    """
    is_composed = False

    def end_composing() -> None:
        nonlocal is_composed
        is_composed = True

    before = os.environ.get(TRACEBACK_VARIABLE)
    os.environ[TRACEBACK_VARIABLE] = "1"
    try:
        check_arguments(arguments, command)
        yield end_composing
    except CONFIG_ERRORS as error:
        expected = not is_composed or isinstance(error, InputError | HydraException)
        if before == "1" or not expected or isinstance(error, BrokenPipeError):
            raise
        try:
            problem = error if isinstance(error, InputError) else describe_hydra_error(error, arguments, command)
        except InputError as damage:  # in a file that the hint would list
            problem = damage
        refuse(problem)
    finally:
        if before is None:
            del os.environ[TRACEBACK_VARIABLE]


def is_override(argument: str) -> bool:
    """Return whether a command-line argument is an override, such as `key=value` or `~key`."""
    return argument.startswith("~") or ("=" in argument and not argument.startswith("-"))


def check_arguments(arguments: Sequence[str], command: str) -> None:
    """Refuse arguments that Hydra accepts or explains badly; raises InputError for the first invalid argument.

    An argument of a constructed object, such as a model, may be deleted: the constructor checks if it has a default.
    """
    if command != "train" and {*MULTIRUN} & {*arguments}:
        problem = "`-m` is only for `python src/train.py` and `python src/measure.py`: this command has no sweeps"
        raise input_error(problem, "leave out `-m`")
    groups, keys = entry_keys(command)
    for argument in arguments:
        if argument.startswith("-"):
            check_option(argument, {*groups, *keys})
        else:
            check_override(argument, command, groups, is_multirun=not {*MULTIRUN}.isdisjoint(arguments))


def check_option(argument: str, names: Container[str]) -> None:
    """Refuse an option without a value, and a key with dashes; `names` are all groups and keys."""
    key = argument.lstrip("-")
    if key.endswith("=") and "=" not in key[:-1]:
        raise input_error(f"`{argument}` has no value", "give a value, or leave the option out")
    if argument != "--run" and key.partition("=")[0].partition(".")[0] in names:
        hint = f"give `{key if '=' in key else key + '=VALUE'}`, without dashes"
        raise input_error(f"`{argument}` is not an option", hint)


def check_override(argument: str, command: str, groups: Container[str], *, is_multirun: bool) -> None:
    """Refuse an override that Hydra accepts or explains badly."""
    key, _, value = argument.lstrip("+~").partition("=")
    group, _, name = key.partition(".")
    if not key:
        raise input_error(f"`{argument}` has no key", "give key=value, such as `batch=32`")
    if key in ("measure.command", "measure.digest"):
        raise input_error(f"`{key}=` is for measured scripts", "use `python src/measure.py SCRIPT ARGUMENTS`")
    check_hydra_key(argument, key, value, command)
    if is_multirun and key in SWEEP_KEYS and is_sweep(argument):
        raise input_error(f"`{argument}` is not valid: it is one setting of the whole sweep", "give one value")
    if key in groups and (value in ("", "null", "true", "false") or value.isdecimal()):
        raise InputError(unknown_choice_problem(key, value))
    if value.startswith("[") and key in groups:
        raise input_error(f"`{key}=` takes one option, not a list", f"for a sweep: `-m {key}={value.strip('[]')}`")
    if argument.startswith("~") and not (group in INSTANTIATED_GROUPS and name not in ("", "name", "_target_")):
        raise input_error(f"`{argument}` deletes a required key", f"set the key instead: `{key}=`")


def check_hydra_key(argument: str, key: str, value: str, command: str) -> None:
    """Refuse values of Hydra's own keys that have no effect or break its folders."""
    is_numbered = command != "train" or re.search(r"/\d+/?$", value.strip("'\""))
    if key == "hydra.sweep.subdir" or (key == "hydra.run.dir" and not is_numbered):
        hint = "give `hydra.run.dir=FOLDER/0`, or `-m hydra.sweep.dir=FOLDER`"
        raise input_error(f"`{argument}` is not valid: the name of a run's folder is its number", hint)
    plugin = key.removesuffix("._target_")
    if plugin in ("hydra.launcher", "hydra.sweeper") or (plugin != key and plugin.startswith("hydra.")):
        option = plugin.replace(".", "/")
        raise input_error(f"`{argument}` is not valid: Hydra's plugins are options", f"give `{option}=`")
    if key == "hydra.sweep.dir" and not value:
        raise input_error(f"`{argument}` has no value", "give a folder, or leave it out")
    if key == "hydra.sweeper.params" and not value.startswith("{"):
        raise input_error(f"`{argument}` is not valid", "give a mapping of keys to values, `{batch: '8,16'}`")


def is_sweep(override: str) -> bool:
    """Return whether an override has several values to sweep over; false if it cannot be parsed."""
    with suppress(HydraException):
        return OverridesParser.create().parse_override(override).is_sweep_override()
    return False


def describe_hydra_error(error: BaseException, arguments: Sequence[str], command: str) -> Problem:
    """Return the problem by the class of the error; other errors are identified by their text."""
    match error:
        case MarkedYAMLError():
            return yaml_problem(error)
        case OverrideParseException():
            hint = "give key=value, and quote special characters: `'key=\"a (b), c\"'`"
            return Problem(f"cannot parse `{error.override}`", hint)
        case InterpolationResolutionError(__context__=InterpolationResolutionError(__context__=OSError() as refusal)):
            of_folder = describe_hydra_error(refusal, arguments, command)  # of runs
            hint = f"fix its permissions, or give {FOLDER_KEYS}"
            return of_folder if refusal.errno in FULL_DISK else of_folder._replace(hint=hint)
        case InterpolationResolutionError() | RecursionError():
            references = " ".join(f"`{argument}`" for argument in arguments if "${" in argument)
            cause = re.sub(r"^\w+ raised while resolving interpolation: ", "", first_line(error))
            message = f"cannot resolve {references or 'a reference ${...} in a file'}: {cause}"
            return Problem(message, "give a value, or refer to an existing key, such as `${batch}`")
        case MissingConfigException(missing_cfg_file=str(file)) if missing := re.match(r"((?:hydra/)?\w+)/(.+)", file):
            return unknown_choice_problem(*missing.groups())
        case OSError() if error.errno in FULL_DISK:
            hint = f"free disk space, or give a folder on another disk: {FOLDER_KEYS}"
            return Problem(f"cannot write: {error.strerror}", hint)
        case OSError() if error.errno:
            problem = f"cannot use `{error.filename or 'a file'}`: {error.strerror or first_line(error)}"
            return Problem(problem, "give another path, or fix the permissions")
        case SearchPathException():
            return Problem(first_line(error), "give an existing folder")
    return problem_by_text(error, arguments, command)


def problem_by_text(error: BaseException, arguments: Sequence[str], command: str) -> Problem:
    """Return the problem of an error about a key or a value, which only its text identifies."""
    cause = str(error.__cause__ or "")
    reason, text = cause.partition("\n")[0], f"{error}\n{cause}"
    hint = f"list all keys: `python src/{command}.py --cfg job`"
    if unknown := re.search(r"Could not override '([^']+)'", text):
        return unknown_key_problem(unknown[1], command, arguments)
    if several := re.match(r"Ambiguous value for argument '(.*)'", text):
        add = f"for a sweep add `-m`: `-m {several[1]}`"
        return Problem(f"`{several[1]}` has several values: a single run takes one", add)
    if merged := re.match(r"Error merging override (.*)", text):
        if expected := re.search(r"expected one of \[(.*)\]", reason):
            return Problem(f"`{merged[1]}` is not valid", f"give one of {expected[1]}")
        if rule := key_rules(command).get(merged[1].partition("=")[0]):
            return Problem(f"`{merged[1]}` is not valid", f"give {rule.allowed}")
        return Problem(f"`{merged[1]}` is not valid: {reason or 'the configuration does not allow it'}", hint)
    message = first_line(error)
    message += f": {reason}" if reason and reason not in message else ""
    key = re.search(r"full_key: (\S+)", text)
    return Problem(message + (f" (key `{key[1]}`)" if key and key[1] not in message else ""), hint)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, with the next one if it ends with a colon."""
    lines = (str(error) or type(error).__name__).splitlines()
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(".")


def help_page(command: str, doc: str, is_used: KeyFilter = lambda _: True) -> str:
    """Return the help page of a command: its docstring, its groups with their options, and its keys with comments."""
    summary, _, rest = doc.partition("\n\n")
    groups, _ = entry_keys(command)
    choices = [(group, ", ".join(list_choices(group))) for group in sorted(groups) if is_used(group)]
    keys = [
        (f"{name}={value}", comment)
        for name, (value, comment) in commented_keys(command)
        if is_used(name.partition(".")[0])
    ]
    titled = {"Groups (group=option)": choices, "Keys (key=value)": keys}
    parts = [summary, *(f"{title}:\n{two_columns(rows)}" for title, rows in titled.items() if rows)]
    return with_own_commands("\n\n".join([*parts, rest.rstrip()]))


def commented_keys(command: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the keys of a command by dotted names, each with its value and comment in conf/."""
    section = section_comment = ""
    for line in (CONF / f"{command}.yaml").read_text().splitlines():
        if match := re.fullmatch(r"( *)(\w+):(?: ([^ #].*?))?(?: +# (.*))?", line):
            indent, name, value, comment = match.groups(default="")
            if not indent:
                section, section_comment = name, comment
            if value and section != "hydra":
                yield f"{section}.{name}" if indent else name, (value, comment or section_comment)


def two_columns(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(first) for first, _ in rows) + 2
    wrapper = TextWrapper(HELP_COLUMNS, INDENT, INDENT + " " * width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.fill(f"{first:{width}}{second}".rstrip()) for first, second in rows)
