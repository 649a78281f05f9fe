"""Keys of commands with their values, as Hydra reads them."""

import re


def quoted_override(key: str, value: str) -> str:
    """Return an override of a text, such as a path, as Hydra reads it: in quotes where it may have other meanings."""
    if re.match(r"[\w./][\w./-]*\Z", value):
        return "{}={}".format(key, value)
    # Of backslashes, Hydra reads only those before a quote as escapes.
    quoted = re.sub(r"(\\*)('|$)", lambda match: match.group(1) * 2 + match.group(2).replace("'", "\\'"), value)
    return "{}='{}'".format(key, quoted)
