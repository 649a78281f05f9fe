"""Redaction of credentials in everything that is written or printed.

Credentials belong in environment variables, such as MLFLOW_TRACKING_PASSWORD, which are never written. They may also be
in a URL, `http://user:password@host` or `?token=...`, in a key, `dataset.make.password=...`, or have the form of a
known token, `Bearer ...` or `ghp_...`. If the end of a secret in a text is ambiguous, the rest of the line is hidden.

Messages show `***`. In a configuration, a secret is concealed: replaced by a mask with a checksum, so that two secrets
are two configurations. The checksum has a key of the user's own, so that no secret can be guessed from it.
"""

import base64
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from epochmeter.shared.record_files import open_file

MASK = "***"
CHECKSUM_DIGITS = 8
CONCEALED = re.compile(rf"\*\*\*[0-9a-f]{{{CHECKSUM_DIGITS}}}")
"""The mask of a secret in a configuration."""
KEY_FILE, KEY_BYTES = "epochmeter/secrets.key", 32
NO_TEXT_TOKEN = (
    r"(?<!(?:pad|bos|eos|unk|sep|cls|end|max|num|new|per)[._-])(?<!mask[._-])(?<!(?:start|image)[._-])"
    r"(?<!special[._-])"
)
"""Words before `token` that make it a token of a language model, or a number of them, not a secret."""
SECRET_NAME = (
    rf"(?:pass(?:words?|wd|phrase|code)|secrets?|credentials?|{NO_TEXT_TOKEN}token"
    r"|(?:api|access|secret|private|signing|encryption|license|auth|account)[_-]?key)"
)
"""End of the names of secrets: `db_password`, `API_KEY`, `hf_token`; not `max_tokens`, `pad_token` or `sort_key`."""
SHORT_NAME = r"(?:^[+~-]*|[._-])(?:pwd|pw)|(?:^[+~-]*|\.)(?:pass|otp|jwt|auth|authorization|cookie|bearer)"
"""Whole names of secrets; not `forward_pass` or `no_auth`."""
SECRET_KEY = re.compile(rf"(?:{SECRET_NAME}|{SHORT_NAME})$", re.IGNORECASE)
PUBLIC_KEY = re.compile(r"(?:revision|commit|sha\d*|md5|checksum|digest|hash|uuid|(?:^[+~-]*|[._-])id)$", re.IGNORECASE)
"""End of the names of values that look random and are no secrets."""
URL_USER = re.compile(r"(://)((?:[^\s/?#@:\[]*:(?!\d*(?:[\s/?#'\",;.)}\]]|$))\S*|[^\s/?#'\"]*))@")
"""User and password in a URL. A password may contain invalid characters; a port is not a password."""
URL_PARAMETER = re.compile(rf"([?&](?:[\w.-]*(?:{SECRET_NAME}|signature)|sig|key)=)([^\s&#'\"]+)", re.IGNORECASE)
"""A secret in the query of a URL."""
MAPPING_VALUE = re.compile(
    rf"""([{{,]\s*['"]?[\w.-]*{SECRET_NAME}['"]?\s*:(?!\s*['"]?{re.escape(MASK)})\s*)
    ( '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | \[[^\]\n]*\] | \{{[^}}\n]*\}} | [^],}}\n]+ )""",
    re.IGNORECASE | re.VERBOSE,
)
"""A secret in a mapping of Hydra, Python or JSON."""
REST_OF_LINE = re.compile(
    rf"""( {SECRET_NAME}['"]?\s*= | ^[ ]*['"]?[\w.-]*{SECRET_NAME}['"]?:[ ] )(?!{re.escape(MASK)})(.+(?=`)|.+)""",
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
"""A secret after `key=`, or after `key:` at the start of a line; up to a closing backtick, if there is one."""
OPTION_VALUE = re.compile(
    rf"""((?<![\w-])--?[\w.-]*{SECRET_NAME}[ ]+)(?!{re.escape(MASK)}|-)('[^'\n]*'|"[^"\n]*"|[^\s`]+)""",
    re.IGNORECASE | re.VERBOSE,
)
"""A secret after an option of a command line, `--api-key ...`."""
HEADER = re.compile(
    rf"""( (?:authorization|cookie)['"]?\s*[:=](?!\s*['"]?{re.escape(MASK)})\s*['"]?
         | \bbearer[ ]+(?!{re.escape(MASK)}|token\b) )([^'"`\n]+)""",
    re.IGNORECASE | re.VERBOSE,
)
"""The value of an HTTP header with credentials."""
TOKEN = re.compile(
    r"()((?<![\w-])(?:(?:sk|rk|pk)[-_](?=[\w-]*\d)[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|(?:glpat|nvapi|pypi|xox[a-z])-[\w-]{10,}|(?:hf|npm|r8)_[A-Za-z0-9]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{20,}"
    r"|ya29\.[\w-]{10,}|dapi[0-9a-f]{16,}|SG\.[\w-]{10,}\.[\w-]{10,}|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*)"
)
"""Tokens of known services, JSON web tokens and private keys, by their form."""
BASIC = re.compile(r"(\bbasic[ ]+)([A-Za-z0-9+/]{6,}={0,2})(?![\w+/])", re.IGNORECASE)
USER_AND_PASSWORD = re.compile(r"((?<![\w.:/@-])(?!mailto:)[\w.-]+:)([^\s:@/]{3,})(?=@[\w-]+(?:[.:/]|$))")
"""`user:password@host` without `http://`."""
IN_MESSAGES = (OPTION_VALUE, HEADER, USER_AND_PASSWORD)
"""Secrets by the text around them, which in a configuration may be a text of its own."""
RANDOM = re.compile(r"[A-Za-z0-9_-]{20,}={0,2}|[A-Za-z0-9+/]{40}")
HEXADECIMAL = re.compile(r"(?=.*[a-f].*[a-f])(?=.*\d.*\d)[0-9a-f]{32,}", re.IGNORECASE)
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)  # the identifier of something
MIN_RUN = 12  # letters and digits in a row that a random text has; names have hyphens and underscores
MIN_LENGTH_ONE_CASE = 32  # of a random text without lower or without upper case
SYLLABLES = re.compile(r"[A-Z]?[a-z]{2,}")
MAX_SYLLABLES = 0.45  # fraction of a random text that looks like syllables
MIN_ENVIRONMENT_LENGTH = 8  # shortest value of a variable that is looked for in texts
Hide = Callable[[str], str]
_held: dict[str, object] = {}  # mask -> secret that this process has concealed


def redact(text: str) -> str:
    """Return a text, such as a URL or a message with overrides, with all credentials replaced by `***`."""
    return _redacted(text, _hidden, is_message=True)


def redact_override(override: str) -> str:
    """Return an override, `key=value`, with its credentials replaced by `***`."""
    return _redacted_override(override, _hidden, is_message=True)


def redact_tree(value: Any, name: str = "") -> Any:
    """Return nested plain values with all credentials replaced by `***`.

    The value of a key with the name of a secret is hidden completely, unless it is null, a boolean or an empty text.
    Texts in lists are overrides; `name` is the key of the value.
    """
    return _redacted_tree(value, name, _hidden, is_message=True)


def conceal(secret: Any) -> str:
    """Return the mask of a secret, with its checksum. `reveal` gives the secret back, in this process only."""
    text = secret if isinstance(secret, str) else json.dumps(secret, sort_keys=True)
    if CONCEALED.fullmatch(text):
        return text
    digest = hmac.new(_checksum_key(), text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()
    mask = f"{MASK}{digest[:CHECKSUM_DIGITS]}"
    _held[mask] = secret
    return mask


def conceal_argument(text: str, name: str = "") -> str:
    """Return an argument of a script with all credentials concealed, also if it looks random; `name` is its option."""
    if SECRET_KEY.search(name) or (looks_random(text) and not PUBLIC_KEY.search(name)):
        return conceal(text)
    return _redacted(text, conceal, is_message=True)


def conceal_tree(value: Any, name: str = "") -> Any:
    """Return nested values of a configuration with its credentials concealed, by key as in `redact_tree`.

    Of texts, only URLs, mappings and tokens: the training process reads this configuration, and no other may change.
    """
    return _redacted_tree(value, name, conceal, is_message=False)


def reveal(value: Any) -> Any:
    """Return nested plain values with the secrets that this process has concealed in them."""
    if isinstance(value, Mapping):
        return {key: reveal(nested) for key, nested in value.items()}
    if isinstance(value, list):
        return [reveal(nested) for nested in value]
    if not isinstance(value, str) or MASK not in value:
        return value
    if value in _held:
        return _held[value]
    return CONCEALED.sub(lambda mask: str(_held.get(mask[0], mask[0])), value)


def looks_random(text: str) -> bool:
    """Return whether a text looks like a key: long, with letters and digits, and with few syllables."""
    is_possible = RANDOM.fullmatch(text) and not UUID.fullmatch(text)
    runs = re.findall("[A-Za-z0-9]+", text) if is_possible else []
    if not runs or max(map(len, runs)) < MIN_RUN:
        return False
    if HEXADECIMAL.fullmatch(text):
        return True
    joined = "".join(runs)
    has_digits, *has_cases = (bool(re.search(kind, joined)) for kind in (r"\d", "[a-z]", "[A-Z]"))
    if not has_digits or not any(has_cases) or (not all(has_cases) and len(joined) < MIN_LENGTH_ONE_CASE):
        return False
    words = (word for run in runs for word in SYLLABLES.findall(run) if re.search("[aeiouy]", word, re.IGNORECASE))
    return sum(map(len, words)) <= MAX_SYLLABLES * len(joined)


def strip_credentials(address: str) -> str:
    """Return a URL without user and password, as a link for a browser."""
    return _replace_url_users(address, lambda user: "")


def _hidden(secret: object) -> str:
    return MASK


def _redacted(text: str, hide: Hide, *, is_message: bool) -> str:
    text = _replace_url_users(text, lambda user: f"{hide(user)}@")
    for pattern in (*(IN_MESSAGES if is_message else ()), URL_PARAMETER, MAPPING_VALUE, TOKEN, REST_OF_LINE):
        text = pattern.sub(lambda match: match[1] + _hide_once(match[2], hide), text)
    if not is_message:
        return text
    for secret in _environment_secrets():
        if secret in text:
            text = text.replace(secret, hide(secret))
    return BASIC.sub(lambda match: match[1] + _hide_once(match[2], hide) if _is_login(match[2]) else match[0], text)


def _hide_once(secret: str, hide: Hide) -> str:
    """Return the mask of a secret that may be one already, followed by the rest of a line."""
    return secret if secret.startswith(MASK) else hide(secret)


def _redacted_override(override: str, hide: Hide, *, is_message: bool) -> str:
    key, equals, value = override.partition("=")
    if equals and value and SECRET_KEY.search(key):
        return f"{key}={hide(value)}"
    return _redacted(override, hide, is_message=is_message)


def _redacted_tree(value: Any, name: str, hide: Hide, *, is_message: bool) -> Any:
    if value in (None, "") or isinstance(value, bool):
        return value
    if SECRET_KEY.search(name):
        return hide(value)
    if isinstance(value, Mapping):
        return {key: _redacted_tree(item, str(key), hide, is_message=is_message) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [
            _redacted_override(item, hide, is_message=is_message)
            if isinstance(item, str)
            else _redacted_tree(item, name, hide, is_message=is_message)
            for item in value
        ]
    return _redacted(value, hide, is_message=is_message) if isinstance(value, str) else value


def _replace_url_users(text: str, replacement: Hide) -> str:
    """Return a text with another user and password in its URLs, in a time proportional to its length."""

    def replace(word: re.Match[str]) -> str:
        searched, at, rest = word[0].rpartition("@")  # no user is after the last `@`
        return URL_USER.sub(lambda user: user[1] + replacement(user[2]), searched + at) + rest

    return re.sub(r"\S+", replace, text) if "@" in text else text


def _is_login(text: str) -> bool:
    """Return whether a text is `user:password` in Base64."""
    with suppress(ValueError):
        return b":" in base64.b64decode(text, validate=True)
    return False


@lru_cache(maxsize=1)
def _environment_secrets() -> tuple[str, ...]:
    """Return the values of environment variables with the names of secrets, unless they are paths, words or short.

    Some variables have the path of a secret's file, and PWD is the current folder.
    """
    named = {value for name, value in os.environ.items() if SECRET_KEY.search(name)}
    values = (value for value in named if not (os.path.isabs(value) and os.path.exists(value)))
    return tuple(value for value in values if len(value) >= MIN_ENVIRONMENT_LENGTH and not value.isalpha())


@lru_cache(maxsize=1)
def _checksum_key() -> bytes:
    """Return the user's key of checksums, which is created once; if that fails, one that only this process has."""
    path = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / KEY_FILE
    try:
        return _read_key(path) or _create_key(path)
    except OSError as error:
        logging.getLogger(__name__).warning(
            "a run with a secret in its command is measured again, not skipped, as %s cannot be used: %s", path, error
        )
        return secrets.token_bytes(KEY_BYTES)


def _read_key(path: Path) -> bytes:
    """Return the key in a file; empty without one, OSError if it is not this user's own secret."""
    try:
        with open_file(path, KEY_BYTES) as file:
            status, key = os.fstat(file.fileno()), bytes(file.read())
    except FileNotFoundError:
        return b""
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077 or len(key) != KEY_BYTES:
        raise PermissionError(1, "others may read or write it, or it is damaged", str(path))
    return key


def _create_key(path: Path) -> bytes:
    """Create the file of the key, unless another process does at the same time; return the key in it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))
    try:
        with suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink()
    return _read_key(path)
