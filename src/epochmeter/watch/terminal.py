"""The live view in the terminal: `draw` returns the picture of a snapshot, `show` renews it until `q` or Ctrl-C."""

import gc
import math
import os
import select
import sys
import termios
import tty
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from threading import Event

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from epochmeter.console.plain import wrap
from epochmeter.console.sentences import account_line
from epochmeter.console.tables import cell, column_title
from epochmeter.machine.platforms import yield_to_others
from epochmeter.report.formatting import join_or_more
from epochmeter.results.metrics import find
from epochmeter.results.quantities import quantity, span
from epochmeter.results.run_folder import READ_ERRORS, error_text
from epochmeter.shared.problem import format_problem
from epochmeter.shared.units import percent
from epochmeter.watch.appended import Series
from epochmeter.watch.gauges import Gauge, gauges_of
from epochmeter.watch.snapshot import BY_INTEREST, PARTS, Progress, RunView, Snapshot, SweepRow

Line = Sequence[tuple[str, str]]
"""A line of the picture: texts without control characters, each with its style. Rich's own layout takes too much time
for ten views of a run."""
PERIOD_S = 1.0
COLORS = {
    **dict.fromkeys(("training", "completed"), "green"),
    **dict.fromkeys(("preparing", "planned"), "dim"),
    **dict.fromkeys(("stalled", "killed"), "yellow"),
    **dict.fromkeys(("failed", "unreadable"), "red"),
}
LEVELS = "▁▂▃▄▅▆▇█"
MIN_WIDTH, LABEL_WIDTH, VALUES_WIDTH = 72, 14, 48
"""Smallest width of the picture, and the widths of the columns before the sparklines."""
MIN_SPAN_S, MIN_INTERVAL_S = 60.0, 2.0
"""Shortest time that a sparkline covers, and a character of it: gauges are read about once per second."""
OTHER_LINES = 17  # lines of a sweep's picture that are not in its table
OTHER_COLUMNS = 60  # columns of a progress bar's line that are not the bar
CURSOR_HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
MIN_KEY_WIDTH, MAX_KEY_WIDTH, GAP = 6, 20, "  "
"""Widths in characters of a column of the user's values in the table of a sweep, and the space between columns."""
TIME = "epoch/e2e_s"
TIME_TITLE = column_title(TIME)
MAX_WARNINGS, MAX_REASONS, MAX_NUMBERS = 5, 4, 5
TOTAL = "total_w"  # column of the power of all devices


def clean(text: str) -> str:
    """Return a text without control characters, which could command the terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def draw(snapshot: Snapshot, width: int, height: int | None = None) -> list[Line]:
    """Return the picture of a snapshot, the most important lines first; the end of a line may not fit.

    The table of a sweep is limited to the `height` of the terminal, unless it is None.
    """
    narrow, width = max(1, width), max(MIN_WIDTH, width)  # COLUMNS=0 is possible
    lines = [*_title(snapshot, narrow), *(_sweep_lines(snapshot, width, narrow, height) if snapshot.is_sweep else [])]
    for view in snapshot.active[:1]:
        lines += _run_lines(view, width, narrow, is_of_sweep=snapshot.is_sweep)
    return lines


def show(read: Callable[[], Snapshot], console: Console, *, once: bool = False) -> None:
    """Show the snapshots that `read` returns until `q` or Ctrl-C; once, if the output is not a terminal.

    A record that cannot be read, as while its folder is moved, does not end the view.
    """
    snapshot, error = read(), ""
    if not once and console.is_interactive and sys.stdout.isatty():  # FORCE_COLOR makes a file interactive
        with suppress(OSError):  # some containers forbid it
            yield_to_others()  # the processes that are measured come first
        gc.freeze()  # so that collections skip the modules
        with suppress(KeyboardInterrupt), _keyboard() as is_quit, console.screen():
            while True:
                print(_screen(snapshot, error, console), end="", file=console.file, flush=True)
                if is_quit(PERIOD_S):
                    break
                try:
                    snapshot, error = read(), ""
                except READ_ERRORS as failure:
                    error = error_text(failure)
    print(*_rendered(draw(snapshot, console.width), console), sep="\n", file=console.file, flush=True)


def _screen(snapshot: Snapshot, error: str, console: Console) -> str:
    """Return the picture as far as it fits, and a last line with the time, the key and the number of hidden lines."""
    width, height = console.size
    lines = draw(snapshot, width, height)
    shown = lines[: height - 1]
    facts = [datetime.fromtimestamp(snapshot.at_s).strftime("%H:%M:%S"), "q: leave"]
    facts += [f"{len(lines) - len(shown)} more lines: enlarge the terminal"] if len(shown) < len(lines) else []
    facts += [f"error: {error}"] if error else []
    *above, last = _rendered([*shown, _line("   ".join(facts), "red" if error else "dim")], console)
    return "".join([CURSOR_HOME, *(f"{CLEAR_LINE}{line}\n" for line in above), CLEAR_BELOW, last])


def _rendered(lines: Sequence[Line], console: Console) -> Iterator[str]:
    colors = ColorSystem.STANDARD if console.color_system and not console.no_color else None
    for line in lines:
        texts, free = [], console.width
        for text, style in line:
            text = _shortened(text, free)
            texts.append(Style.parse(style).render(text, color_system=colors))
            free -= cell_len(text)
        yield "".join(texts)


def _shortened(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…" if width > 0 else ""


@contextmanager
def _keyboard() -> Iterator[Callable[[float], bool]]:
    """Provide a function that waits some seconds for a key and returns whether it was `q`."""
    if not sys.stdin.isatty():
        yield Event().wait  # nothing sets it
        return

    def is_quit(seconds: float) -> bool:
        is_pressed = bool(select.select([sys.stdin], [], [], seconds)[0])
        return is_pressed and os.read(sys.stdin.fileno(), 1) in (b"q", b"")  # empty: the terminal is gone

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield is_quit
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _title(snapshot: Snapshot, width: int) -> Iterator[Line]:
    state, color = str(snapshot.state), COLORS[snapshot.state]
    if snapshot.active and not snapshot.is_sweep:
        view = snapshot.active[0]
        silence = f", last record {view.progress.silent_s:.0f} s ago" if view.progress.silent_s >= 1 else ""
        state = clean(f"{state} on {view.host}{silence}")
    name_width = max(1, width - cell_len(state) - 2)
    name = set_cell_size(_shortened(clean(snapshot.name), name_width), name_width)
    yield (name, "bold"), (f"  {state}", color)
    yield from _sentence(snapshot.reason, color, width)


def _bar(label: str, fraction: float | None, remaining: str, width: int) -> Line:
    length = max(10, width - OTHER_COLUMNS)
    full = int(length * (fraction or 0.0))
    done = "" if fraction is None else f"{int(100 * fraction)} %"
    ending = clean(f"  {done:>5}  {remaining}")
    return (f"{label}  ", ""), ("━" * full, "green"), ("─" * (length - full), "dim"), (ending, "")


def _remaining(
    seconds: float | None, energy_j: float | None, views: Sequence[RunView], is_maximum: bool = False
) -> str:
    """Return the estimated rest of a run or a sweep; empty if it is not known."""
    if not seconds:
        return ""
    energy = "" if energy_j is None else f", {quantity(energy_j, 'J')}"
    costs = [f", {energy_j * view.cost_per_j:.3g} {view.currency}" for view in views if energy_j and view.cost_per_j]
    return f"{'at most' if is_maximum else 'about'} {span(seconds)}{energy}{''.join(costs[:1])} to go"


def _run_lines(view: RunView, width: int, narrow: int, *, is_of_sweep: bool) -> Iterator[Line]:
    """Yield the lines of a run: columns for a `width`, and sentences in a terminal that may be narrower."""
    progress = view.progress
    what = f"process {progress.pid}" if progress.pid else f"epoch {_of_epochs(progress)}"
    label = f"{f'run {view.number}: ' if is_of_sweep else ''}{what}"
    remaining = _remaining(progress.remaining_s, progress.remaining_j, [view], progress.is_maximum)
    yield _bar(label, progress.fraction, remaining or f"{span(progress.elapsed_s)} elapsed", width)
    if view.rehearsal:
        yield from _sentence(f"REHEARSAL: {'; '.join(view.rehearsal)}", "bold yellow", narrow)
    for sentence in filter(None, [view.verdict, view.straggler]):
        yield from _sentence(sentence, "bold", narrow)
    yield from _sentence(account_line(view.account), "", narrow)
    printed = format_problem(view.failure) if view.failure else ""
    for line in printed.splitlines()[1:]:
        yield from _sentence(line.strip(), "red", narrow)
    yield ()
    if not progress.pid:
        yield from _split_lines(view, narrow) if view.splits else [_line("No step is recorded yet.", "dim")]
    yield ()
    yield from _gauge_lines(view, narrow - LABEL_WIDTH)
    if view.energy_valid is False and "energy" not in view.missing:
        reasons = "; ".join(f"{text.removesuffix('.')} ({code})" for code, text in view.energy_reasons.items())
        yield from _sentence(f"The energy is absent or doubtful: {reasons}.", "yellow", narrow)
    for warning in view.warnings[: 1 if is_of_sweep else MAX_WARNINGS]:
        yield from _sentence(warning.partition("\n")[0], "yellow", narrow)


def _of_epochs(progress: Progress) -> str:
    """Return the number of the epoch, and of all epochs unless a script does not state it: `4/6`, `4`."""
    return f"{progress.epoch}/{progress.epochs}" if progress.epochs else f"{progress.epoch}"


def _split_lines(view: RunView, width: int) -> Iterator[Line]:
    is_estimate = view.energy_source == "estimated"
    unlisted = [name for _, name, _ in view.unlisted]
    last = ["estimated_energy_j" if is_estimate else "energy_j", "power_mean_w", *unlisted]
    titles = [find(f"epoch/{part}_s").short for part in PARTS]
    lines = [("dim", ["epoch", TIME_TITLE, *titles, *(column_title(f"epoch/{name}") for name in last)])]
    for split in view.splits.values():
        metrics, e2e_s = split.metrics, split.metrics.get("e2e_s")
        parts = [percent(metrics[f"{part}_s"] / e2e_s) if e2e_s and f"{part}_s" in metrics else "-" for part in PARTS]
        energy = [cell(f"epoch/{name}", metrics.get(name)) for name in last]
        lines.append(("", [split.title, cell(TIME, e2e_s), *parts, *energy]))
    yield from _table(lines, first_number=1, width=width)


def _gauge_lines(view: RunView, width: int) -> Iterator[Line]:
    """Yield a line per device, of a width after its label: the present values, and one over the last minutes as a
    picture. Why a gauge is missing may take several lines.
    """
    free = width - VALUES_WIDTH
    for label, values, series in _gauge_rows(view):
        name, text = f"{clean(label):{LABEL_WIDTH - 1}.{LABEL_WIDTH - 1}} ", clean(values)
        picture = _sparkline(series, free) if series and free > 0 else ""
        rows = [f"{text:{VALUES_WIDTH - 1}.{VALUES_WIDTH - 1}} "] if picture else wrap(text, max(1, width)) or [""]
        yield (name, "dim"), (rows[0], ""), (picture, "cyan")
        yield from (((" " * LABEL_WIDTH, ""), (row, "")) for row in rows[1:])


def _gauge_rows(view: RunView) -> Iterator[tuple[str, str, Series | None]]:
    gauges = [gauge for gauge in gauges_of(view) if "watch" in gauge.metric.shown or not gauge.is_known]
    for gauge in gauges:
        if gauge.column in view.power:
            yield gauge.metric.title if gauge.column == TOTAL else gauge.device, gauge.text, gauge.series
    yield from ((name, f"not available: {why.partition(chr(10))[0]}", None) for name, why in view.missing.items())
    cores = [gauge for gauge in gauges if gauge.is_core]
    devices: dict[str, list[Gauge]] = {}
    for gauge in gauges:
        if gauge.column in view.gauges and not gauge.is_core:
            devices.setdefault(gauge.device, []).append(gauge)
    only_warm = [of_device[0] for of_device in devices.values() if all(gauge.metric.unit == "C" for gauge in of_device)]
    for device, of_device in devices.items():
        if of_device[0] not in only_warm:
            yield device, "  ".join(gauge.text for gauge in of_device), of_device[0].series
        if device == "cpu" and cores:
            yield "cores", "".join(_level(core.series.latest, 1.0) for core in cores), None
    if only_warm:
        yield only_warm[0].metric.title, "  ".join(f"{gauge.device} {gauge.text}" for gauge in only_warm), None
    if view.throttling is not None:
        yield "throttling", view.throttling or "none", None


@lru_cache(maxsize=64)
def _sparkline(series: Series, width: int) -> str:
    """Return the last minutes as one character per interval, from 0 to the largest value; blank without samples."""
    times_s, values = series.times_s, series.values
    span_s = max(MIN_SPAN_S, times_s[-1] - times_s[0] + 1)
    width = min(width, int(span_s / MIN_INTERVAL_S))
    borders_s = [times_s[-1] - span_s * place / width for place in range(width, -1, -1)]
    ends = [bisect_right(times_s, border_s) for border_s in borders_s]
    parts = [[value for value in values[start:end] if math.isfinite(value)] for start, end in pairwise(ends)]
    means = [sum(chunk) / len(chunk) if chunk else None for chunk in parts]
    largest = max((mean for mean in means if mean is not None), default=0.0)
    return "".join(" " if mean is None else _level(mean, largest) for mean in means)


def _level(value: float, largest: float) -> str:
    fraction = value / largest if largest > 0 else 0.0
    return LEVELS[min(len(LEVELS) - 1, max(0, int(fraction * len(LEVELS))))] if math.isfinite(fraction) else " "


def _sweep_lines(snapshot: Snapshot, width: int, narrow: int, height: int | None) -> Iterator[Line]:
    total = len(snapshot.runs)
    ended = total - snapshot.counts.get("planned", 0) - len(snapshot.active)
    remaining = _remaining(snapshot.remaining_s, snapshot.remaining_j, snapshot.active)
    yield _bar(f"{ended}/{total} runs", snapshot.fraction, remaining, width)
    yield _line(", ".join(f"{count} {state}" for state, count in snapshot.counts.items()), "dim")
    if snapshot.rehearsal and not snapshot.active:  # else an active run has this line
        yield from _sentence(f"REHEARSAL: {'; '.join(snapshot.rehearsal)}", "bold yellow", narrow)
    so_far = "" if ended == total else " so far"
    if snapshot.front:
        points = [f"{point.title}: {point.time_s:.3f} s, {quantity(point.energy_j, 'J')}" for point in snapshot.front]
        yield _line(f"* Pareto front{so_far}: {'; '.join(points)}", "bold")
    else:
        yield from _sentence(f"No Pareto front{so_far}: {snapshot.no_front}", "dim", narrow)
    yield ()
    rows = _most_interesting(snapshot.runs, max(3, height - OTHER_LINES) if height else total)
    yield from _sweep_table(snapshot.runs, rows, width)
    if total > len(rows):
        yield _line(f"and {total - len(rows)} more", "dim")
    numbers: dict[str, list[str]] = {}
    for row in rows:
        if row.reason and row.state != "training":
            numbers.setdefault(f"{row.state}: {row.reason}", []).append(str(row.number))
    for reason, run_numbers in [*numbers.items()][-MAX_REASONS:]:
        runs = f"{'runs' if len(run_numbers) > 1 else 'run'} {join_or_more(run_numbers, MAX_NUMBERS)}"
        yield from _sentence(f"{runs} {reason}", "yellow", narrow)
    yield ()


def _sweep_table(runs: Sequence[SweepRow], rows: Sequence[SweepRow], width: int) -> Iterator[Line]:
    keys = list(dict.fromkeys(key for row in runs for key in row.overrides))
    places = {row.number: row.host or (f"job {row.slurm_job}" if row.slurm_job else "") for row in runs}
    has_places = len({*places.values()} - {""}) > 1
    energies = ("energy_j", "estimated_energy_j")
    shown = [name for name in energies if any(getattr(row, name) is not None for row in runs)]
    names = ["run", *keys, "state", *(["host"] if has_places else [])]
    titles = [TIME_TITLE, find("steady/data_stall_fraction").short, *(column_title(f"steady/{name}") for name in shown)]
    lines = [("dim", [*names, *titles, "elapsed"])]
    for row in rows:
        epoch = f" {_of_epochs(row.progress)}" if row.progress else ""
        cells = [
            f"{row.number}{'*' if row.is_on_front else ''}",
            *(row.overrides.get(key, "") for key in keys),
            f"{'reused' if row.is_reused else row.state}{epoch}",
            *([places[row.number]] if has_places else []),
            cell(TIME, row.epoch_s),
            "-" if row.stall_fraction is None else percent(row.stall_fraction),
            *(cell(f"steady/{name}", getattr(row, name)) for name in shown),
            "" if row.duration_s is None else span(row.duration_s),
        ]
        lines.append((COLORS[row.state], cells))
    yield from _table(lines, len(names), width, keys=slice(1, 1 + len(keys)))


def _most_interesting(rows: Sequence[SweepRow], count: int) -> list[SweepRow]:
    """Return active and failed runs, the front, the runs that ended last and those that start next, by number."""

    def rank(row: SweepRow) -> tuple[int, int]:
        state = BY_INTEREST.index("failed" if row.is_on_front else row.state)
        return state, row.number if row.state == "planned" else -row.number

    return sorted(sorted(rows, key=rank)[:count], key=lambda row: row.number)


def _table(
    rows: Sequence[tuple[str, Sequence[str]]], first_number: int, width: int, keys: slice = slice(0)
) -> Iterator[Line]:
    """Yield the lines of a table from styles and cells; columns of numbers are aligned to the right.

    If lines are longer than `width`, the widest columns of `keys` are shortened, and then the space between columns.
    """
    cells = [[_shortened(clean(text), MAX_KEY_WIDTH) for text in row] for _, row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    free = width - (sum(widths) - sum(widths[keys]) + len(GAP) * (len(widths) - 1))
    limits = range(MAX_KEY_WIDTH, MIN_KEY_WIDTH, -1)
    fitting = (limit for limit in limits if sum(min(limit, key_width) for key_width in widths[keys]) <= free)
    limit = next(fitting, MIN_KEY_WIDTH)
    widths[keys] = [min(limit, key_width) for key_width in widths[keys]]
    gap = GAP if sum(widths) + len(GAP) * (len(widths) - 1) <= width else " "
    for (style, _), row in zip(rows, cells, strict=True):
        sized = [*zip(row, widths, strict=True)]
        texts = [set_cell_size(_shortened(text, size), size) for text, size in sized[:first_number]]
        numbers = [text.rjust(size) for text, size in sized[first_number:]]
        yield ((gap.join([*texts, *numbers]).rstrip(), style),)


def _sentence(text: str, style: str, width: int) -> Iterator[Line]:
    """Yield the lines of a text that can be read completely in a narrow terminal."""
    yield from (_line(line, style) for line in wrap(clean(text), width))


def _line(text: str, style: str) -> Line:
    return ((clean(text), style),)
