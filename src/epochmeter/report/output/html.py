"""The HTML page of a report: one file that needs no network."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence

from epochmeter.report.charts.vega import Chart, javascript, theme
from epochmeter.report.pages import Page
from epochmeter.report.render import page_part, phrase, render_html

FIRST_PAGES = ("answer", "gate", "comparison", "targets")
"""Pages directly below the first chart."""
MAX_FIRST = 3
"""Sentences before the first chart."""
LAST_PAGES = ("failures", "differences")
"""Pages below the table of runs."""


def report_html(
    title: str,
    pages: Sequence[Page],
    charts: Sequence[Chart],
    table_html: str,
    notes: Sequence[str] = (),
    banner: Sequence[str] = (),
) -> str:
    """Render the page: banner, summary, first chart, answer, other charts, analyses, the table of runs, and notes.

    Everything is escaped, except the table of runs.
    """
    first_pages = [page for page in pages if page.name in FIRST_PAGES]
    last_pages = [page for page in pages if page.name in LAST_PAGES]
    other_pages = [page for page in pages if page not in (*first_pages, *last_pages)]
    specs = {
        "specs": {chart.name: chart.spec for chart in charts},
        "themes": {"light": theme(), "dark": theme(is_dark=True)},
    }
    return render_html(
        "report.html.j2",
        title=title,
        banner=banner,
        notes=notes,
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
