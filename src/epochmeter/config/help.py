"""The help page of a command: its docstring, its groups with their options, and its keys with their comments in conf/.

Hydra's own help page takes twice as long, has no comments, and lists groups that are not used here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap

from epochmeter.config.suggestions import CONF, entry_keys, list_choices

COLUMNS = 100
INDENT = "  "


def help_page(entry: str, doc: str) -> str:
    """Return the help page of a command; the first paragraph of its docstring begins the page, the others end it."""
    summary, _, rest = doc.partition("\n\n")
    groups, _ = entry_keys(entry)
    choices = [(group, ", ".join(list_choices(group))) for group in sorted(groups)]
    keys = [(f"{name}={value}", comment) for name, (value, comment) in commented_keys(entry)]
    parts = [summary, f"Groups (group=option):\n{two_columns(choices)}", f"Keys (key=value):\n{two_columns(keys)}"]
    return "\n\n".join([*parts, rest.rstrip()])


def commented_keys(entry: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the keys of a command by dotted names, each with its value and comment in conf/."""
    section = section_comment = ""
    for line in (CONF / f"{entry}.yaml").read_text().splitlines():
        if match := re.fullmatch(r"( *)(\w+):(?: ([^ #].*?))?(?: +# (.*))?", line):
            indent, name, value, comment = match.groups(default="")
            if not indent:
                section, section_comment = name, comment
            if value and section != "hydra":
                yield f"{section}.{name}" if indent else name, (value, comment or section_comment)


def two_columns(rows: Sequence[tuple[str, str]]) -> str:
    """Return two columns, the second one wrapped."""
    width = max(len(first) for first, _ in rows) + 2
    table = [(first, wrap(second, COLUMNS - len(INDENT) - width) or [""]) for first, second in rows]
    lines = [f"{INDENT}{first:{width}}" + f"\n{INDENT}{'':{width}}".join(wrapped) for first, wrapped in table]
    return "\n".join(line.rstrip() for line in lines)
