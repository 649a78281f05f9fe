"""Golden files: the text of each analysis and the rows of charts, which a person has read and approved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from epochmeter.report.render import Page, page_markdown, sweep_pages
from epochmeter.results.quantities import NO_BREAK

FOLDER = Path(__file__).parent / "report" / "golden"
HINT = "read the text; if it is correct, run the tests with UPDATE_GOLDEN=1 to write it"


def assert_golden(name: str, results: object, case: str = "", *, with_tables: bool = True) -> None:
    """Compare the text of an analysis with its golden file, or write the file if UPDATE_GOLDEN=1 is set.

    `name` is that of its template, and `case` what the file shows: `scaling` and `one_device` -> scaling_one_device.md.
    `with_tables=False` leaves out the tables, for files with many cases.
    """
    assert results is not None
    page = Page(name, results)
    title = page.title if name in sweep_pages() else name.replace("_", " ").capitalize()
    text = f"# {title}\n\n{page_markdown(page).replace(NO_BREAK, ' ')}"
    if not with_tables:
        text = re.sub(r"[^\n]*:\n\n(\|.*\n)+\n?", "", text)
    assert_text(FOLDER / f"{'_'.join(filter(None, [name, case]))}.md", text)


def assert_text(path: Path, text: str, hint: str = HINT) -> None:
    """Compare a text with a golden file, or write the file if UPDATE_GOLDEN=1 is set."""
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing: {hint}"
    assert text == path.read_text(encoding="utf-8"), hint


def json_line(values: Mapping[str, object]) -> str:
    """Return values as JSON, with six digits of each number."""
    rounded = {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in values.items()}
    return json.dumps(rounded)
