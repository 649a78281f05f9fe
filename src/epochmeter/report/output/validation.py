"""The validation of a machine as a table in the terminal, as Markdown and as a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epochmeter.report.build import Report
from epochmeter.report.charts.vega import missing_packages
from epochmeter.report.output.report import print_page, print_text, report_html, write_text
from epochmeter.report.render import Page, page_file
from epochmeter.results.quantities import ABSENT, quantity
from epochmeter.results.validation import FAILED, PASSED, UNTESTED, Line, Validation, counts

if TYPE_CHECKING:
    from rich.console import Console

PAGE = "validation"


@dataclass(frozen=True)
class Row:
    """A line as texts."""

    title: str
    subject: str
    value: str
    bound: str
    state: str
    why: str
    hint: str


@dataclass(frozen=True)
class Reasons:
    """Lines with the same reason."""

    why: str
    hint: str
    titles: list[str]


@dataclass(frozen=True)
class View:
    """What the page shows of a validation."""

    document: Validation
    rows: list[Row]

    @property
    def tested(self) -> list[Row]:
        """The rows with a value."""
        return [row for row in self.rows if row.value != ABSENT or row.state != UNTESTED]

    @property
    def failed(self) -> list[Row]:
        """The rows that failed."""
        return [row for row in self.rows if row.state == FAILED]

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows by state."""
        return counts(self.document["lines"])

    @property
    def passed(self) -> int:
        """The number of rows that passed."""
        return self.counts[PASSED]

    @property
    def untested(self) -> list[Reasons]:
        """What cannot be tested, by reason."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.state == UNTESTED:
                titles = found.setdefault((row.why, row.hint), [])
                titles += [row.title] if row.title not in titles else []
        return [Reasons(why, hint, titles) for (why, hint), titles in found.items()]

    @property
    def machine(self) -> list[str]:
        """What the machine is."""
        machine = self.document["machine"]
        parts = [machine.get("board"), *machine.get("gpus", [])]
        if machine.get("cpu"):
            parts.append(f"{machine['cpu']}, {cores} cores" if (cores := machine.get("cores")) else str(machine["cpu"]))
        return [part for part in parts if part]

    @property
    def versions(self) -> list[str]:
        """The versions with which the lines hold."""
        return [f"{name} {value}" for name, value in self.document["versions"].items() if value]

    @property
    def values(self) -> Validation:
        """The numbers."""
        return self.document


def view_of(document: Validation, titles: dict[str, str]) -> View:
    """Return what is shown of a validation; `titles` are those of the checks by name."""
    return View(document, [row_of(line, titles.get(line["check"], line["check"])) for line in document["lines"]])


def row_of(line: Line, title: str) -> Row:
    """Return a line as texts; value and bound have the same unit and digits."""
    value, (low, high), unit = line["value"], line["bound"], line["unit"]
    largest = max((abs(each) for each in (value, low, high) if each is not None), default=0.0) or None
    shown, least, most = (quantity(each, unit, largest) for each in (value, low, high))
    bound = {(True, True): "", (False, True): f"≥ {least}", (True, False): f"≤ {most}"}
    text = bound.get((low is None, high is None), f"{least} to {most}")
    return Row(
        title, line["subject"], shown if value is not None else ABSENT, text, line["state"], line["why"], line["hint"]
    )


def write_validation(document: Validation, folder: Path, titles: dict[str, str]) -> list[Path]:
    """Write the Markdown of a validation, and its page if the packages are installed; return the files."""
    view = view_of(document, titles)
    page = Page(PAGE, view)
    written = [write_text(folder / f"{PAGE}.md", page_file(page, document["validated"][:10]))]
    if not missing_packages():
        report = Report(", ".join(view.machine), document["validated"][:10], (), [page], (), (), ())
        written.insert(0, write_text(folder / f"{PAGE}.html", report_html(report)))
    return written


def print_validation(document: Validation, written: Sequence[Path], titles: dict[str, str], console: "Console") -> None:
    """Print the lines of a validation, and where its files are."""
    print_page(Page(PAGE, view_of(document, titles)), console)
    print_text(console, *(str(path) for path in written))
