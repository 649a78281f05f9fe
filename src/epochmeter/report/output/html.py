"""The HTML page of a report: one file that needs no network."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence

from epochmeter.report.charts.vega import Chart, javascript, theme
from epochmeter.report.output.render import page_body, page_opening, page_summary, render_html
from epochmeter.report.pages import Page

FIRST_PAGES = ("answer", "gate", "comparison")
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
    other_pages = [page for page in pages if page.name not in (*FIRST_PAGES, *LAST_PAGES)]
    specs = {
        "specs": {chart.name: chart.spec for chart in charts},
        "themes": {"light": theme(), "dark": theme(is_dark=True)},
    }
    shown = [chart for chart in charts if not chart.is_folded]
    runs = [{"name": "all-runs", "title": "All runs"}] if table_html else []
    return render_html(
        "report.html.j2",
        title=title,
        banner=banner,
        notes=notes,
        summary=_first_sentences(pages),
        body=page_body,
        contents=[*shown[:1], *first_pages, *shown[1:], *other_pages, *runs, *last_pages],
        first_charts=charts[:1],
        charts=charts[1:],
        first_pages=first_pages,
        pages=other_pages,
        last_pages=last_pages,
        table=pack(table_html) if table_html else "",
        vega=pack(javascript()) if charts else "",
        specs=pack(json.dumps(specs, separators=(",", ":"))) if charts else "",
    )


def _first_sentences(pages: Sequence[Page]) -> str:
    """Return the first paragraphs of the page: the openings of analyses, then the summaries of `FIRST_PAGES`."""
    texts = [*map(page_opening, pages), *(page_summary(page) for page in pages if page.name in FIRST_PAGES)]
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n") if paragraph.strip()]
    return "\n\n".join(paragraphs[:MAX_FIRST])


def pack(text: str) -> str:
    """Compress a text for the page to unpack; the result has no characters that mean anything in HTML."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
