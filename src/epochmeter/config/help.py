"""What `--help` prints of an entry: its docstring, its groups with their choices, and keys as conf/ has them.

Hydra's own page takes twice as long as all else that it does, as it lists groups that nobody here asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap

from epochmeter.config.suggestions import CONF, choices, known

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
"""The keys that are listed of an entry that has too many for a page."""


def page(entry: str, doc: str) -> str:
    """The page of an entry: what it is, what can be set, and then the rest of its docstring."""
    what, _, rest = doc.partition("\n\n")
    groups, _ = known(entry)
    keys = dict(commented((CONF / f"{entry}.yaml").read_text()))
    shown = MOST_USED.get(entry, tuple(keys))
    parts = {
        "Groups (group=choice):": [(group, ", ".join(choices(group))) for group in sorted(groups)],
        f"Keys (key=value){'' if len(shown) == len(keys) else '; all of them, and those of groups: --cfg job'}:": [
            (f"{name}={keys[name][0]}", keys[name][1]) for name in shown
        ],
    }
    return "\n\n".join([what, *(f"{title}\n{listed(rows)}" for title, rows in parts.items()), rest.rstrip()])


def commented(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """The keys in a YAML's text, those below others by their dotted names, each with its value and comment."""
    above = ""
    for line in text.splitlines():
        if found := re.fullmatch(r"( *)(\w+):(?: ([^ #].*?))?(?: +# (.*))?", line):
            indent, name, value, comment = found.groups(default="")
            above = above if indent else name
            if value and above != "hydra":
                yield f"{above}.{name}" if indent else name, (value, comment)


def listed(rows: Sequence[tuple[str, str]]) -> str:
    """Two columns, the second wrapped."""
    width = max(len(first) for first, _ in rows) + 2
    table = [(first, wrap(second, COLUMNS - len(INDENT) - width) or [""]) for first, second in rows]
    lines = [f"{INDENT}{first:{width}}" + f"\n{INDENT}{'':{width}}".join(seconds) for first, seconds in table]
    return "\n".join(line.rstrip() for line in lines)
