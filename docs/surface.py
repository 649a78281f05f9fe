"""The public surface, as docs/public.md states it: `python docs/surface.py` adds what is new to docs/surface.json.

What was removed or has another type is listed with what to do; the file keeps it, so that the tests fail. `--accept`
writes the file as the sources have it: after the minor version of a deprecation, or for what nobody can have used.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from epochmeter.__main__ import COMMANDS  # noqa: E402
from epochmeter.commands.output_fields import OutputFields  # noqa: E402
from epochmeter.config import entries  # noqa: E402
from epochmeter.config.rules import ONE_OF  # noqa: E402
from epochmeter.config.suggestions import entry_keys, list_choices, merged_defaults  # noqa: E402
from epochmeter.config.validation import flatten, format_value, key_rules  # noqa: E402
from epochmeter.results import documents  # noqa: E402
from epochmeter.results.answer_fields import AnswerFields  # noqa: E402
from epochmeter.results.metrics import METRICS  # noqa: E402
from epochmeter.results.run_info import RunInfo  # noqa: E402
from epochmeter.shared import record, renamed  # noqa: E402

FILE = ROOT / "docs/surface.json"
COMMAND = "python docs/surface.py"
PRESETS = ("data_source", "experiment")  # their options set keys of the run
GROUPS = (*entry_keys("train")[0], "hydra/launcher", "hydra/sweeper")
PRIVATE_KEYS = ("_target_", "_partial_", "defaults")
FUNCTIONS = ("make", "open", "adopt")  # keys with the arguments of a dataset's functions
PYTHON: Mapping[str, tuple[str, tuple[str, ...] | None]] = {
    "epochmeter.Meter": ("agent/meter.py", None),
    "epochmeter.Measurement": ("agent/meter.py", None),
    "epochmeter.BudgetReached": ("agent/meter.py", None),
    "epochmeter.load_runs": ("report/runs/frames.py", None),
    "epochmeter.report.runs.frames.Runs": ("report/runs/frames.py", None),
    "epochmeter.report.runs.frames.Frame": ("report/runs/frames.py", None),
    "epochmeter.report.runs.run.Run": ("report/runs/run.py", None),
    "epochmeter.integrations.lightning.EpochMeter": ("integrations/lightning.py", ("__init__",)),
    "epochmeter.integrations.transformers.EpochMeter": ("integrations/transformers.py", ("__init__",)),
    "epochmeter.power.meter.EnergyMeter": ("power/meter.py", ("__init__",)),
    "epochmeter.power.meter.NullMeter": ("power/meter.py", ("__init__",)),
    "epochmeter.power.instrument.Domain": ("power/instrument.py", None),
    "epochmeter.power.instrument.Instrument": ("power/instrument.py", None),
    "epochmeter.testing.check_meter": ("testing/meters.py", None),
    "epochmeter.testing.check_absent_meter": ("testing/meters.py", None),
    "epochmeter.testing.check_dataset": ("testing/datasets.py", None),
    "epochmeter.testing.check_adapter": ("testing/adapters.py", None),
    "epochmeter.testing.check_loader": ("testing/adapters.py", None),
    "epochmeter.testing.meters.OpenMeter": ("testing/meters.py", ("__call__",)),
    "epochmeter.testing.datasets.MakeDataset": ("testing/datasets.py", ("__call__",)),
    "epochmeter.testing.datasets.OpenDataset": ("testing/datasets.py", ("__call__",)),
    "epochmeter.testing.adapters.Adapter": ("testing/adapters.py", None),
}
"""Public name -> the file that defines it, and its public members; None: all without an underscore."""
LEAVES = {bool: "flag", int: "integer", float: "number", str: "text", NoneType: "null", Any: "any", object: "any"}
RECORD = {
    record.JOB_FILE: {"run": RunInfo},
    record.HOST_FILE: documents.Host,
    record.WINDOWS_FILE: documents.Window,
    record.PROGRESS: documents.Progress,
    record.SUMMARY_FILE: documents.Summary,
    record.COMPLETED_FILE: documents.Completion,
    record.REFERENCE_FILE: documents.Reference,
}
BINARY = {"steps.bin": record.INTERVALS, record.RANKS_FILE: record.RANK_INTERVALS, "losses.bin": ("loss",)}
SURFACE_OF_KIND = {renamed.KEY: "keys", renamed.OPTION: "options", renamed.METRIC: "metrics"}
RENAME = "Keep it, or rename it by a row of RENAMED in src/epochmeter/shared/renamed.py"
KEEP = "Keep it for one minor version, next to what replaces it, with a warning"
WHAT_TO_DO = {"keys": RENAME, "options": RENAME, "metrics": RENAME, "python": KEEP}
NEXT_TO_IT = "Keep it, because programs read it, and add a new one next to it"
"""What to do about a name that is gone, by its kind; NEXT_TO_IT: about fields and exit codes."""
Section = dict[str, str]


def surface() -> dict[str, Section]:
    """Return all public names, by kind: each with its type, default or unit."""
    return {
        "keys": dict(sorted(keys())),
        "options": dict(sorted(options())),
        "metrics": {name: metric.unit for name, metric in METRICS.items()},
        "record": dict(record_fields()),
        "documents": dict(document_fields()),
        "exit codes": dict(exit_codes()),
        "python": dict(python_names()),
    }


def keys() -> Iterator[tuple[str, str]]:
    """Yield the keys of each command's file, and those of groups, with their values and defaults."""
    for command in entries.COMMANDS:
        rules = key_rules(command)
        of_command = "" if command == "train" else f"{command}: "
        for key, default in flatten(entry_keys(command)[1]):
            allowed = rules[key].allowed if key in rules else "any value"
            yield f"{of_command}{key}", f"{allowed}; default {format_value(default)}"


def options() -> Iterator[tuple[str, str]]:
    """Yield the options of each group, with their keys and defaults; presets have none, as they set keys of the run."""
    for group in GROUPS:
        for option in list_choices(group):
            yield f"{group}={option}", "option"
            for key, default in flatten(merged_defaults(group, option)) if group not in PRESETS else ():
                if not {*PRIVATE_KEYS} & {*key.split(".")} and key.partition(".")[0] not in FUNCTIONS:
                    yield f"{group}={option} {key}", f"default {format_value(default)}"


def record_fields() -> Iterator[tuple[str, str]]:
    """Yield the fields of the files in a run folder, and the columns of binary ones."""
    for file, kind in RECORD.items():
        for path, text in fields_of(kind):
            yield f"{file}: {path}", text
    for file, columns in BINARY.items():
        for place, column in enumerate(columns):
            yield f"{file}: {column}", f"column {place} of {len(columns)}"


def document_fields() -> Iterator[tuple[str, str]]:
    """Yield the fields of the documents with a JSON Schema."""
    for name, kind in (("output", OutputFields), ("answer", AnswerFields)):
        for path, text in fields_of(kind):
            yield f"{name}: {path}", text


def fields_of(kind: Any, path: str = "", within: tuple[Any, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the fields of a type with their own types: `a.b` in an object, `a[].b` in a list, `a.*` in a mapping."""
    if path:
        yield path, type_text(kind)
    for part, place in parts_of(kind, path):
        if isinstance(part, dict):
            named = part
        elif is_object(part) and part not in within:
            declared = {field.name for field in fields(part)} if is_dataclass(part) else None
            hints = get_type_hints(part, include_extras=True)
            named = {name: hint for name, hint in hints.items() if declared is None or name in declared - {"other"}}
        else:
            continue
        for name, hint in named.items():
            yield from fields_of(hint, f"{place}.{name}" if place else name, (*within, part))


def parts_of(kind: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yield the object types within a type, each with the path to it."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from parts_of(parts[0], path)
    elif origin in (Union, UnionType):
        for part in parts:
            yield from parts_of(part, path)
    elif origin is list:
        yield from parts_of(parts[0], f"{path}[]")
    elif origin in (dict, Mapping):
        yield from parts_of(parts[1], f"{path}.*")
    else:
        yield kind, path


def type_text(kind: Any) -> str:
    """Return a type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return type_text(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(type_text, parts)))
    if origin is Literal:
        return ONE_OF + ", ".join(map(str, parts))
    if origin is list:
        return f"list of {type_text(parts[0])}"
    if origin in (dict, Mapping):
        return f"mapping to {type_text(parts[1])}"
    return LEAVES.get(kind, "object")


def is_object(kind: Any) -> bool:
    return is_typeddict(kind) or is_dataclass(kind)


def exit_codes() -> Iterator[tuple[str, str]]:
    """Yield the exit codes of each command with their meanings, as its docstring has them."""
    for name, (module, _) in COMMANDS.items():
        doc = ast.get_docstring(ast.parse((ROOT / f"src/epochmeter/commands/{module}.py").read_text())) or ""
        (text,) = re.findall(r"Exit code:(.*?)(?:\n\n|\Z)", doc, re.DOTALL)
        _, *parts = re.split(r"\b(\d+(?: \+ n)?)\b", " ".join(text.split()))
        meanings: dict[str, list[str]] = {}
        for code, meaning in zip(parts[::2], parts[1::2], strict=True):
            meanings.setdefault(code, []).append(re.split("[,;.]", meaning)[0].strip().removeprefix("if "))
        for code, texts in sorted(meanings.items()):
            yield f"{name}: {code}", "; ".join(filter(None, texts))


def python_names() -> Iterator[tuple[str, str]]:
    """Yield the public names of Python with their signatures, read from the sources."""
    for name, (file, members) in PYTHON.items():
        tree = ast.parse((ROOT / "src/epochmeter" / file).read_text())
        node = next((each for each in tree.body if getattr(each, "name", None) == name.rpartition(".")[2]), None)
        if node is None:  # `problems` names it
            continue
        if isinstance(node, ast.FunctionDef):
            yield name, signature(node)
            continue
        assert isinstance(node, ast.ClassDef)
        yield name, f"class({', '.join(map(ast.unparse, node.bases))})"
        for member in node.body:
            yield from (
                (f"{name}.{short}", text)
                for short, text in member_texts(member)
                if (short in members if members else not short.startswith("_") or short == "__init__")
            )


def member_texts(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield the name and the signature of a method, or of a field."""
    if isinstance(node, ast.FunctionDef):
        is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
        yield node.name, f"property{signature(node).partition(')')[2]}" if is_property else signature(node)
    elif isinstance(node, ast.AnnAssign):
        default = f" = {ast.unparse(node.value)}" if node.value else ""
        yield ast.unparse(node.target), ast.unparse(node.annotation) + default


def signature(node: ast.FunctionDef) -> str:
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){result}"


def problems(before: Mapping[str, Section], now: Mapping[str, Section]) -> list[str]:
    """Return what a change of the surface breaks, each with what to do; additions break nothing."""
    found = []
    for kind, names in before.items():
        for name, text in names.items():
            new = now.get(kind, {}).get(name)
            if new is None and not is_renamed(kind, name, now):
                found.append(f"{kind}: `{name}` was removed. {WHAT_TO_DO.get(kind, NEXT_TO_IT)}")
            elif new is not None and not is_compatible(kind, text, new):
                found.append(f"{kind}: `{name}` was `{text}`, and is `{new}`. Keep it, and give the new one a new name")
    return found


def is_renamed(kind: str, name: str, now: Mapping[str, Section]) -> bool:
    """Return whether a name that is gone is the old form of a rename whose new form is there."""
    plain = name.partition(" ")[0]  # an option, of which it may be a key
    for row in renamed.RENAMED + renamed.REFUSED:
        old, new = (form.replace("epoch/", f"{name.partition('/')[0]}/", 1) for form in (row.old, row.new))
        is_of_it = name in (row.old, old) or (row.kind == renamed.OPTION and plain == row.old)
        if kind == SURFACE_OF_KIND[row.kind] and is_of_it:
            return bool({row.new, new} & now[kind].keys())
    return False


def is_compatible(kind: str, before: str, now: str) -> bool:
    """Return whether what was valid is valid now, as with further words to choose from."""
    if kind == "exit codes" or before == now:  # meanings may be reworded
        return True
    if kind == "python" and before.startswith("(") and now.startswith("("):
        return accepts_as_much(before, now)
    (words, *rest), (new_words, *new_rest) = (text.split("; ") for text in (before, now))
    if not (before.startswith(ONE_OF) and now.startswith(ONE_OF)) or rest != new_rest:
        return False
    return {*words.removeprefix(ONE_OF).split(", ")} <= {*new_words.removeprefix(ONE_OF).split(", ")}


def accepts_as_much(before: str, now: str) -> bool:
    """Return whether a function with one signature accepts the calls of another one: further arguments are optional."""
    (order, named), (new_order, new_named) = parameters(before), parameters(now)
    is_kept = new_order[: len(order)] == order and all(new_named.get(name) == text for name, text in named.items())
    return is_kept and all(" = " in text for name, text in new_named.items() if name not in named)


def parameters(text: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of a signature's positional parameters, and the texts of all its parts by name."""
    (node,) = ast.parse(f"def f{text}: ...").body
    assert isinstance(node, ast.FunctionDef)
    given = node.args
    by_position = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(by_position) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    texts = {
        each.arg: ast.unparse(each) + (f" = {ast.unparse(default)}" if default else "")
        for each, default in zip([*by_position, *given.kwonlyargs], defaults, strict=True)
    }
    variable = [ast.unparse(each) for each in (given.vararg, given.kwarg) if each]
    texts["return"] = f"{variable} {ast.unparse(node.returns) if node.returns else ''}"
    return [each.arg for each in by_position], texts


def to_text(content: Mapping[str, Section]) -> str:
    """Return the text of the file: one line per name."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    now = surface()
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    broken = problems(before, now)
    if broken and "--accept" not in sys.argv[1:]:
        print(*(f"error: {problem}" for problem in broken), sep="\n", file=sys.stderr)
        print(f"  hint: if nobody can have used these: `{COMMAND} --accept`", file=sys.stderr)
        return 1
    FILE.write_text(to_text(now))
    return 0


if __name__ == "__main__":
    sys.exit(main())
