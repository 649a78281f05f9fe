"""Write the files of a report: HTML page, charts, table, and the texts and numbers of the analyses."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochmeter.report.charts.draw import Artist, missing_packages
from epochmeter.report.output import table
from epochmeter.report.pages import SWEEP_PAGES, Page
from epochmeter.report.render import escape_markdown, page_file, render_html, render_notes
from epochmeter.shared.atomic_files import lock_folder, write_atomically, write_json
from epochmeter.shared.record import Record

if TYPE_CHECKING:
    from epochmeter.report.build import Report

CHARTS, TABLE = "report", "report.csv"


@contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Make a folder and hold its lock, so that two reports cannot mix their files; call `say` before waiting for it.

    Raises:
        ValueError: The folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = lock_folder(folder, wait=False)
        if descriptor is None:
            say(*render_notes("waiting", folder))
            descriptor = lock_folder(folder)
        try:
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise ValueError(
            f"cannot write the report to {folder}: {what}\n  hint: name another folder: `out=...`"
        ) from error


def write_report(report: Report, folder: Path, say: Callable[[str], None], artist: Artist | None = None) -> list[Path]:
    """Write the files of a report, and remove those that only an earlier report had; return them, the page first.

    If `artist` is given, it is drawing the charts already.
    """
    names = [f"{name}.{suffix}" for name in SWEEP_PAGES for suffix in ("json", "md", "xml")]
    pictures = [*folder.glob(f"{CHARTS}/*.png"), *folder.glob(f"{CHARTS}/*.svg")]
    # Without an earlier report, such files are of a sweep or of a person.
    earlier = {*pictures, *(folder / name for name in names)} if (folder / TABLE).exists() else set[Path]()
    if not _lacks_packages(say) and artist is None:
        artist = Artist()
        artist.draw(report.charts)
    cells = table.columns_and_rows(report.rows)
    written = [_write_text(folder / "report.html", _html(report, cells))] if artist else []
    markdown = f"# {escape_markdown(report.title)}\n\n{table.markdown(cells)}"
    written += [folder / TABLE, _write_text(folder / "report.md", markdown)]
    write_atomically(folder / TABLE, partial(table.write_csv, report.rows))
    for page in report.pages:
        written += write_page(folder, page, page_file(page, report.title, report.banner, report.notes))
        if page.name == "gate":
            xml = render_html("gate.xml.j2", title=report.title, checks=page.results)
            written.append(_write_text(folder / "gate.xml", xml))
    if artist:
        (folder / CHARTS).mkdir(exist_ok=True)
        artist.write(folder / CHARTS)  # drawn while the texts were written
        images = [f"{chart.name}.{suffix}" for chart in report.charts for suffix in ("png", "svg")]
        written += [folder / CHARTS / image for image in images]
    for path in earlier - {*written}:
        path.unlink(missing_ok=True)
    return written


def write_trace_page(page: Page, title: str, folder: Path, say: Callable[[str], None], record: Record) -> list[Path]:
    """Write the text of a run's trace, and its page with charts if the packages are installed; return the files."""
    written = [_write_text(folder / f"{page.name}.md", page_file(page, title))]
    if _lacks_packages(say):
        return written
    from epochmeter.report.charts.trace import module_bars, roofline
    from epochmeter.report.output.html import report_html

    charts = [*module_bars(page.results), *roofline(record, page.results)]
    return [_write_text(folder / f"{page.name}.html", report_html(title, [page], charts, "")), *written]


def write_page(folder: Path, page: Page, markdown: str) -> list[Path]:
    """Write the text and the numbers of an analysis, each completely or not at all."""
    paths = [_write_text(folder / f"{page.name}.md", markdown)]
    if (values := page.values) is not None:
        write_json(folder / f"{page.name}.json", _finite(values))
        paths.insert(0, folder / f"{page.name}.json")
    return paths


def _lacks_packages(say: Callable[[str], None]) -> bool:
    missing = missing_packages()
    for note in render_notes("missing_packages", missing):
        say(note)
    return bool(missing)


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, which JSON can hold."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _html(report: Report, cells: table.Cells) -> str:
    from epochmeter.report.output.html import report_html

    runs = table.html(report.rows, cells) if report.rows else ""
    return report_html(report.title, report.pages, report.charts, runs, report.notes, report.banner)


def _write_text(path: Path, text: str) -> Path:
    write_atomically(path, lambda file: file.write(text))
    return path
