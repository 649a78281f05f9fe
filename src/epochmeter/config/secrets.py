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

HIDDEN = "***"

# Names of secrets.

ENDS = (
    *("password", "passwords", "passwd", "passphrase", "secret", "secrets", "credential", "credentials"),
    *("apikey", "accesskey", "secretkey", "privatekey"),
)
"""Ends of the letters in names of secrets: `db_password`, `API_KEY`; but not `key` or `sort_key`."""
IN_A_QUERY = ("key", "sig", "signature", "xamzsignature", "xgoogsignature")
"""Other names of secrets in a URL's query. `viewStateShareKey`, which opens a saved view in MLflow, is not one."""
TOKEN = re.compile(r"([a-z]*)[\W\d_]*token[\W\d_]*$", re.IGNORECASE)
"""A name that ends with `token`, and the word before it."""
OF_A_LANGUAGE = {"pad", "bos", "eos", "unk", "mask", "sep", "cls", "start", "end", "special", "image", "per"}
"""Words before `token` that make it a token of a language model, not a secret."""

# Places of secrets.

KEY = r"[\w$./@-]+"
"""A key of Hydra, with group and package."""
SIGN = r"[~+]{0,2}"
"""Prefix of an override that adds or deletes a key."""
OWN = r"['\"](?=\w)"
"""A quote before a letter is part of the text, as in `q'uote`; any other quote ends the text."""
QUOTED = r"""(?: '(?:\\.|'(?=\w)|[^'\\])*'(?!\w) | "(?:\\.|"(?=\w)|[^"\\])*"(?!\w) | ['"][^\n]* )"""
"""Quoted text; without a closing quote, up to the end of the line."""
AROUND = " \t'\""
"""Characters around a value that are not part of it."""
COMMAND = re.compile(r"python[\d.]* ")
"""Start of a command that starts a run."""
OVERRIDE = re.compile(rf"({SIGN}({KEY})[ \t]*=).+", re.DOTALL)
"""A text that is a single override."""
ASSIGNED = re.compile(rf"(?<![\w$./@?&-])(?P<quote>['\"]?){SIGN}(?P<name>{KEY})[ \t]*=")
"""`key=` within a text. After `?` or `&` it is part of a URL."""
WORD = re.compile(rf"{QUOTED}+", re.DOTALL | re.VERBOSE)
"""A quoted word of a shell. If it contains quotes, it consists of several quoted texts without spaces."""
VALUE = re.compile(
    rf"""(?: {QUOTED}                                         # a space in quotes does not end it
           | (?! (?<![,\s]) [ \t]+ ['"]?{SIGN}{KEY}=(?!=) )   # up to the next override; `f(a, b=1)` has none
             [^\n]
         )*""",
    re.DOTALL | re.VERBOSE,
)
"""The value of an override, up to the next override or the end of the line, since Hydra accepts unquoted spaces."""
PAIRED = re.compile(rf"(?:(?P<inside>[{{,])|^)[ \t]*['\"]*(?P<name>{KEY})['\"]*[ \t]*:", re.MULTILINE)
"""`key:` in a mapping of Hydra, Python, JSON or YAML."""
ELEMENT = re.compile(rf"{QUOTED} | \\. | [][(){{}},\n] | [^][(){{}},\n'\"\\]+", re.DOTALL | re.VERBOSE)
"""A part of a mapping's text: quoted text, a delimiter, or text between delimiters."""

PORT = r"\d*(?:[\s/?#'\",;.)\]}]|$)"
PASSWORD = re.compile(rf"(://)[^\s/?#@:\[]*:(?!{PORT})(?:\S*|[^\n@]*)@")
"""User and password in a URL. The password may contain invalid characters; a port after the colon is excluded."""
USER = re.compile(rf"(://)(?:[^\s/?#'\"]|{OWN})*@")
"""User in a URL, with or without a password."""
ASKED = re.compile(rf"([?&]([^\s=?&#'\"]+)=)(?:[^\s&#'\"]|{OWN})+")
"""A parameter of a URL's query: its name and its value."""


def redacted(text: str) -> str:
    """Return a text with all credentials replaced by `***`.

    Args:
        text: A URL, one or more overrides, a command, or a message that contains any of them.

    Returns:
        The text without users and passwords in URLs, tokens in queries, and values of keys with names of secrets.
    """
    result = _without_any(text)
    if result == text:
        return text
    words = _command(text)
    return shlex.join(map(redacted_override, words)) if words else result


def redacted_override(text: str) -> str:
    """Return a single override with its credentials replaced by `***`; a secret's value is hidden completely."""
    match = OVERRIDE.fullmatch(text)
    return f"{match[1]}{HIDDEN}" if match and _is_secret(match[2]) else _without_any(text)


def redacted_tree(value: Any, name: str = "") -> Any:
    """Return nested plain values with all texts redacted.

    The value of a key with the name of a secret is hidden completely, unless it is null, a boolean or an empty text.

    Args:
        value: Mappings, lists and plain values.
        name: Dotted key of the value.
    """
    if value is None or isinstance(value, bool):
        return value
    if _is_secret(name):
        return "" if isinstance(value, str) and not value else HIDDEN
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_tree(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted_override(item) if isinstance(item, str) else redacted_tree(item, name) for item in value]
    return value


def without_user(address: str) -> str:
    """Return a URL without user and password, as a link for a browser."""
    return USER.sub(r"\1", PASSWORD.sub(r"\1", address))


@lru_cache(1024)
def _is_secret(name: str) -> bool:
    # Only the end is relevant, and the text before a `=` may have any length.
    end = name[-64:]
    if _letters(end).endswith(ENDS):
        return True
    token = TOKEN.search(end)
    return token is not None and token[1].lower() not in OF_A_LANGUAGE


def _is_secret_in_a_query(name: str) -> bool:
    return _letters(name) in IN_A_QUERY or _is_secret(name)


def _letters(name: str) -> str:
    return "".join(filter(str.isalpha, name)).lower()


def _without_any(text: str) -> str:
    if "://" in text and "@" in text:
        text = USER.sub(rf"\1{HIDDEN}@", PASSWORD.sub(rf"\1{HIDDEN}@", text))
    if "=" in text:
        text = _without(ASSIGNED, _assigned, ASKED.sub(_answered, text))
    if ":" in text:
        text = _without(PAIRED, _held, text)
    return text


def _command(text: str) -> list[str]:
    """Return the words of a command as recorded for a run; empty if the text is not one."""
    if not COMMAND.match(text):
        return []
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    return words if shlex.join(words) == text else []


def _answered(parameter: re.Match[str]) -> str:
    """Return a parameter of a query, its value replaced by `***` if it is a secret."""
    return f"{parameter[1]}{HIDDEN}" if _is_secret_in_a_query(parameter[2]) else parameter[0]


def _without(key_pattern: re.Pattern[str], value_of: Callable[[re.Match[str]], str], text: str) -> str:
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
            if value.strip(AROUND) not in ("", HIDDEN):
                space = value[: len(value) - len(value.lstrip())]
                closing_quote = match.groupdict().get("quote") or ""
                parts.append(f"{space}{HIDDEN}{closing_quote}")
                done += len(value)
    return "".join([*parts, text[done:]])


def _assigned(key: re.Match[str]) -> str:
    """Return the value assigned to a key, with the closing quote if a quote opens before the key."""
    text, begin = key.string, key.end()
    match = WORD.match(text, key.start()) if key["quote"] else VALUE.match(text, begin)
    return text[begin : match.end()] if match else ""


def _held(key: re.Match[str]) -> str:
    """Return the value of a key in a mapping, with nested values; in YAML, the rest of the line."""
    text, depth = key.string, 0
    ends = ("\n", ",", "]", ")", "}") if key["inside"] else ("\n",)
    for part in ELEMENT.finditer(text, key.end()):
        if depth <= 0 and part[0] in ends:
            return text[key.end() : part.start()]
        depth += (part[0] in ("[", "(", "{")) - (part[0] in ("]", ")", "}"))
    return text[key.end() :]
