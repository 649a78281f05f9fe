"""Redaction of passwords and tokens in everything that is written or printed.

Credentials belong in environment variables, such as MLFLOW_TRACKING_PASSWORD, which are never written. They may also be
in a URL, `http://user:password@host` or `?token=...`, or in a key, `dataset.make.password=...`. If the end of a secret
is ambiguous, more text is hidden rather than less.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import lru_cache
from typing import Any

MASK = "***"

# Names of secrets.

SECRET_SUFFIXES = (
    *("password", "passwords", "passwd", "passphrase", "secret", "secrets", "credential", "credentials"),
    *("apikey", "accesskey", "secretkey", "privatekey"),
)
"""Ends of the letters in names of secrets: `db_password`, `API_KEY`; but not `key` or `sort_key`."""
SECRET_QUERY_KEYS = ("key", "sig", "signature", "xamzsignature", "xgoogsignature")
"""Other names of secrets in a URL's query. `viewStateShareKey`, which opens a saved view in MLflow, is not one."""
TOKEN_KEY = re.compile(r"([a-z]*)[\W\d_]*token[\W\d_]*$", re.IGNORECASE)
"""A name that ends with `token`, and the word before it."""
TEXT_TOKEN_PREFIXES = {"pad", "bos", "eos", "unk", "mask", "sep", "cls", "start", "end", "special", "image", "per"}
"""Words before `token` that make it a token of a language model, not a secret."""

# Places of secrets.

KEY = r"[\w$./@-]+"
"""A key of Hydra, with group and package."""
OVERRIDE_PREFIX = r"[~+]{0,2}"
"""Prefix of an override that adds or deletes a key."""
INNER_QUOTE = r"['\"](?=\w)"
"""A quote before a letter is part of the text, as in `q'uote`; any other quote ends the text."""
QUOTED = r"""(?: '(?:\\.|'(?=\w)|[^'\\])*'(?!\w) | "(?:\\.|"(?=\w)|[^"\\])*"(?!\w) | ['"][^\n]* )"""
"""Quoted text; without a closing quote, up to the end of the line."""
SURROUNDING_CHARACTERS = " \t'\""
"""Characters around a value that are not part of it."""
PYTHON_COMMAND = re.compile(r"python[\d.]* ")
"""Start of a command that starts a run."""
OVERRIDE = re.compile(rf"({OVERRIDE_PREFIX}({KEY})[ \t]*=).+", re.DOTALL)
"""A text that is a single override."""
ASSIGNMENT = re.compile(rf"(?<![\w$./@?&-])(?P<quote>['\"]?){OVERRIDE_PREFIX}(?P<name>{KEY})[ \t]*=")
"""`key=` within a text. After `?` or `&` it is part of a URL."""
SHELL_WORD = re.compile(rf"{QUOTED}+", re.DOTALL | re.VERBOSE)
"""A quoted word of a shell. If it contains quotes, it consists of several quoted texts without spaces."""
OVERRIDE_VALUE = re.compile(
    rf"""(?: {QUOTED}                                         # a space in quotes does not end it
           | (?! (?<![,\s]) [ \t]+ ['"]?{OVERRIDE_PREFIX}{KEY}=(?!=) )   # up to the next override; `f(a, b=1)` has none
             [^\n]
         )*""",
    re.DOTALL | re.VERBOSE,
)
"""The value of an override, up to the next override or the end of the line, since Hydra accepts unquoted spaces."""
MAPPING_KEY = re.compile(rf"(?:(?P<inside>[{{,])|^)[ \t]*['\"]*(?P<name>{KEY})['\"]*[ \t]*:", re.MULTILINE)
"""`key:` in a mapping of Hydra, Python, JSON or YAML."""
MAPPING_TOKEN = re.compile(rf"{QUOTED} | \\. | [][(){{}},\n] | [^][(){{}},\n'\"\\]+", re.DOTALL | re.VERBOSE)
"""A part of a mapping's text: quoted text, a delimiter, or text between delimiters."""

URL_PORT = r"\d*(?:[\s/?#'\",;.)\]}]|$)"
URL_PASSWORD = re.compile(rf"(://)[^\s/?#@:\[]*:(?!{URL_PORT})(?:\S*|[^\n@]*)@")
"""User and password in a URL. The password may contain invalid characters; a port after the colon is excluded."""
URL_USER = re.compile(rf"(://)(?:[^\s/?#'\"]|{INNER_QUOTE})*@")
"""User in a URL, with or without a password."""
URL_PARAMETER = re.compile(rf"([?&]([^\s=?&#'\"]+)=)(?:[^\s&#'\"]|{INNER_QUOTE})+")
"""A parameter of a URL's query: its name and its value."""


def redact(text: str) -> str:
    """Return a text with all credentials replaced by `***`.

    Args:
        text: A URL, one or more overrides, a command, or a message that contains any of them.

    Returns:
        The text without users and passwords in URLs, tokens in queries, and values of keys with names of secrets.
    """
    result = _redact_text(text)
    if result == text:
        return text
    words = _command_words(text)
    return shlex.join(map(redact_override, words)) if words else result


def redact_override(text: str) -> str:
    """Return a single override with its credentials replaced by `***`; a secret's value is hidden completely."""
    match = OVERRIDE.fullmatch(text)
    return f"{match[1]}{MASK}" if match and _is_secret(match[2]) else _redact_text(text)


def redact_tree(value: Any, name: str = "") -> Any:
    """Return nested plain values with all texts redacted.

    The value of a key with the name of a secret is hidden completely, unless it is null, a boolean or an empty text.

    Args:
        value: Mappings, lists and plain values.
        name: Dotted key of the value.
    """
    if value is None or isinstance(value, bool):
        return value
    if _is_secret(name):
        return "" if isinstance(value, str) and not value else MASK
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_tree(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_override(item) if isinstance(item, str) else redact_tree(item, name) for item in value]
    return value


def strip_credentials(address: str) -> str:
    """Return a URL without user and password, as a link for a browser."""
    return URL_USER.sub(r"\1", URL_PASSWORD.sub(r"\1", address))


@lru_cache(1024)
def _is_secret(name: str) -> bool:
    # Only the end is relevant, and the text before a `=` may have any length.
    end = name[-64:]
    if _letters(end).endswith(SECRET_SUFFIXES):
        return True
    token = TOKEN_KEY.search(end)
    return token is not None and token[1].lower() not in TEXT_TOKEN_PREFIXES


def _is_secret_in_a_query(name: str) -> bool:
    return _letters(name) in SECRET_QUERY_KEYS or _is_secret(name)


def _letters(name: str) -> str:
    return "".join(filter(str.isalpha, name)).lower()


def _redact_text(text: str) -> str:
    if "://" in text and "@" in text:
        text = URL_USER.sub(rf"\1{MASK}@", URL_PASSWORD.sub(rf"\1{MASK}@", text))
    if "=" in text:
        text = _redact_values(ASSIGNMENT, _assigned_value, URL_PARAMETER.sub(_redact_parameter, text))
    if ":" in text:
        text = _redact_values(MAPPING_KEY, _mapping_value, text)
    return text


def _command_words(text: str) -> list[str]:
    """Return the words of a command as recorded for a run; empty if the text is not one."""
    if not PYTHON_COMMAND.match(text):
        return []
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    return words if shlex.join(words) == text else []


def _redact_parameter(parameter: re.Match[str]) -> str:
    """Return a parameter of a query, its value replaced by `***` if it is a secret."""
    return f"{parameter[1]}{MASK}" if _is_secret_in_a_query(parameter[2]) else parameter[0]


def _redact_values(key_pattern: re.Pattern[str], value_of: Callable[[re.Match[str]], str], text: str) -> str:
    """Return the text with the values of secrets replaced by `***`.

    Args:
        key_pattern: Matches a key, with its name in the group `name`.
        value_of: Returns the value that follows a matched key.
        text: The text to redact.
    """
    parts, done = [], 0
    while match := key_pattern.search(text, done):
        begin = match.end()
        parts.append(text[done:begin])
        done = begin
        if _is_secret(match["name"]):
            value = value_of(match)
            if value.strip(SURROUNDING_CHARACTERS) not in ("", MASK):
                space = value[: len(value) - len(value.lstrip())]
                closing_quote = match.groupdict().get("quote") or ""
                parts.append(f"{space}{MASK}{closing_quote}")
                done += len(value)
    return "".join([*parts, text[done:]])


def _assigned_value(key: re.Match[str]) -> str:
    """Return the value assigned to a key, with the closing quote if a quote opens before the key."""
    text, begin = key.string, key.end()
    match = SHELL_WORD.match(text, key.start()) if key["quote"] else OVERRIDE_VALUE.match(text, begin)
    return text[begin : match.end()] if match else ""


def _mapping_value(key: re.Match[str]) -> str:
    """Return the value of a key in a mapping, with nested values; in YAML, the rest of the line."""
    text, depth = key.string, 0
    ends = ("\n", ",", "]", ")", "}") if key["inside"] else ("\n",)
    for part in MAPPING_TOKEN.finditer(text, key.end()):
        if depth <= 0 and part[0] in ends:
            return text[key.end() : part.start()]
        depth += (part[0] in ("[", "(", "{")) - (part[0] in ("]", ")", "}"))
    return text[key.end() :]
