"""The files of a report: its page, its pictures, its table, and the numbers behind its words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from trainmeter.record import write_whole
from trainmeter.report import pages, table
from trainmeter.report.composition import Report
from trainmeter.report.pages import Page
from trainmeter.report.tell import write

PAGE_NEEDS = ("jinja2", "pandas", "itables", "plotly", "matplotlib")
"""Packages of the extra `report`."""


def leave(report: Report, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Leaves a report's files in a folder, its page first where what that is made with is there, and says so if not.

    What an earlier report drew there and this one does not is gone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for page in report.pages if page.values is not None for path in _numbers(report, page, folder)]
    table.write(report.rows, folder / "report.csv")
    write_whole(folder / "report.md", lambda file: file.write(table.markdown(report.rows, report.title)))
    written = [folder / "report.csv", folder / "report.md", *written]
    missing = [name for name in PAGE_NEEDS if find_spec(name) is None]
    if missing:
        say(f"No page and no pictures: {', '.join(missing)} are not installed. For them: pip install '.[report]'")
        return written
    return [*_drawn(report, folder), *written]


def _drawn(report: Report, folder: Path) -> list[Path]:
    from trainmeter.report import document, stills

    whole = document.html(
        report.title, report.pages, report.charts, table.html(report.rows), report.notes, report.banner
    )
    page, pictures = folder / "report.html", folder / "report"
    if page.exists():  # else the pictures there are not ours
        for left in [*pictures.glob("*.png"), *pictures.glob("*.svg")]:
            left.unlink()
    write_whole(page, lambda file: file.write(whole))
    return [page, *(stills.draw(report.charts, pictures) if report.charts else [])]


def _numbers(report: Report, page: Page, folder: Path) -> Sequence[Path]:
    return write(folder, page.name, pages.markdown(page, report.title, report.banner, report.notes), page.values)
