"""Hooks of MkDocs: a line `<!-- generated: NAME -->` in a page is replaced by the result of the function NAME.

Pages that load something from another server are refused.
"""

import ast
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args, get_type_hints, is_typeddict

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from epochmeter.__main__ import COMMANDS  # noqa: E402
from epochmeter.config.app import commented_keys  # noqa: E402
from epochmeter.config.suggestions import CONF, entry_keys, list_choices  # noqa: E402
from epochmeter.config.validation import key_rules  # noqa: E402
from epochmeter.machine.energy_codes import EnergyCode  # noqa: E402
from epochmeter.report.output.validation import view_of  # noqa: E402
from epochmeter.results.answer_fields import AnswerFields, ChoiceFields  # noqa: E402
from epochmeter.results.next_step_rules import RULES  # noqa: E402
from epochmeter.results.step_rule import Change  # noqa: E402
from epochmeter.results.validation import STATES, UNTESTED, Validation, counts, read  # noqa: E402
from epochmeter.validation.checks import CHECKS  # noqa: E402

GROUPS = (*entry_keys("train")[0], "hydra/launcher", "hydra/sweeper")
VALIDATIONS = ROOT / "docs/validation"
TITLES = {check.name: check.title for check in CHECKS}
PRESETS = ("data_source", "experiment")  # their options set keys of the run


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the marks in a page; MkDocs calls this for each page."""
    return re.sub(r"^<!-- generated: (\w+) -->$", lambda mark: globals()[mark[1]](), markdown, flags=re.MULTILINE)


def on_post_page(output: str, **_: object) -> str:
    """Return a page unchanged, or raise ValueError if it loads something from another server."""
    if loaded := re.search(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=.?(?:https?:)?//[^>]*>", output):
        raise ValueError(f"a page loads {loaded[0]}")
    return output


def commands() -> str:
    """Return a section per command, with its docstring."""
    sections = []
    for name, (module, _) in COMMANDS.items():
        doc = ast.get_docstring(ast.parse((ROOT / f"src/epochmeter/commands/{module}.py").read_text())) or ""
        doc = re.sub(r"^(\S.*\n)(?=    )|^(    .*\n)(?=\S)", r"\1\2\n", doc, flags=re.MULTILINE)  # a block of code
        doc = re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", doc)
        sections.append(f"## `{name}`\n\n`python src/{module}.py`, if installed `epochmeter {name}`.\n\n{doc}")
    return "\n\n".join(sections)


def targets() -> str:
    """Return a table of the Makefile's targets."""
    rows = re.findall(r"^([a-z0-9-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return table(("target", "effect"), ((f"`make {name}`", effect) for name, effect in rows))


def keys() -> str:
    """Return all keys that have a comment: those of the commands, and a section per group."""
    groups = (f"## Group `{group}`\n\n{group_tables(group)}" for group in GROUPS)
    entries = sorted((path.stem for path in CONF.glob("*.yaml")), key=lambda entry: entry != "train")
    run, *others = (f"## Keys of `src/{entry}.py`\n\n{key_table(entry)}" for entry in entries)
    return "\n\n".join([run, *groups, *others])


def next_steps() -> str:
    """Return a table of the next steps that a run may print: the reason, the advice, and the changes."""
    rows = ((rule.why, rule.text, change_cell(rule.own), change_cell(rule.script)) for rule in RULES)
    return table(("why", "advice", "`train.py`", "script"), rows)


def checks() -> str:
    """Return a table of what `validate.py` compares, and what each comparison is."""
    rows = ((check.title, (check.find.__doc__ or "").strip().partition("\n")[0]) for check in CHECKS)
    return table(("line", "what is compared"), rows)


def measured_on() -> str:
    """Return a table of the machines whose validations are in docs/validation, in the order of their dates."""
    found = sorted((read(path) for path in VALIDATIONS.glob("*.json")), key=lambda each: each["validated"])
    columns = ("machine", "date, versions", *STATES, "numbers")
    return table(columns, map(validated_row, found)) if found else "No validation was sent yet."


def validated_row(document: Validation) -> tuple[str, ...]:
    """Return the row of a validation; its numbers are those of the lines that passed or failed."""
    versions, lines = document["versions"], document["lines"]
    names = ", ".join(f"{name} {versions[name]}" for name in ("epochmeter", "torch", "driver") if versions.get(name))
    of_state = counts(lines)
    view = view_of(document, TITLES)
    tested = [row for row in view.rows if row.state != UNTESTED]
    numbers = [f"{row.title}{f' ({row.subject})' if row.subject else ''} {row.value}" for row in tested]
    date = f"{document['validated'][:10]}, {names}"
    return ", ".join(view.machine), date, *(str(of_state[state]) for state in STATES), "; ".join(numbers)


def energy_codes() -> str:
    """Return a table of the codes of absent or doubtful energies."""
    rows = ((f"`{code.value}`", code.effect.value, code.meaning) for code in EnergyCode)
    return table(("code", "energy", "meaning"), rows)


def answer_fields() -> str:
    """Return a table of the fields of answer.json."""
    return fields_table(AnswerFields)


def choice_fields() -> str:
    """Return a table of the fields of a best configuration in answer.json."""
    return fields_table(ChoiceFields)


def fields_table(kind: type) -> str:
    """Return a table of the fields of a document: what each one is, or the meaning of its objects."""
    return table(("field", "content"), ((f"`{name}`", text) for name, text in field_texts(kind).items()))


def field_texts(kind: type) -> dict[str, str]:
    """Return the meaning of each field of a document, or that of its objects; empty if its name says it."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: getattr(hint, "__metadata__", ("",))[0] or object_text(hint) for name, hint in hints.items()}


def object_text(hint: object) -> str:
    """Return the first sentence about the objects in a field."""
    inner = [part for part in (hint, *get_args(hint)) if is_typeddict(part)]
    return (inner[0].__doc__ or "").strip().rstrip(".") if inner else ""


def change_cell(change: Change | None) -> str:
    """Return a change as code, with N for its value; empty without one."""
    return f"`{re.sub(r'{.*?}', 'N', change.pattern)}`" if change else ""


def key_table(entry: str) -> str:
    """Return a table of the keys in a command's file of conf/."""
    rules = key_rules(entry)
    rows = ((f"`{name}`", f"`{value}`", rules[name].allowed, effect) for name, (value, effect) in commented_keys(entry))
    return table(("key", "default", "values", "effect"), rows)


def group_tables(group: str) -> str:
    """Return a table of a group's options, with the first sentence of their comments, and one of the options' keys."""
    choices = list_choices(group)
    options = table(("option", "content"), ((f"`{choice}`", first_sentence(group, choice)) for choice in choices))
    defaults: dict[str, dict[str, list[str]]] = {}
    effects: dict[str, str] = {}
    first = entry_keys("train")[0].get(group)  # its comments are the most general ones
    for choice in sorted(choices, key=lambda choice: choice != first) if group not in PRESETS else ():
        for name, (value, effect) in commented_keys(f"{group}/{choice}"):
            defaults.setdefault(name, {}).setdefault(value, []).append(choice)
            effects[name] = effects.get(name) or effect
    rows = [(f"`{group.replace('/', '.')}.{name}`", by_choice(values, len(choices)), effects[name])
            for name, values in defaults.items() if effects[name]]  # fmt: skip
    return f"{options}\n\n{table(('key', 'default', 'effect'), rows)}" if rows else options


def by_choice(values: Mapping[str, list[str]], count: int) -> str:
    """Return the default of a key, or the defaults with the options that have them."""
    if [len(choices) for choices in values.values()] == [count]:
        return f"`{next(iter(values))}`"
    return "; ".join(f"`{value}` ({', '.join(choices)})" for value, choices in values.items())


def first_sentence(group: str, choice: str) -> str:
    """Return the first sentence of the comment at the head of an option's file."""
    head = re.match(r"(#.*\n)*", (CONF / group / f"{choice}.yaml").read_text())
    text = " ".join(line[2:] for line in (head[0] if head else "").splitlines() if "@package" not in line)
    return re.split(r"(?<=[a-z0-9)])[.:] (?=[A-Z])", text)[0].rstrip(".")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown; its last column is text."""
    lines = (head, ("---",) * len(head), *((*cells, text.replace("<", "&lt;")) for *cells, text in rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
