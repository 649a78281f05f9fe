"""Passwords and tokens, left out of whatever is written down or shown.

They belong into the environment, as MLflow's MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and
MLFLOW_TRACKING_TOKEN, which nothing here writes anywhere. An address can hold them all the same, `http://user:password
@host` or `?token=...`, and so can a key of one's own, `dataset.make.password=...`. Where a text leaves open how far a
secret goes, more is hidden rather than less.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import lru_cache
from typing import Any

HIDDEN = "***"

# What a secret is called.

ENDS = (
    *("password", "passwords", "passwd", "passphrase", "secret", "secrets", "credential", "credentials"),
    *("apikey", "accesskey", "secretkey", "privatekey"),
)
"""What the letters of a secret's name end with: `db_password`, `API_KEY`. A mere `key` is none, nor is a `sort_key`."""
IN_A_QUERY = ("key", "sig", "signature", "xamzsignature", "xgoogsignature")
"""What else is secret in an address. `viewStateShareKey`, which opens a saved view of MLflow's, is not."""
TOKEN = re.compile(r"([a-z]*)[\W\d_]*token[\W\d_]*$", re.IGNORECASE)
"""A name that ends with `token`, and the word before that."""
OF_A_LANGUAGE = {"pad", "bos", "eos", "unk", "mask", "sep", "cls", "start", "end", "special", "image", "per"}
"""Words before `token` with which it is one that a model reads or writes, or is counted by."""

# Where a secret stands.

KEY = r"[\w$./@-]+"
"""A key of Hydra's, with its groups and its package."""
SIGN = r"[~+]{0,2}"
"""What an override begins with that adds a key, or takes it away."""
OWN = r"['\"](?=\w)"
"""A quote that a letter follows belongs to the text that it stands in: `q'uote`. Another one ends it."""
QUOTED = r"""(?: '(?:\\.|'(?=\w)|[^'\\])*'(?!\w) | "(?:\\.|"(?=\w)|[^"\\])*"(?!\w) | ['"][^\n]* )"""
"""A text in quotes; one that is cut short goes to the end of its line."""
AROUND = " \t'\""
"""What may stand around a value, and is none by itself."""
COMMAND = re.compile(r"python[\d.]* ")
"""What the command begins with that a run was started by."""
OVERRIDE = re.compile(rf"({SIGN}({KEY})[ \t]*=).+", re.DOTALL)
"""All of a text that is one override."""
ASSIGNED = re.compile(rf"(?<![\w$./@?&-])(?P<quote>['\"]?){SIGN}(?P<name>{KEY})[ \t]*=")
"""`key=` within a text. What follows `?` or `&` is an address's."""
WORD = re.compile(rf"{QUOTED}+", re.DOTALL | re.VERBOSE)
"""A shell's word in quotes. One that holds quotes itself is several of them, without a gap."""
VALUE = re.compile(
    rf"""(?: {QUOTED}                                         # a blank in quotes ends nothing
           | (?! (?<![,\s]) [ \t]+ ['"]?{SIGN}{KEY}=(?!=) )   # up to the next override; `f(a, b=1)` holds none
             [^\n]
         )*""",
    re.DOTALL | re.VERBOSE,
)
"""The value of an override: Hydra takes blanks without quotes, so it goes to the next override or its line's end."""
PAIRED = re.compile(rf"(?:(?P<inside>[{{,])|^)[ \t]*['\"]*(?P<name>{KEY})['\"]*[ \t]*:", re.MULTILINE)
"""`key:` as Hydra's mappings, Python's, JSON's and YAML's have it."""
ELEMENT = re.compile(rf"{QUOTED} | \\. | [][(){{}},\n] | [^][(){{}},\n'\"\\]+", re.DOTALL | re.VERBOSE)
"""A piece of a mapping's text: what is in quotes, a sign, or what lies between signs."""

PORT = r"\d*(?:[\s/?#'\",;.)\]}]|$)"
PASSWORD = re.compile(rf"(://)[^\s/?#@:\[]*:(?!{PORT})(?:\S*|[^\n@]*)@")
"""Who logs in, with a password that may hold what no address should: what follows the colon is no port."""
USER = re.compile(rf"(://)(?:[^\s/?#'\"]|{OWN})*@")
"""Who logs in at an address."""
ASKED = re.compile(rf"([?&]([^\s=?&#'\"]+)=)(?:[^\s&#'\"]|{OWN})+")
"""One parameter of an address, its name, and its value."""


def redacted(text: str) -> str:
    """The text with `***` in place of who logs in at an address, of tokens asked with, and of values typed for keys
    that are named as secrets are.

    It may be an address, an override or several, a command, or an error of many lines that repeats any of these.
    """
    shown = _without_any(text)
    if shown == text:
        return text
    words = _command(text)
    return shlex.join(map(redacted_override, words)) if words else shown


def redacted_override(text: str) -> str:
    """The same of a text that is known to be a single override: the whole value of a secret is hidden."""
    found = OVERRIDE.fullmatch(text)
    return f"{found[1]}{HIDDEN}" if found and _is_secret(found[2]) else _without_any(text)


def redacted_tree(value: Any, name: str = "") -> Any:
    """A tree of plain values, its texts redacted; what a key named as a secret holds is hidden as a whole, unless it
    only says that there is none, or whether there is one."""
    if value is None or isinstance(value, bool):
        return value
    if _is_secret(name):
        return "" if isinstance(value, str) and not value else HIDDEN
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_tree(each, f"{name}.{key}") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted_override(each) if isinstance(each, str) else redacted_tree(each, name) for each in value]
    return value


def without_user(address: str) -> str:
    """The address without who logs in there: a link that a browser can open, and asks for the rest."""
    return USER.sub(r"\1", PASSWORD.sub(r"\1", address))


@lru_cache(1024)
def _is_secret(name: str) -> bool:
    # Only its end tells, and a text of any length may stand before a `=`.
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
    """The words of a command, where the text is one as it is written down when a run begins; else none."""
    if not COMMAND.match(text):
        return []
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    return words if shlex.join(words) == text else []


def _answered(asked: re.Match[str]) -> str:
    return f"{asked[1]}{HIDDEN}" if _is_secret_in_a_query(asked[2]) else asked[0]


def _without(named: re.Pattern[str], value_of: Callable[[re.Match[str]], str], text: str) -> str:
    """The text without the values that follow secrets' names."""
    shown, done = [], 0
    while found := named.search(text, done):
        begin = found.end()
        shown.append(text[done:begin])
        done = begin
        if _is_secret(found["name"]):
            value = value_of(found)
            if value.strip(AROUND) not in ("", HIDDEN):
                blank = value[: len(value) - len(value.lstrip())]
                closing = found.groupdict().get("quote") or ""
                shown.append(f"{blank}{HIDDEN}{closing}")
                done += len(value)
    return "".join([*shown, text[done:]])


def _assigned(key: re.Match[str]) -> str:
    """What is assigned to a key; with the quote that ends it, where one begins before the key."""
    text, begin = key.string, key.end()
    whole = WORD.match(text, key.start()) if key["quote"] else VALUE.match(text, begin)
    return text[begin : whole.end()] if whole else ""


def _held(key: re.Match[str]) -> str:
    """What a mapping holds for a key, with all that it may hold itself; a line of YAML's holds it to its end."""
    text, depth = key.string, 0
    ends = ("\n", ",", "]", ")", "}") if key["inside"] else ("\n",)
    for piece in ELEMENT.finditer(text, key.end()):
        if depth <= 0 and piece[0] in ends:
            return text[key.end() : piece.start()]
        depth += (piece[0] in ("[", "(", "{")) - (piece[0] in ("]", ")", "}"))
    return text[key.end() :]
