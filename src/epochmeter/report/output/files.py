"""Write the files of a report: HTML page, charts, table, and the texts and numbers of the analyses."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from epochmeter.report.build import Report
from epochmeter.report.charts.trace import module_bars, roofline
from epochmeter.report.charts.vega import Artist, javascript, missing_packages, theme
from epochmeter.report.output import table
from epochmeter.report.render import (
    SWEEP_PAGES,
    Page,
    escape_markdown,
    page_file,
    page_part,
    phrase,
    render_html,
    render_notes,
)
from epochmeter.shared.atomic_files import write_atomically, write_json
from epochmeter.shared.record import Record

CHARTS, TABLE = "report", "report.csv"
FIRST_PAGES = ("answer", "gate", "comparison", "targets")  # pages directly below the first chart
MAX_FIRST = 3  # sentences before the first chart


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Make a folder, and raise a ValueError with a hint if it cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise ValueError(
            f"cannot write the report to {folder}: {what}\n  hint: name another folder: `out=...`"
        ) from error


def write_report(report: Report, folder: Path, say: Callable[[str], None], artist: Artist | None) -> list[Path]:
    """Write the files of a report, and remove those that only an earlier report had; return them, the page first.

    `artist` is drawing the charts; without it, there is no page either.
    """
    names = [f"{name}.{suffix}" for name in SWEEP_PAGES for suffix in ("json", "md", "xml")]
    pictures = [*folder.glob(f"{CHARTS}/*.png"), *folder.glob(f"{CHARTS}/*.svg")]
    # Without an earlier report, such files are of a sweep or of a person.
    earlier = {*pictures, *(folder / name for name in names)} if (folder / TABLE).exists() else set[Path]()
    cells, written = table.columns_and_rows(report.rows), []
    if not _lacks_packages(say):
        runs = table.html(report.rows, cells) if report.rows else ""
        written.append(_write_text(folder / "report.html", report_html(report, runs)))
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
        written += artist.write(folder / CHARTS)  # drawn while the texts were written
    for path in earlier - {*written}:
        path.unlink(missing_ok=True)
    return written


def write_trace_page(page: Page, title: str, folder: Path, say: Callable[[str], None], record: Record) -> list[Path]:
    """Write the text of a run's trace, and its page with charts if the packages are installed; return the files."""
    written = [_write_text(folder / f"{page.name}.md", page_file(page, title))]
    if _lacks_packages(say):
        return written
    report = Report(title, (), [page], [*module_bars(page.results), *roofline(record, page.results)], (), ())
    return [_write_text(folder / f"{page.name}.html", report_html(report)), *written]


def write_page(folder: Path, page: Page, markdown: str) -> list[Path]:
    """Write the text and the numbers of an analysis, each completely or not at all."""
    paths = [_write_text(folder / f"{page.name}.md", markdown)]
    if (values := page.values) is not None:
        write_json(folder / f"{page.name}.json", _finite(values))
        paths.insert(0, folder / f"{page.name}.json")
    return paths


def report_html(report: Report, table_html: str = "") -> str:
    """Render the HTML page, one file that needs no network; everything is escaped, except the table of runs."""
    pages, charts = report.pages, report.charts
    first_pages = [page for page in pages if page.name in FIRST_PAGES]
    last_pages = [page for page in pages if page.name == "failures"]  # below the table of runs
    other_pages = [page for page in pages if page not in (*first_pages, *last_pages)]
    specs = {
        "specs": {chart.name: chart.spec for chart in charts},
        "themes": {"light": theme(), "dark": theme(is_dark=True)},
    }
    return render_html(
        "report.html.j2",
        report=report,
        summary=_first_sentences(pages),
        headings={page.name: phrase(page.name) for page in pages} | {chart.name: chart.title for chart in charts},
        part=page_part,
        sections=[*charts[:1], *first_pages, *charts[1:], *other_pages],
        last_sections=last_pages,
        all_runs=phrase("all_runs"),
        table=pack(table_html) if table_html else "",
        vega=pack(javascript()) if charts else "",
        specs=pack(json.dumps(specs, separators=(",", ":"))) if charts else "",
    )


def _first_sentences(pages: Sequence[Page]) -> str:
    """Return the first paragraphs of the page: the openings of analyses, then summaries.

    The pages of `FIRST_PAGES` are summarized, or without them the first page, such as the failures. The best
    configurations per epoch are left out if there are best configurations for quality targets.
    """
    openings = {page.name: page_part(page, "opening") for page in pages}
    summarized = [page for page in pages if page.name in FIRST_PAGES] or pages[:1]
    left_out = "answer" if openings.get("targets") else ""
    texts = [*openings.values(), *(page_part(page, "summary") for page in summarized if page.name != left_out)]
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n") if paragraph.strip()]
    return "\n\n".join(paragraphs[:MAX_FIRST])


def pack(text: str) -> str:
    """Compress a text for the page to unpack; the result has no characters that mean anything in HTML."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _lacks_packages(say: Callable[[str], None]) -> bool:
    notes = render_notes("missing_packages", missing_packages())
    for note in notes:
        say(note)
    return bool(notes)


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, which JSON can hold."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_text(path: Path, text: str) -> Path:
    write_atomically(path, lambda file: file.write(text))
    return path
