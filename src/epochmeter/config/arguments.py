"""The arguments of a command, before anything else reads them: secrets concealed, keys of swept groups deferred.

What this process writes and prints, and what Hydra does, has their masks. `secrets.reveal` gives the secrets to the
script, and to the code that uses a key.
"""

import re
import sys
from collections.abc import Collection, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException

from epochmeter.config.errors import format_error
from epochmeter.config.secrets import (
    CONCEALED,
    PUBLIC_KEY,
    SECRET_KEY,
    conceal,
    conceal_argument,
    conceal_tree,
    redact_override,
)
from epochmeter.shared import renamed
from epochmeter.shared.problem import InputError, input_error
from epochmeter.shared.renamed import Renamed

PLACEHOLDER = re.compile(r"\{script\.(\w+)\}")
HIDE_KEY = "measure.hide_arguments"
NOT_SECRET = re.compile(r"(?:true|false|none|null|yes|no)?", re.IGNORECASE)
"""Values that an option with the name of a secret may have, such as `--use_auth_token true`."""
OPTION = re.compile(r"-[A-Za-z]|--[A-Za-z][\w.-]*(?:=.*)?", re.DOTALL)
LOGIN_OPTIONS = ("-u", "--user")  # of a user and a password, as of curl
HEADER_OPTIONS, SCHEMES = ("-h", "--header", "--headers"), ("bearer", "basic", "token")
"""Options of an HTTP header, and words before a secret in its value."""
PLAIN_VALUE = re.compile(r"[-+.\deE]*|.*[/.].*")
"""Values of `-p` that are no password: numbers and paths."""


_warned: set[Renamed] = set()  # of this process


def with_current_names(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with the new names of keys and options; each old one is warned about once.

    Raises:
        InputError: A name is too old.
    """
    found: dict[Renamed, None] = {}
    current = [renamed.current_override(argument, found.setdefault) for argument in arguments]
    warn_of_old_names(found)
    return current


def warn_of_old_names(found: Collection[Renamed]) -> None:
    """Print a warning for each old name that a user has given; InputError if one is too old."""
    if refused := [row.refusal() for row in found if row in renamed.REFUSED]:
        raise InputError(*refused)
    for row in [row for row in found if row not in _warned]:
        _warned.add(row)
        print(format_error(row.warning(), "warning"), file=sys.stderr)


def conceal_command(command: Sequence[str], *, hides_all: bool = False) -> list[str]:
    """Return the command of a script with all secrets concealed; with `hides_all`, all of its arguments.

    A secret is the value of an option or a variable with the name of a secret, a credential in a URL or a header, and a
    text with the form of a token. The program and the name of a module are never concealed.
    """
    first = 2 if command[:1] == ["-m"] else 1
    concealed, option, last = [*command[:first]], "", ""
    for word in command[first:]:
        is_value = _is_secret_value(word, last, option)
        concealed.append(conceal(word) if hides_all or is_value else _conceal_word(word, last))
        option, last = word if OPTION.fullmatch(word) else option, word
    return concealed


def secret_placeholders(command: Sequence[str]) -> set[str]:
    """Return the names of placeholders whose values are secrets, as in `--api-key {script.key}`."""
    names = {name for word in command for name in PLACEHOLDER.findall(word)}
    marks = {name: f"value.of.{name}." for name in names}
    filled = [PLACEHOLDER.sub(lambda match: marks[match[1]], word) for word in command]
    counts = [" ".join(words).count for words in (filled, conceal_command(filled))]
    return {name for name, mark in marks.items() if counts[1](mark) < counts[0](mark)}


def conceal_override(override: str, secret_keys: Collection[str] = ()) -> str:
    """Return an override, `key=value`, with all secrets concealed, each one of a list of values to sweep over.

    The values of `secret_keys` are secrets whatever the names of these keys.
    """
    key, _, text = override.partition("=")
    is_secret = key.lstrip("+") in secret_keys
    if not text or CONCEALED.fullmatch(text) or not (is_secret or _conceal_text(text, key) != text):
        return override
    try:
        parsed = OverridesParser.create().parse_override(override)
        if parsed.is_sweep_override():
            return f"{parsed.get_key_element()}={','.join(_sweep_texts(parsed, is_secret=is_secret))}"
        as_typed = f"{key}={text if is_secret else _conceal_text(text, key)}"
        value = _conceal_value(parsed.value(), key, is_secret=is_secret)  # last, so that a number is revealed as one
        for concealed in (override, as_typed):
            if OverridesParser.create().parse_override(concealed).value() == value:
                return concealed
        return f"{parsed.get_key_element()}={_as_text(value)}"
    except HydraException:  # it is refused later, with an error that repeats it
        return redact_override(override)


def defer_keys(arguments: Sequence[str], groups: Collection[str]) -> list[str]:
    """Return a sweep's arguments with each value of a group's key as a list of one, if a group is swept over.

    Hydra also composes values that are not swept over with the default options, which may lack the keys.
    """
    if not any(argument.partition("=")[0] in groups and _sweep_size(argument) for argument in arguments):
        return [*arguments]
    deferred = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        listed = f"{key}=choice({value})"
        is_of_group = "." in key and key.partition(".")[0] in groups
        is_deferred = is_of_group and _sweep_size(argument) == 0 and _sweep_size(listed) == 1
        deferred.append(listed if is_deferred else argument)
    return deferred


def undefer_key(argument: str) -> str:
    """Return an argument as typed, before `defer_keys`."""
    deferred = re.fullmatch(r"([^=]+=)choice\((.*)\)", argument, re.DOTALL)
    return deferred[1] + deferred[2] if deferred and _sweep_size(argument) == 1 else argument


def _sweep_size(override: str) -> int:
    """Return the number of values in a list or function to sweep over, 1 or more; 0 for a single value."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:  # it is refused later, with an error that repeats it
        return 0
    if not parsed.is_sweep_override():
        return 0
    sweep = parsed.value()
    return len(sweep.list) if isinstance(sweep, ChoiceSweep) else 2


def _sweep_texts(override: Override, *, is_secret: bool) -> list[str]:
    sweep, key = override._value, override.key_or_group
    if not isinstance(sweep, ChoiceSweep):
        raise input_error(f"`{key}=` has the values of a secret, which must be listed", f"give `{key}=A,B`")
    return [_as_text(_conceal_value(value, key, is_secret=is_secret)) for value in sweep.list]


def _conceal_value(value: Any, key: str, *, is_secret: bool = False) -> Any:
    """Return a value that Hydra has parsed with its secrets concealed; references `${...}` stay."""
    if isinstance(value, QuotedString):
        text = _conceal_value(value.text, key, is_secret=is_secret)
        return value if text == value.text else text
    if value is None or isinstance(value, bool) or value == "" or (isinstance(value, str) and "${" in value):
        return value
    if is_secret or SECRET_KEY.search(key):
        return conceal(value)
    if isinstance(value, dict):
        return {name: _conceal_value(nested, str(name)) for name, nested in value.items()}
    if isinstance(value, list):
        return [_conceal_value(nested, key) for nested in value]
    return _conceal_text(value, key) if isinstance(value, str) else value


def _conceal_text(text: str, key: str) -> str:
    return str(conceal_argument(text, key) if key.startswith("script.") else conceal_tree(text, key))


def _as_text(value: Any) -> str:
    return Override._get_value_element_as_str(value)


def _is_secret_value(word: str, last: str, option: str) -> bool:
    """Return whether a word is a secret by the word before it, or by the option that it follows with other values."""
    if PLACEHOLDER.fullmatch(word) or NOT_SECRET.fullmatch(word) or OPTION.fullmatch(word):
        return False
    if option and "=" not in option and SECRET_KEY.search(option):
        return last == option or option.endswith("s")
    if last == "-p":  # as of sshpass
        return not PLAIN_VALUE.fullmatch(word)
    return last.lower() == "bearer" or (last.lower() in SCHEMES and option.lower() in HEADER_OPTIONS)


def _conceal_word(word: str, last: str) -> str:
    """Return a word of a command with the secrets in it concealed; `last` is the word before it."""
    name, equals, value = word.partition("=")
    if last in LOGIN_OPTIONS and ":" in word:
        user, _, password = word.partition(":")
        return f"{user}:{conceal(password)}"
    if re.fullmatch(r"-p[^-=\s]\S*", word) and not PLAIN_VALUE.fullmatch(word[2:]):  # as of mysql
        return f"-p{conceal(word[2:])}"
    if equals and re.fullmatch(r"[+~-]*[\w./-]+", name):
        is_plain = PLACEHOLDER.fullmatch(value) or NOT_SECRET.fullmatch(value)
        return word if is_plain else f"{name}={conceal_argument(value, name)}"
    return conceal_argument(word, last if PUBLIC_KEY.search(last) else "")
