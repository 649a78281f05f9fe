"""The help page of a command: its docstring, its groups with their options, and its keys with their comments in conf/.

Hydra's own help page takes twice as long as composing a configuration, and lists groups that are not used here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap

from epochmeter.config.suggestions import CONF, entry_keys, list_choices

COLUMNS = 100
INDENT = "  "
MOST_USED = {
    "train": (
        *("batch", "epochs", "seed", "repeat", "workers", "prefetch", "power_limit", "clocks", "fan", "cache"),
        *("precision", "compile", "timing", "warmup_epochs", "evaluate", "target_accuracy", "target_loss"),
        *("checkpoint.every", "rehearse", "save_model", "sweep.again", "sweep.sample"),
        *("sweep.repeats", "sweep.order", "sweep.max_failures", "sweep.timeout_s"),
    )
}
"""Keys on the help page of a command that has too many keys for one page."""


def help_page(entry: str, doc: str) -> str:
    """Return the help page of a command.

    Args:
        entry: Name of the command, and of its file in conf/.
        doc: The command's docstring; its first paragraph begins the page, the others end it.
    """
    summary, _, rest = doc.partition("\n\n")
    groups, _ = entry_keys(entry)
    keys = dict(commented_keys((CONF / f"{entry}.yaml").read_text()))
    shown = MOST_USED.get(entry, tuple(keys))
    title = "Keys (key=value):"
    if len(shown) < len(keys):
        title = f"Most used keys (key=value); for all keys: python src/{entry}.py --cfg job"
    parts = {
        "Groups (group=option):": [(group, ", ".join(list_choices(group))) for group in sorted(groups)],
        title: [(f"{name}={keys[name][0]}", keys[name][1]) for name in shown],
    }
    return "\n\n".join(
        [summary, *(f"{heading}\n{two_columns(rows)}" for heading, rows in parts.items()), rest.rstrip()]
    )


def commented_keys(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the keys in the text of a YAML file, by dotted names, each with its value and comment."""
    section = ""
    for line in text.splitlines():
        if match := re.fullmatch(r"( *)(\w+):(?: ([^ #].*?))?(?: +# (.*))?", line):
            indent, name, value, comment = match.groups(default="")
            section = section if indent else name
            if value and section != "hydra":
                yield f"{section}.{name}" if indent else name, (value, comment)


def two_columns(rows: Sequence[tuple[str, str]]) -> str:
    """Return two columns, the second one wrapped."""
    width = max(len(first) for first, _ in rows) + 2
    table = [(first, wrap(second, COLUMNS - len(INDENT) - width) or [""]) for first, second in rows]
    lines = [f"{INDENT}{first:{width}}" + f"\n{INDENT}{'':{width}}".join(wrapped) for first, wrapped in table]
    return "\n".join(line.rstrip() for line in lines)
