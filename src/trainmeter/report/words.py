"""What an analysis says, as sentences and tables: for a terminal, for a page, and for machines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainmeter.report.estimates import Estimate
from trainmeter.report.rows import Sweep
from trainmeter.report.stalls import (
    COMPUTE,
    CONDITIONS,
    FROM_STORAGE,
    MATTERS,
    PREPROCESSING,
    STORAGE,
    UNDECIDED,
    Analysis,
    Incomplete,
    Prediction,
    Verdict,
)

if TYPE_CHECKING:
    from rich.console import Console

ABSENT = "-"
WHAT_TO_RUN = "python src/train.py -m experiment=stalls model=... dataset=..."
SUPPLIES = {"tensors": "ready tensors", "warm": "all in the page cache", "cold": "none in the page cache"}
PLAIN = {"e2e s": "e2e_s", "stall s": "fetch_stall_s", "compute s": "compute_s", "energy J": "energy_j",
         "samples/s": "samples_per_s"}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A table as texts: a title, its columns, its rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def answer(told: Analysis) -> str:
    """The first line: what bounds the job, and what of an epoch waits for what."""
    epoch = told.times_s[FROM_STORAGE].value
    if told.lives_in_memory:
        waits = f"of {seconds(epoch)} an epoch, {interval(told.preprocessing, epoch)} wait for preprocessing"
        return f"{told.title}: {bound(told.verdict)}: {waits}. The dataset lives in memory: storage plays no part."
    waits = (
        f"of {seconds(epoch)} an epoch, {interval(told.fetch, epoch)} wait for storage, "
        f"{interval(told.preprocessing, epoch)} for preprocessing"
    )
    return f"{told.title}: {bound(told.verdict)}: {waits}."


def sentences(told: Analysis) -> list[str]:
    """All that is said of an analysis beside its tables, the answer first."""
    said = [answer(told)]
    if told.verdict.why:
        said.append(undecided(told.verdict))
    if told.conditions and not told.lives_in_memory:
        said.append(f"That holds on condition: {'; '.join(told.conditions)}.")
    if not told.lives_in_memory:
        why = (
            f" ({undecided(told.in_memory).rstrip('.')})" if told.in_memory.why not in (None, told.verdict.why) else ""
        )
        said.append(f"With the dataset in memory: {told.in_memory.bound}{why}.")
    helps = best(told)
    if helps:
        said.append(helps)
    said += [f"{note[0].upper()}{note[1:]}." for note in told.notes]
    if told.energy.reason:
        said.append(f"No energy of the stalls: {told.energy.reason.rstrip('.')}.")
    elif told.energy.fetch and told.energy.preprocessing:
        joules = told.energy.cold_j or 0.0
        fetch = "" if told.lives_in_memory else f"{interval(told.energy.fetch, joules, unit='J')} for storage, "
        said.append(
            f"Energy ({told.energy.covers}): of {number(joules, joules)} J an epoch, {fetch}"
            f"{interval(told.energy.preprocessing, joules, unit='J')} for preprocessing."
        )
    return said


def bound(verdict: Verdict) -> str:
    return "undecided what bounds it" if verdict.bound == UNDECIDED else verdict.bound


def undecided(verdict: Verdict) -> str:
    if verdict.bound != UNDECIDED:
        return ""
    more = f"; about {verdict.repeats} repeats of each would tell" if verdict.repeats else ""
    return f"Undecided: {verdict.why}{more}."


def best(told: Analysis) -> str | None:
    """What would help most of all that was asked; None where the verdict does not allow for one."""
    if told.verdict.bound == UNDECIDED:
        return None
    epoch = told.times_s[FROM_STORAGE].value
    wanted: tuple[str, ...] = {STORAGE: ("storage", "in memory"), PREPROCESSING: ("workers",)}.get(
        told.verdict.bound, ()
    )
    if told.rates.workers == 0:
        wanted = (*wanted, "workers")  # without any, nothing overlaps
    asked = [prediction for prediction in told.predictions if prediction.question in wanted]
    if told.verdict.bound == COMPUTE:
        return "Neither storage nor more loader processes would help: a faster device or a smaller model would."
    if not asked:
        return None
    first = min(asked, key=lambda prediction: prediction.epoch_s)
    if first.epoch_s > (1 - MATTERS) * epoch:
        if told.verdict.bound == PREPROCESSING:
            return (
                "More loader processes would not help, as the host has no more cores: "
                "less preprocessing would, such as images kept at the size that they are trained at."
            )
        return "Of what was asked, nothing would help."
    # Of all that help as much, the least that is asked for.
    least = next(other for other in asked if other.epoch_s <= first.epoch_s * 1.005)
    said = f"Most would help: {_choice(least)}, for {_predicted(least)} s an epoch in place of {seconds(epoch)}."
    if told.verdict.bound == STORAGE and told.full_cache_share is not None and 0 < told.full_cache_share < 1:
        said += f" No fetch stall is left from {100 * told.full_cache_share:.0f} % of the dataset in memory on."
    return said


def grids(told: Analysis) -> list[Grid]:
    """The tables of an analysis."""
    return [_times(told), _definitions(told), _what_if(told)]


def _times(told: Analysis) -> Grid:
    joules = {"tensors": told.energy.tensors_j, "warm": told.energy.warm_j, "cold": told.energy.cold_j}
    epoch = told.times_s[FROM_STORAGE].value
    rows = []
    for name in CONDITIONS:
        runs = ", ".join(map(str, told.numbers[name]))
        rows.append([name, SUPPLIES[name], runs, spread(told.times_s[name], epoch), number(joules[name])])
    return Grid("Epochs", ["supply", "samples come from", "runs", "s an epoch (95 %)", "J"], rows)


def _definitions(told: Analysis) -> Grid:
    rows = []
    for name, agreement in {"cold": told.cold, "warm": told.warm}.items():
        values = (agreement.measured_s, agreement.model_s, agreement.differential_s)
        largest = max(abs(value) for value in values if value is not None)
        rows.append([name, *(number(value, largest) for value in values)])
    columns = ["runs", "measured", "model", "differential"]
    return Grid("Stall of an epoch by its three definitions, s (preprocessing included)", columns, rows)


def _what_if(told: Analysis) -> Grid:
    rows = []
    for asked in told.predictions:
        now = asked.question == "workers" and asked.choice == str(told.rates.workers)
        rows.append(
            [asked.question, asked.choice + (" (now)" if now else ""), _predicted(asked), number(asked.energy_j)]
        )
    return Grid("What if (predicted)", ["what", "how much", "s an epoch", "J"], rows)


def incomplete(told: Incomplete) -> str:
    """What a stall analysis lacks, and what to run."""
    missing = ", ".join(told.missing)
    return f"{told.title}: no stall analysis: no whole run of supply={missing}. Run: {WHAT_TO_RUN}"


def plain(sweep: Sweep) -> Grid:
    """The runs of a sweep that is no stall experiment."""
    varied = sweep.varied()
    rows = []
    for row in sweep.rows:
        cells = [number(row.steady(name)) for name in PLAIN.values()]
        state = "rehearsal" if row.left_out and row.left_out.startswith("a rehearsal") else row.state
        rows.append([str(row.number), *(row.keys.get(key, "") for key in varied), state, *cells])
    rows += [[name, *("" for _ in varied), "unreadable", *(ABSENT for _ in PLAIN)] for name in sweep.unreadable]
    return Grid("Runs, means of their steady epochs", ["run", *varied, "state", *PLAIN], rows)


def plain_values(told: Iterable[Any]) -> list[dict[str, Any]]:
    """All numbers, as JSON holds them: what is not known, or without limit, is null."""
    return [finite(asdict(analysis)) for analysis in told]


def show_grid(grid: Grid, console: Console) -> None:
    """Prints a table; one that is wider than the terminal runs on, and no number is cut short."""
    from rich.markup import escape
    from rich.table import Table

    say(console, grid.title, "bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(grid.columns):
        numbers = any(cells[index][:1].isdecimal() for cells in grid.rows)
        table.add_column(escape(column), justify="right" if numbers else "left", no_wrap=True)
    for cells in grid.rows:
        table.add_row(*map(escape, cells))
    table.width = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    console.print(table, crop=False)


def say(console: Console, text: str, style: str = "") -> None:
    from rich.markup import escape

    console.print(escape(text), style=style, soft_wrap=not console.is_terminal)


def number(value: float | None, beside: float | None = None) -> str:
    """A value with the digits that it takes to three places of what it stands beside; `-` where there is none."""
    if value is None or not math.isfinite(value):
        return ABSENT
    size = abs(value if beside is None else beside)
    digits = 2 if not size else min(6, max(0, 2 - math.floor(math.log10(size))))
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if not float(text) else text


def seconds(value: float) -> str:
    return f"{number(value)} s"


def interval(told: Estimate, beside: float, unit: str = "s") -> str:
    """`5.3 s (4.9 to 5.7)`."""
    value = f"{number(told.value, beside)} {unit}"
    if told.low is None or told.high is None:
        return value
    return f"{value} ({number(told.low, beside)} to {number(told.high, beside)})"


def spread(told: Estimate, beside: float | None = None) -> str:
    """`5.3 (4.9 to 5.7)`."""
    beside = told.value if beside is None else beside
    if told.low is None or told.high is None:
        return number(told.value, beside)
    return f"{number(told.value, beside)} ({number(told.low, beside)} to {number(told.high, beside)})"


def times(told: Estimate) -> str:
    """`1.90 times (1.88 to 1.92)`."""
    return interval(told, told.value, "times")


def percent(told: Estimate) -> str:
    """Of a share: `95.0 % (94.1 to 95.9)`."""
    return interval(told.scaled(100), 100 * told.value, "%")


def megabytes(size: float | None) -> str:
    return ABSENT if size is None else number(1e-6 * size)


def _choice(asked: Prediction) -> str:
    if asked.question == "workers":
        return f"{asked.choice} loader process{'' if asked.choice == '1' else 'es'}"
    if asked.question == "storage":
        return f"a storage {asked.choice}"
    return f"{asked.choice} of the dataset in memory"


def _predicted(asked: Prediction) -> str:
    return f"{asked.bound} {number(asked.epoch_s)}" if asked.bound else number(asked.epoch_s)


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
