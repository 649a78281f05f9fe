"""Windows of a script from the events that it has recorded without a controller, such as after that was killed.

No instrument was read meanwhile: the windows have times and counts, but neither energy nor gauges.
"""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from epochmeter.config.schema import Job
from epochmeter.machine.cpu_load import CpuLoad
from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.machine.gauge_sampler import Gauges
from epochmeter.power.meter import NullMeter
from epochmeter.power.window_energy import Reading
from epochmeter.results.run_info import RunInfo, training_facts
from epochmeter.results.summary import collect_flags
from epochmeter.run.event_folder import STARTED
from epochmeter.run.instruments import DataSource, WindowInstruments
from epochmeter.run.script import traced_epoch, unknown_note
from epochmeter.run.script_flops import count_flops
from epochmeter.run.script_loop import opening_of
from epochmeter.run.window_record import build_window, window_title
from epochmeter.segmentation.logs import FactsFile
from epochmeter.segmentation.saved_state import load_state
from epochmeter.segmentation.script import MeasuredWindow, ScriptWindows, without_sums
from epochmeter.segmentation.windows import EPOCH
from epochmeter.shared.process_identity import Process, is_alive
from epochmeter.shared.protocol import WindowMeasured
from epochmeter.shared.record import Record, rank_row_count, step_count, training_of
from epochmeter.shared.record_files import read_document

KILLED = "epochmeter had been killed"
NO_INSTRUMENTS = "{}: no energy and no gauges, as {}."
NO_OTHER_RANKS = "{}: ranks of other nodes are absent, and so are sums over ranks, as {}."
CONTINUED = "the script continued without epochmeter, to its end"
FAILED = "the script continued without epochmeter, and failed: {}"
NOT_FOLLOWED = "the script continued without epochmeter, whose agent failed: {}"
ENDED = "the script was killed as well, or has ended without Python's exit (os._exit)"
LOST_STATE = "the windows that follow are lost, as the state of the logs cannot be read: {}"


class AbsentGauges(Gauges):
    """The gauges of a time in which nobody read them."""

    def __init__(self) -> None:
        self.series, self._samples = None, []


def running_processes(folder: Path) -> list[Process]:
    """Return the processes of a script, whose logs are in a folder, that are still running and may record more."""
    started = folder / STARTED
    processes = [Process(**read_document(started))] if started.exists() else []
    for path in folder.glob("*.jsonl"):
        facts = [*FactsFile(path).read()]
        if not any(fact.get("kind") == "end" for fact in facts):
            processes += [Process(*fact["identity"]) for fact in facts if fact.get("kind") == "process"]
    return [process for process in processes if is_alive(process)]


def recover_windows(record: Record, job: Job, run: RunInfo, folder: Path) -> list[str]:
    """Record the windows of an ended script that its controller, which was killed, has not; return notes."""
    record.drop_incomplete()
    try:
        windows = load_state(folder) or ScriptWindows(folder, job.measure.steps_per_window)
    except pickle.UnpicklingError as error:
        return [LOST_STATE.format(error)]
    windows.read(is_final=True)
    notes = add_windows(record, job, run, windows, KILLED)
    if "process_ns" in run.moments and windows.ended_ns:  # it was not analyzed: its record ends with the script
        run.moments |= {"ended_ns": windows.ended_ns, "recorded_ns": windows.ended_ns, "saves_ns": windows.saves_ns}
    record.describe(record.job(), run.document())
    return [*notes, _end_note(windows)]


def add_windows(record: Record, job: Job, run: RunInfo, windows: ScriptWindows, reason: str) -> list[str]:
    """Record the windows of an ended script, and set what its events show in `run`; return notes.

    The windows are those that begin after the end of the last recorded one, so that this may be repeated. They have no
    energy and no gauges for this reason.
    """
    lines = record.windows()
    recorded_ns = max((line["closed_ns"] for line in lines), default=0)
    for measured in windows.take(is_final=True):
        if measured.window.opened_ns >= recorded_ns:
            lines.append(_add_window(record, job, measured, windows, lines, reason))
    if windows.main:
        run.training = {**run.training, **training_facts(windows.main.training)}
        if "step" not in run.training:
            count_flops(run, windows)
        numbers = windows.main.windows.trainings
        if any(training_of(line) > max(numbers, default=0) for line in lines):  # not if an earlier recovery has done it
            record.renumber_trainings(numbers)
    run.flags = {**collect_flags(lines), **windows.flags, **run.flags}
    return [*windows.notes, *([unknown_note(job)] if lines else [])]


def _add_window(
    record: Record, job: Job, measured: MeasuredWindow, windows: ScriptWindows, earlier: list[Any], reason: str
) -> Mapping[str, Any]:
    """Add a window after the earlier ones to the record; return its line."""
    assert windows.main
    window = measured.window
    epochs = sum(line["window"] == EPOCH for line in earlier)
    opening = opening_of(window, epochs, windows.main.windows.expected_epochs)
    if window.name == EPOCH:
        record.append_steps(window.rows)
        record.append_rank_rows(measured.rank_rows)
    readings = Reading(window.opened_ns, {}), Reading(window.closed_ns, {})
    ranks = [*measured.ranks]
    if windows.lacks_ranks:
        ranks[0] = without_sums(ranks[0])
    message, steps = WindowMeasured(ranks, [], measured.rank_steps), step_count(earlier)
    before_rows = rank_row_count(earlier)
    built = build_window(
        opening, message, *readings, _no_instruments(job, reason), record, steps, earlier_rank_rows=before_rows
    )
    title = window_title(opening)
    is_traced = window.name == EPOCH and opening.epoch == traced_epoch(job)
    before = sum(line["window"] == EPOCH and training_of(line) == window.training for line in earlier)
    begins_training = window.name == EPOCH and bool(window.training) and before < job.warmup_epochs
    line = {
        **built.line,
        "rule": window.rule,
        **({} if window.training is None else {"training": window.training}),
        **({"warmup": True} if is_traced or begins_training else {}),
        "notes": [
            *([f"{window.reason}."] if window.reason else []),
            *built.notes,
            *([NO_OTHER_RANKS.format(title, reason)] if windows.lacks_ranks else []),
            NO_INSTRUMENTS.format(title, reason),
        ],
        **({"flags": built.flags} if built.flags else {}),
    }
    record.append(line)
    return line


def _no_instruments(job: Job, reason: str) -> WindowInstruments:
    without_data = replace(job, measure=replace(job.measure, data=None))  # its page cache is that of now
    meter = NullMeter(reason, code=EnergyCode.NO_CONTROLLER.value)
    return WindowInstruments(meter, AbsentGauges(), DataSource(without_data, None, print), CpuLoad())


def _end_note(windows: ScriptWindows) -> str:
    """Return how a script has ended."""
    if windows.end is None:
        return NOT_FOLLOWED.format(windows.problem) if windows.problem else ENDED
    return FAILED.format(windows.end) if windows.end else CONTINUED
