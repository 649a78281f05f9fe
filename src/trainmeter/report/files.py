"""The files of a report: its page, its pictures, its table, and the numbers behind its words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

from trainmeter.record import write_whole
from trainmeter.report import pages, table
from trainmeter.report.composition import Report
from trainmeter.report.figures import Chart
from trainmeter.report.tell import write

PAGE_NEEDS = ("jinja2", "pandas", "itables", "plotly", "matplotlib")
"""Packages of the extra `report`."""
PAGE, PICTURES = "report.html", "report"


def leave(report: Report, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Leaves a report's files in a folder, its page first where what that is made with is there, and says so if not."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in PAGE_NEEDS if find_spec(name) is None]
    if missing:
        say(f"No page and no pictures: {', '.join(missing)} not installed. For them: make .venv/.with-report")
        return _texts(report, folder)
    earlier = (folder / PAGE).exists()  # else the pictures that lie there are no report's
    with _beside(_pictures, report.charts, folder / PICTURES, earlier):
        texts = _texts(report, folder)
        page = _page(report, folder)
    pictures = [folder / PICTURES / f"{chart.name}.{kind}" for chart in report.charts for kind in ("png", "svg")]
    return [page, *pictures, *texts]


def _texts(report: Report, folder: Path) -> list[Path]:
    """The table, and each page by itself with the numbers behind it."""
    paths = [folder / "report.csv", folder / "report.md"]
    table.write(report.rows, paths[0])
    write_whole(paths[1], lambda file: file.write(table.markdown(report.rows, report.title)))
    for page in report.pages:
        if page.values is not None:
            text = pages.markdown(page, report.title, report.banner, report.notes)
            paths += write(folder, page.name, text, page.values)
    return paths


def _page(report: Report, folder: Path) -> Path:
    from trainmeter.report.document import html

    runs = table.html(report.rows)
    whole = html(report.title, report.pages, report.charts, runs, report.notes, report.banner)
    write_whole(folder / PAGE, lambda file: file.write(whole))
    return folder / PAGE


def _pictures(charts: Sequence[Chart], folder: Path, earlier: bool) -> None:
    """Draws the pictures; what an earlier report drew here, and this one does not, is gone."""
    from trainmeter.report.stills import draw

    drawn = set(draw(charts, folder))
    if earlier:
        for left in {*folder.glob("*.png"), *folder.glob("*.svg")} - drawn:
            left.unlink()


@contextmanager
def _beside(work: Callable[..., None], *given: object) -> Iterator[None]:
    """Has a second process do some work meanwhile; RuntimeError where that failed, after it said why."""
    process = get_context("fork").Process(target=work, args=given)
    process.start()
    try:
        yield
    finally:
        process.join()
    if process.exitcode:
        raise RuntimeError(f"{work.__name__.strip('_')} cannot be drawn: see above")
