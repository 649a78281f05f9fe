"""List words of a private vocabulary in names, comments, messages and docs.

`make lint` and a test run it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = ("src/**/*.py", "benchmarks/*.py", "tests/**/*.py", "conf/**/*.yaml", "docs/**/*.md", "docs/**/*.py", "*.md")


def words(*alternatives: str) -> re.Pattern[str]:
    """Return a pattern of whole words; a call of a method such as `file.tell()` does not match."""
    return re.compile(rf"(?<![a-z.])(?:{'|'.join(alternatives)})(?![a-z])", re.IGNORECASE)


ANYWHERE = words(
    "tells?", "told", "telling", "foretells?", "foretold", "anew", "beside", "lies", "lying", "stands(?! for)",
    "steward", "errands?", "ledger", "unsaid", "of ours", "but for", "so many", "as good as",
    "what is typed",
)  # fmt: skip
"""Refused in text of any kind."""
IN_NAMES = words(
    "whole(?! number)", "turned", "asked", "said", "says", "apart", "spelled", "standing", "alike", "judged",
    "learner", "wants", "wish",
)  # fmt: skip
"""Refused as parts of names, such as `is_whole`, but not in sentences."""
ENTIRE_NAMES = {"found", "left", "known", "each", "lost", "typed"}  # refused as names, but not as parts of them


def is_private(name: str) -> bool:
    text = re.sub(r"_+|(?<=[a-z])(?=[A-Z])", " ", name)
    return name in ENTIRE_NAMES or bool(IN_NAMES.search(text) or ANYWHERE.search(text))


def names_in(tree: ast.AST, tests_only: bool) -> Iterator[tuple[int, str]]:
    """Yield line and name of each definition: functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not tests_only or node.name.startswith("test_"):
                yield node.lineno, node.name
        elif tests_only:
            continue
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr


def findings() -> list[str]:
    """Return one line `path:line: word` per word and private name; in tests, only the names of tests are checked."""
    lines = []
    for path in sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern)):
        relative, text, matches = path.relative_to(ROOT).as_posix(), path.read_text(), set()
        is_test = relative.startswith("tests/")
        if not is_test:
            for number, line in enumerate(text.splitlines(), 1):
                matches |= {(number, match.group()) for match in ANYWHERE.finditer(line.replace("_", " "))}
        if path.suffix == ".py":
            matches |= {(line, name) for line, name in names_in(ast.parse(text), is_test) if is_private(name)}
        lines += [f"{relative}:{number}: {word}" for number, word in sorted(matches)]
    return lines


if __name__ == "__main__":
    print(*findings(), sep="\n")
    sys.exit(bool(findings()))
