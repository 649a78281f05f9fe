"""Passwords and tokens, left out of whatever is written down or shown.

They belong into the environment, as MLflow's MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and
MLFLOW_TRACKING_TOKEN, which nothing here writes anywhere. An address can hold them all the same, `http://user:password
@host` or `?token=...`, and so can a key of one's own, `dataset.make.password=...`.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"
SECRET = r"(?:password|passwd|secret|api_?key|access_?key|secret_?key|(?:auth|access|bearer|session|refresh)_?token)"
"""What the name of a secret ends with; `token` alone, which may be a word of a language, has to be the whole name."""
NAME = re.compile(rf"(?:^|.*[._-]){SECRET}$|^token$", re.IGNORECASE)
USER = re.compile(r"(\b[a-z][a-z\d+.-]*://)[^\s/?#'\"]*@", re.IGNORECASE)
QUERY = re.compile(
    # MLflow's viewStateShareKey opens a saved view, and is none.
    r"([?&;][^\s=&;#]*(?:token|secret|passw|(?<!share)key|signature|credential|\bsig)[^\s=&;#]*=)[^\s&;#'\"]+",
    re.I,
)
KEY = re.compile(rf"((?<![\w-])(?:[\w-]*[._-])?(?:{SECRET}|(?<![_-])token)=)[^\s&;'\"]+", re.IGNORECASE)


def redacted(text: str) -> str:
    """The text with `***` in place of who logs in at an address, of tokens asked with, and of values typed for keys
    that are named as secrets are."""
    if "=" not in text and "@" not in text:
        return text
    return KEY.sub(rf"\1{HIDDEN}", QUERY.sub(rf"\1{HIDDEN}", USER.sub(rf"\1{HIDDEN}@", text)))


def redacted_tree(value: Any, name: str = "") -> Any:
    """A tree of plain values, its texts redacted; one that a key named as a secret holds is hidden as a whole."""
    if isinstance(value, str):
        return HIDDEN if value and NAME.match(name) else redacted(value)
    if isinstance(value, dict):
        return {key: redacted_tree(each, str(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted_tree(each, name) for each in value]
    return value


def without_user(address: str) -> str:
    """The address without who logs in there: a link that a browser can open, and asks for the rest."""
    return USER.sub(r"\1", address)
