"""Redaction of credentials in everything that is written or printed.

Credentials belong in environment variables, such as MLFLOW_TRACKING_PASSWORD, which are never written. They may also be
in a URL, `http://user:password@host` or `?token=...`, or in a key, `dataset.make.password=...`. If the end of a secret
in a text is ambiguous, the rest of the line is hidden.
"""

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
NO_TEXT_TOKEN = r"(?<!(?:pad|bos|eos|unk|sep|cls|end)[._-])(?<!mask[._-])(?<!(?:start|image)[._-])(?<!special[._-])"
"""Words before `token` that make it a token of a language model, not a secret."""
SECRET_NAME = (
    rf"(?:pass(?:words?|wd|phrase)|secrets?|credentials?|(?:api|access|secret|private)[_-]?key|{NO_TEXT_TOKEN}token)"
)
"""End of the names of secrets: `db_password`, `API_KEY`, `hf_token`; not `max_tokens`, `pad_token` or `sort_key`."""
SECRET_KEY = re.compile(rf"{SECRET_NAME}$", re.IGNORECASE)
URL_USER = re.compile(r"(://)(?:[^\s/?#@:\[]*:(?!\d*(?:[\s/?#'\",;.)}\]]|$))\S*|[^\s/?#'\"]*)@")
"""User and password in a URL. A password may contain invalid characters; a port is not a password."""
URL_PARAMETER = re.compile(rf"([?&](?:[\w.-]*(?:{SECRET_NAME}|signature)|sig|key)=)[^\s&#'\"]+", re.IGNORECASE)
"""A secret in the query of a URL."""
MAPPING_VALUE = re.compile(
    rf"""([{{,]\s*['"]?[\w.-]*{SECRET_NAME}['"]?\s*:(?!\s*['"]?{re.escape(MASK)})\s*)
    (?: '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | \[[^\]\n]*\] | \{{[^}}\n]*\}} | [^],}}\n]+ )""",
    re.IGNORECASE | re.VERBOSE,
)
"""A secret in a mapping of Hydra, Python or JSON."""
REST_OF_LINE = re.compile(
    rf"""( {SECRET_NAME}['"]?\s*= | ^[ ]*['"]?[\w.-]*{SECRET_NAME}['"]?:[ ] )(?!{re.escape(MASK)})(?:.+(?=`)|.+)""",
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
"""A secret after `key=`, or after `key:` at the start of a line; up to a closing backtick, if there is one."""


def redact(text: str) -> str:
    """Return a text, such as a URL or a message with overrides, with all credentials replaced by `***`."""
    text = _replace_url_users(text, f"{MASK}@")
    for pattern in (URL_PARAMETER, MAPPING_VALUE, REST_OF_LINE):
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def redact_override(override: str) -> str:
    """Return an override, `key=value`, with its credentials replaced by `***`."""
    key, equals, value = override.partition("=")
    return f"{key}={MASK}" if equals and value and SECRET_KEY.search(key) else redact(override)


def redact_tree(value: Any, name: str = "") -> Any:
    """Return nested plain values with all credentials replaced by `***`.

    The value of a key with the name of a secret is hidden completely, unless it is null, a boolean or an empty text.
    Texts in lists are overrides; `name` is the key of the value.
    """
    if value in (None, "") or isinstance(value, bool):
        return value
    if SECRET_KEY.search(name):
        return MASK
    if isinstance(value, Mapping):
        return {key: redact_tree(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_override(item) if isinstance(item, str) else redact_tree(item, name) for item in value]
    return redact(value) if isinstance(value, str) else value


def strip_credentials(address: str) -> str:
    """Return a URL without user and password, as a link for a browser."""
    return _replace_url_users(address, "")


def _replace_url_users(text: str, replacement: str) -> str:
    """Return a text with another user and password in its URLs, in a time proportional to its length."""

    def replace(word: re.Match[str]) -> str:
        searched, at, rest = word[0].rpartition("@")  # no user is after the last `@`
        return URL_USER.sub(rf"\1{replacement}", searched + at) + rest

    return re.sub(r"\S+", replace, text) if "@" in text else text
