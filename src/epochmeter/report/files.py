"""The files of a report: its page, its pictures, its table, and the numbers behind its words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

from epochmeter.report import pages, table
from epochmeter.report.charts.chart import Chart, to_png, to_svg
from epochmeter.report.composition import Report
from epochmeter.report.output.render import page_file
from epochmeter.report.runs.run import Run
from epochmeter.report.tell import write
from epochmeter.shared.atomic_files import lock_folder, write_atomically

PAGE_NEEDS = ("altair", "vl_convert", "pandas", "itables")
"""Packages of the extra `report`."""
PAGE, PICTURES, TABLE = "report.html", "report", "report.csv"
Texts = Callable[[], dict[str, str]]
"""Gives files by their names."""


@contextmanager
def alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Makes a folder, and holds it while within: what two reports write at once would be neither's.

    Waits for a report that holds it, after saying so; the kernel lets go of it however that ends. Raises ValueError
    where the folder cannot be made, or what is written in it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = lock_folder(folder, wait=False)
        if descriptor is None:
            say(f"Waiting for another report that is written to {folder}.")
            descriptor = lock_folder(folder)
        try:
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise ValueError(f"The report cannot be written to {folder}: {what}. Name another folder: out=...") from error


@contextmanager
def tabled(rows: Sequence[Run], title: str) -> Iterator[Texts]:
    """Has a second process make the table meanwhile, as CSV and as Markdown; what it gives waits for them."""
    with _beside(_tables, rows, title) as made:
        yield made


def leave(report: Report, tables: Texts, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Leaves a report's files in a folder, its page first where what that is made with is there, and says so if not."""
    missing = [name for name in PAGE_NEEDS if find_spec(name) is None]
    earlier = (folder / TABLE).exists()  # else the pictures and the pages that lie there are no report's
    if missing:
        say(f"No page and no pictures: {', '.join(missing)} not installed. For them: make .venv/.with-report")
        return _texts(report, tables, folder, earlier)
    page = _page(report, folder)
    texts = _texts(report, tables, folder, earlier)
    _pictures(report.charts, folder / PICTURES, earlier)
    pictures = [folder / PICTURES / f"{chart.name}.{kind}" for chart in report.charts for kind in ("png", "svg")]
    return [page, *pictures, *texts]


def _texts(report: Report, tables: Texts, folder: Path, earlier: bool) -> list[Path]:
    """The table, and each page by itself with the numbers behind it; those of an earlier report alone are gone."""
    paths = []
    for name, text in tables().items():
        paths.append(folder / name)
        write_atomically(paths[-1], _writer(text))
    for page in report.pages:
        paths += write(folder, page.name, page_file(page, report.title, report.banner, report.notes), page.values)
    if earlier:
        for left in {folder / f"{name}.{kind}" for name in pages.NAMES for kind in ("json", "md")} - {*paths}:
            left.unlink(missing_ok=True)
    return paths


def _tables(rows: Sequence[Run], title: str) -> dict[str, str]:
    return {TABLE: table.text(rows), "report.md": table.markdown(rows, title)}


def _page(report: Report, folder: Path) -> Path:
    from epochmeter.report.output.html import report_html

    runs = table.html(report.rows)
    whole = report_html(report.title, report.pages, report.charts, runs, report.notes, report.banner)
    write_atomically(folder / PAGE, _writer(whole))
    return folder / PAGE


def _pictures(charts: Sequence[Chart], folder: Path, earlier: bool) -> None:
    """Write each chart as PNG and SVG, and remove the ones that only an earlier report had."""
    folder.mkdir(parents=True, exist_ok=True)
    written = set()
    for chart in charts:
        image, drawing = folder / f"{chart.name}.png", folder / f"{chart.name}.svg"
        image.write_bytes(to_png(chart))
        drawing.write_text(to_svg(chart), encoding="utf-8")
        written |= {image, drawing}
    if earlier:
        for path in {*folder.glob("*.png"), *folder.glob("*.svg")} - written:
            path.unlink()


def _writer(text: str) -> Callable[[TextIO], object]:
    return lambda file: file.write(text)


@contextmanager
def _beside(work: Callable[..., Any], *given: object) -> Iterator[Callable[[], Any]]:
    """Has a second process do some work meanwhile; what it gives waits for what comes of that.

    That raises its OSError, or RuntimeError where it failed and said why. Left unasked, the process is ended.
    """
    with TemporaryFile("w+") as told:  # not a pipe: the process need not wait, and keep its memory, until it is asked
        process = get_context("fork").Process(target=_working, args=(told, work, *given))

        def made() -> Any:
            process.join()
            if process.exitcode:  # what it has written by then is no more than a part
                raise RuntimeError(
                    f"{work.__name__.strip('_')} cannot be made: the process that makes them ended with "
                    f"{process.exitcode}. What it said stands above; -9 says that it was killed, as for want of memory."
                )
            told.seek(0)
            result = json.load(told)
            if "error" in result:
                raise OSError(*result["error"])
            return result["made"]

        process.start()
        try:
            yield made
        finally:
            process.kill()
            process.join()


def _working(told: TextIO, work: Callable[..., Any], *given: object) -> None:
    try:
        result = {"made": work(*given)}
    except OSError as error:
        result = {"error": [error.errno, error.strerror, error.filename] if error.errno else [str(error)]}
    json.dump(result, told)
    told.flush()
