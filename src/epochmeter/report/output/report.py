"""Print reports, and write their files: page, charts, table, texts and numbers."""

import base64
import gzip
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import ELOOP
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from epochmeter.config.installation import ROOT, with_own_commands
from epochmeter.console.plain import wrap
from epochmeter.report.analyses import failures, outcome, stalls
from epochmeter.report.analyses.best import Best, Doubt, find_best, find_doubts
from epochmeter.report.analyses.bottleneck import epoch_bottlenecks
from epochmeter.report.build import Report
from epochmeter.report.charts.changes import trace_changes
from epochmeter.report.charts.trace import module_bars, roofline
from epochmeter.report.charts.vega import Artist, Chart, javascript, missing_packages, theme
from epochmeter.report.output import table
from epochmeter.report.output.samples import Samples
from epochmeter.report.render import (
    Page,
    escape_markdown,
    markdown_file,
    page_file,
    page_markdown,
    page_part,
    page_text,
    phrase,
    print_markdown,
    render_html,
    render_macro,
    render_notes,
    sweep_pages,
    warning_markdown,
)
from epochmeter.report.runs.costs import Cost, ranked_costs
from epochmeter.report.runs.filter import select_any
from epochmeter.report.runs.load import read_sweep
from epochmeter.report.runs.run import grouped
from epochmeter.report.subject import subject_of
from epochmeter.results.documents import NextStepFields
from epochmeter.shared.atomic_files import write_atomically, write_json
from epochmeter.shared.overrides import quoted_override
from epochmeter.shared.problem import input_error
from epochmeter.shared.record import Record
from epochmeter.shared.record_files import refusal

CHARTS, TABLE = "report", "report.csv"
FIRST_PAGES = ("answer", "comparison", "targets")  # pages directly below the first chart, as those with an opening
MAX_FIRST = 3  # sentences before the first chart
REPORT_PAGES = ("answer", "comparison", "gate", "footprint", "failures")
"""Pages about the whole report. If it has no others, the terminal lists its runs."""
MAX_PRINTED = 40  # runs up to which the terminal lists them


class Section(NamedTuple):
    """A part of the HTML page that is not a chart; `text` is in Markdown, `image` the address of a picture above it."""

    name: str
    title: str
    text: str = ""
    image: str = ""
    alt: str = ""


def answer_lines(folder: Path) -> list[str]:
    """Return the answer of a sweep, why and what next, a warning if runs were disturbed, and the command of its report.

    The answer is the bottleneck if the runs are a stall experiment, else the configurations with the least time and
    the least energy.
    """
    subject = subject_of(select_any(read_sweep(folder)))
    selection, configurations = subject.selection, subject.ranked
    if not configurations:
        return _no_answer_lines(outcome.analyze(selection, failures.analyze(selection)))
    ranked = ranked_costs(configurations)
    best, doubts = find_best(ranked), find_doubts(ranked)
    verdict = _paragraph(
        "stalls.md.j2", "opening", stalls.analyze([run for run in selection.runs if not run.rehearsal])
    )
    answer = verdict or _best_sentence(ranked, best, doubts, is_partly=len(configurations) > 1)
    is_stated = len(ranked) > 1 and any(doubt.kind == "disturbed" for doubt in doubts)
    return [
        *([f"Answer:  {answer}"] if answer else []),
        *(_reason_lines(best[0], doubts) if best and not verdict else []),
        *[f"warning: {text}" for text in ([] if is_stated else render_notes("disturbed", selection.ended, True))],
        f"Report:  python src/report.py {_sweep_override(folder)}",
    ]


def _best_sentence(ranked: Sequence[Cost], best: Sequence[Best], doubts: Sequence[Doubt], *, is_partly: bool) -> str:
    """Return the configurations with the least time and energy in one line; `is_partly`: others are not ranked."""
    if len(ranked) == 1:
        return _paragraph("answer.md.j2", "only", ranked[0], is_partly)
    groups = grouped(best[:2], lambda choice: (choice.configuration, choice.scope))
    return _paragraph("answer.md.j2", "overview", [*groups.values()], doubts) if best else ""


def _reason_lines(best: Best, doubts: Sequence[Doubt]) -> list[str]:
    """Return the bottleneck of the best configuration, and the next step unless the answer states one itself."""
    lines = []
    if not any(doubt.is_decisive for doubt in doubts):
        found = epoch_bottlenecks([best.configuration])
        lines += [_paragraph("bottleneck.md.j2", "sentence", [(bottleneck, 1)]) for bottleneck in found.values()]
    has_next = doubts or (best.tie_break and not best.tie_break.is_equal)
    return lines if has_next else [*lines, *_step_lines(best.configuration.runs[0].next_steps)]


def _paragraph(template: str, macro: str, *values: object) -> str:
    """Render a macro to plain text in one line."""
    return " ".join(render_macro(template, macro, *values, is_plain=True).split())


def _no_answer_lines(ended: outcome.Outcome) -> list[str]:
    """Return why no configuration is ranked, and what to do first; nothing without runs."""
    if not ended.total:
        return []
    answer = _paragraph("answer.md.j2", "nothing", ended)
    hints = [f"Next:    {error.hint}" for error in ended.errors if error.hint]
    return [f"Answer:  none: {answer}.", *(_step_lines(ended.next_steps) or hints[:1])]


def _step_lines(steps: Sequence[NextStepFields]) -> list[str]:
    """Return the first of some next steps in a line; nothing without any, or if it is of another version."""
    return [f"Next:    {step['text']} `{step['change']}`" for step in steps[:1] if {"text", "change"} <= step.keys()]


def _sweep_override(folder: Path) -> str:
    """Return the argument that names a sweep: by its name if it is in `multirun/`, else by its path."""
    is_named = folder.absolute().parent == ROOT / "multirun"
    return shlex.quote(quoted_override("sweep", escape(folder.name if is_named else str(folder.absolute()))))


def print_report(report: Report, console: Console) -> None:
    """Print the texts of a report, its runs if it has no analyses, and notes on the runs that it leaves out."""
    print_text(console, f"{report.title}{report.about and ': '}{report.about}\n")
    print_text(console, *(f"{warning}\n" for warning in report.banner), style="bold yellow")
    for page in report.pages:
        print_page(page, console)
    if 0 < len(report.runs) <= MAX_PRINTED and all(page.name in REPORT_PAGES for page in report.pages):
        cells = table.columns_and_rows(report.runs)
        print_markdown(table.markdown(cells, is_plain=not console.is_terminal), console)
        console.print()
    print_text(console, *report.notes, style="yellow")


def print_text(console: Console, *texts: str, style: str = "") -> None:
    """Print texts, wrapped in a terminal unless they contain a link."""
    from rich.markup import escape

    for text in texts:
        text = with_own_commands(text)
        is_wrapped = console.is_terminal and "://" not in text
        for line in text.split("\n"):
            for row in wrap(line, console.width) or [""] if is_wrapped else [line]:
                console.print(escape(row), style=style, soft_wrap=True)


def print_page(page: Page, console: Console) -> None:
    """Print the text of an analysis under its title."""
    print_markdown(f"## {page.title}\n\n{page_markdown(page, is_plain=not console.is_terminal)}", console)


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Make a folder, and raise a ValueError with a hint if it cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error
        raise input_error(f"cannot write the report to {folder}: {what}", "name another folder: `out=...`") from error


def write_report(
    report: Report,
    folder: Path,
    say: Callable[..., None],
    artist: Artist | None,
    samples: Sequence[Samples] = (),
) -> list[Path]:
    """Write the files of a report, remove outdated ones, and return their paths, the page first."""
    if (folder / CHARTS).is_symlink():  # pictures in it are replaced and removed
        raise OSError(ELOOP, refusal(folder / CHARTS), str(folder / CHARTS))
    names = ["report.html", *(f"{name}.{suffix}" for name in sweep_pages() for suffix in ("json", "md", "xml"))]
    pictures = [*folder.glob(f"{CHARTS}/*.png"), *folder.glob(f"{CHARTS}/*.svg")]
    # Without an earlier report, such files are of a sweep or of a person.
    earlier = {*pictures, *(folder / name for name in names)} if (folder / TABLE).exists() else set[Path]()
    cells, written = table.columns_and_rows(report.runs), []
    if missing := missing_packages():
        say(phrase("missing_packages", names=", ".join(missing)))
    else:
        runs = table.html(report.runs, cells) if report.runs else ""
        written.append(write_text(folder / "report.html", report_html(report, runs, samples)))
    texts = [escape_markdown(report.about), table.markdown(cells).rstrip()]
    markdown = markdown_file(report.title, texts, report.banner, report.notes)
    written += [folder / TABLE, write_text(folder / "report.md", markdown)]
    write_atomically(folder / TABLE, partial(table.write_csv, report.runs))
    for page in report.pages:
        text = page_file(page, report.title, report.banner, report.notes)
        written += [folder / f"{page.name}.json", write_text(folder / f"{page.name}.md", text)]
        write_json(written[-2], _finite(page.values))
        if page.name == "gate":
            xml = render_html("gate.xml.j2", title=report.title, page=page)
            written.append(write_text(folder / "gate.xml", xml))
    if artist:
        written += artist.write(folder / CHARTS)  # drawn while the texts were written
    for path in earlier - {*written}:
        path.unlink(missing_ok=True)
    return written


def write_trace_page(page: Page, title: str, folder: Path, say: Callable[..., None], record: Record) -> list[Path]:
    """Write the text of a run's trace, and its page with charts if the packages are installed; return the files."""
    charts = [*module_bars(page.results), *roofline(record, page.results)]
    return _write_page(page, title, folder, say, charts, [])


def write_trace_changes(page: Page, title: str, folder: Path, say: Callable[..., None]) -> list[Path]:
    """Write text, numbers and page of two traces compared; return the files."""
    path = folder / f"{page.name}.json"
    write_json(path, _finite(page.values))
    return _write_page(page, title, folder, say, trace_changes(page.results), [path])


def _write_page(
    page: Page, title: str, folder: Path, say: Callable[..., None], charts: Sequence[Chart], written: list[Path]
) -> list[Path]:
    """Write the text of an analysis that is not of a sweep, and its page; return the files, the page first."""
    written = [write_text(folder / f"{page.name}.md", page_file(page, title)), *written]
    if missing := missing_packages():
        say(phrase("missing_packages", names=", ".join(missing)))
        return written
    report = Report(title, "", (), [page], charts, (), ())
    return [write_text(folder / f"{page.name}.html", report_html(report)), *written]


def report_html(report: Report, table_html: str = "", samples: Sequence[Samples] = ()) -> str:
    """Render the HTML page, one file that needs no network; everything is escaped, except the table of runs."""
    charts = report.charts
    pages = [page for page in report.pages if page_part(page, "body").strip()]  # others are in the summary only
    first_pages = [page for page in pages if page_part(page, "opening") or page.name in FIRST_PAGES]
    failures = [page for page in pages if page.name == "failures"]
    others = [page for page in pages if page not in (*first_pages, *failures)]
    first = first_sentences(report.pages)
    above = below(first, first_pages)
    pictures = [
        Section(
            f"dataset-{number}",
            phrase("dataset", dataset=of_dataset.dataset),
            str(escape_markdown(of_dataset.text)),
            of_dataset.image,
            phrase("sample_images", dataset=of_dataset.dataset),
        )
        for number, of_dataset in enumerate(samples, 1)
    ]
    runs = [Section("all-runs", phrase("all_runs"))] if table_html else []
    specs = {
        "specs": {chart.name: chart.spec for chart in charts},
        "themes": {"light": theme(), "dark": theme(is_dark=True)},
    }
    return render_html(
        "report.html.j2",
        report=report,
        summary=first,
        sections=[*charts[:1], *above, *charts[1:], *below(first, others), *pictures, *runs, *below(first, failures)],
        table=pack(table_html) if table_html else "",
        vega=pack(javascript()) if charts else "",
        specs=pack(json.dumps(specs, separators=(",", ":"))) if charts else "",
    )


def first_sentences(pages: Sequence[Page]) -> str:
    """Return the first paragraphs of a report, in Markdown: a warning, the openings of analyses, then summaries.

    The best configurations per epoch are left out if there are best configurations for quality targets, and failures if
    they are the answer.
    """
    openings = {page.name: page_part(page, "opening") for page in pages}
    left_out = "answer" if openings.get("targets") else ""
    if any(isinstance(page.results, outcome.NoAnswer) for page in pages):
        left_out = "failures"
    warnings = [warning_markdown(page) for page in pages if page.warning]
    texts = [*openings.values(), *(page_part(page, "summary") for page in pages if page.name != left_out)]
    paragraphs = [paragraph for text in texts for paragraph in paragraphs_of(text)]
    return "\n\n".join([*warnings[:1], *paragraphs[:MAX_FIRST]])


def below(first: str, pages: Iterable[Page]) -> list[Section]:
    """Return the sections of analyses, without the paragraphs that the first sentences of the page have already.

    The warning of an analysis stays with its text.
    """
    shown = set(paragraphs_of(first))
    sections = list[Section]()
    for page in pages:
        warning, paragraphs = paragraphs_of(warning_markdown(page)), paragraphs_of(page_text(page))
        rest = [text for text in paragraphs if text not in shown]
        title = page.title if len(rest) == len(paragraphs) else page.rest_title
        sections += [Section(page.name, title, "\n\n".join([*warning, *rest]))] if rest else []
    return sections


def paragraphs_of(text: str) -> list[str]:
    """Return the paragraphs of a Markdown text."""
    return [paragraph.strip() for paragraph in text.split("\n\n") if paragraph.strip()]


def pack(text: str) -> str:
    """Compress a text for the page to unpack; the result has no characters that mean anything in HTML."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _finite(values: Any) -> Any:
    """Return values for JSON, which has no numbers that are not finite."""
    return json.loads(json.dumps(values), parse_constant=lambda _: None)


def write_text(path: Path, text: str) -> Path:
    """Write a file, and return its path."""
    write_atomically(path, lambda file: file.write(text))
    return path
