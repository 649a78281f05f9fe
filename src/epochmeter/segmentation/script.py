"""The windows of a whole script: its processes and their logs, with the ranks of a process group merged."""

import time
from array import array
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.results.rank_merge import SUM_KEYS
from epochmeter.results.rank_times import COMMUNICATION
from epochmeter.results.run_info import RankPlace
from epochmeter.segmentation.communication import joined_rows, rows_after
from epochmeter.segmentation.logs import FactsFile, LoadsFile, ThreadLog
from epochmeter.segmentation.process import CONCURRENT, ProcessWindows
from epochmeter.segmentation.windows import EPOCH, Window
from epochmeter.shared.events import SAVED, UNMEASURED
from epochmeter.shared.phases import OTHER, PHASES
from epochmeter.shared.protocol import RankWindow
from epochmeter.shared.units import NANOSECOND

RANK_WAIT_S = 1.0  # how long a window of the first rank waits for those of the other ranks at the same time
NO_WINDOW = "rank {} trained no epoch at the time of the first rank's: its times, and sums over ranks, are absent"
ENDED_RANK = "rank {} had ended in an epoch of the first rank: its times, and sums over ranks, are absent from then on"
UNSEEN = "not all ranks of this node left events of each epoch: sums over ranks are absent in those epochs"
OTHER_STEPS = "rank {} made {} steps in an epoch in which the first rank made {}"
ANOTHER_PROCESS = "only the first process that trains is measured, and another one trained too"
STARTED = "programs that the script started after its first pass over data are not measured, and one imported torch"
NO_LOADER = "training steps were seen, but no pass over a torch DataLoader: only these are measured"
NO_STEP = "no optimizer step and no backward pass was seen"
RANK_NOTE = "rank {}: {}"


class MeasuredWindow(NamedTuple):
    """A window with the measurements of all ranks; the first rank's are the first.

    Attributes:
        rank_rows: Rows of `ranks.bin`; empty unless all ranks have measured how long they wait for others.
        rank_steps: Number of steps of each rank in them.
    """

    window: Window
    ranks: list[RankWindow]
    rank_rows: "array[float]" = array("f")
    rank_steps: int = 0


class LoggedProcess:
    """A process of the script, whose logs are read."""

    def __init__(self, folder: Path, name: str, steps_per_window: int) -> None:
        self._folder, self.name = folder, name
        self._facts = FactsFile(folder / f"{name}.jsonl")
        self._loads = LoadsFile(folder / f"{name}.loads")
        self._logs: dict[int, ThreadLog] = {}
        self.windows = ProcessWindows(steps_per_window)
        self.rank, self.is_first, self.host = 0, True, ""
        self.training: Mapping[str, Any] = {}
        self.local_ranks = 1  # on its node, as its launcher states
        self.end: str | None = None  # the error that ended it, empty without an error; None if it did not end itself
        self.last: dict[str, Window] = {}  # its last window of each name
        self.last_ns = 0  # time of its last event
        self.ended_ns = 0  # when it ended itself; 0 if it did not
        self.has_ended = False
        self.saves_ns: list[list[int]] = []  # begin and end of each file that it saved

    def read(self, *, is_at_rest: bool, is_final: bool) -> None:
        """Read the new events of all threads; `is_at_rest`: the process waits, or `is_final`: it has ended."""
        if self.has_ended:
            return
        of_threads = {number: [*log.read(is_at_rest=is_at_rest)] for number, log in self._found_logs()}
        for facts in self._facts.read():  # after the events, which are written after the facts on their objects
            if facts.get("kind") == "process":
                self.rank, self.is_first, self.training = facts["rank"], facts["is_first"], facts["training"]
                self.host, self.local_ranks = facts.get("host", ""), facts.get("local_ranks", 1)
            elif facts.get("kind") == "end":
                self.end, self.ended_ns = facts["error"], facts.get("ended_ns", 0)
            else:
                self.windows.add_facts(facts)
        self.windows.add_loads(self._loads.read())
        self.saves_ns += [
            [event.begun_ns, event.time_ns] for events in of_threads.values() for event in events if event.kind == SAVED
        ]
        self.last_ns = max([self.last_ns, *(events[-1].time_ns for events in of_threads.values() if events)])
        if is_final:
            self.windows.lose(sum(log.lost_at_end() for log in self._logs.values()))
        self.windows.add(of_threads, is_final=is_final)
        if is_final:
            self.has_ended = True
            for log in self._logs.values():
                log.close()

    def _found_logs(self) -> Iterator[tuple[int, ThreadLog]]:
        for path in self._folder.glob(f"{self.name}-*.0"):
            number = int(path.stem.rpartition("-")[2])
            if number not in self._logs:
                self._logs[number] = ThreadLog(path.with_suffix(""))
        return iter(self._logs.items())

    @property
    def read_count(self) -> int:
        """Number of log files that were read to their end, and are not forgotten."""
        return sum(log.read_count for log in self._logs.values())

    def forget(self) -> list[Path]:
        """Forget the log files that were read to their end, and return them."""
        return [path for log in self._logs.values() for path in log.forget()]


class ScriptWindows:
    """The windows of a script, from the logs in a folder.

    The first process that trains, as the first rank of its node, defines the windows. Those of the other ranks at the
    same time are merged with them.

    Attributes:
        main: The process that defines the windows; None before one has trained.
    """

    def __init__(self, folder: Path, steps_per_window: int) -> None:
        self.folder, self._steps_per_window = folder, steps_per_window
        self._processes: dict[str, LoggedProcess] = {}
        self.main: LoggedProcess | None = None
        self._waiting: deque[tuple[Window, float]] = deque()  # with the times until which they wait for other ranks
        self._of_ranks: list[tuple[int, Window]] = []
        self._silent: set[tuple[int, str]] = set()  # ranks, and names of windows, that are not waited for
        self._missing: list[str] = []
        self._uneven: dict[int, str] = {}  # rank -> note

    def read(self, *, at_rest: Collection[str] = (), ended: Collection[str] = (), is_final: bool = False) -> None:
        """Read all new events.

        Args:
            at_rest: Names of processes that wait for this one.
            ended: Names of processes that have ended.
            is_final: Whether all have ended.
        """
        for path in sorted(self.folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns):
            if path.stem not in self._processes:
                self._processes[path.stem] = LoggedProcess(self.folder, path.stem, self._steps_per_window)
        for process in self._processes.values():
            has_ended = is_final or process.name in ended
            process.read(is_at_rest=has_ended or process.name in at_rest, is_final=has_ended)
            if process.name in at_rest:
                process.windows.settle()
        self.main = self.main or next(filter(is_training, self._processes.values()), None)
        self._collect()

    def take(self, latest_ns: int | None = None, *, is_final: bool = False) -> Iterator[MeasuredWindow]:
        """Yield the windows that are complete, in order, and forget them; finally, without waiting for other ranks.

        `latest_ns`: the latest end of a window that is taken; None: any.
        """
        while self._waiting:
            window, until_s = self._waiting[0]
            if latest_ns is not None and window.closed_ns > latest_ns:
                return
            others = {rank: other for rank, other in self._of_ranks if is_simultaneous(other, window)}
            missing = {(rank, window.name) for rank in self._running_ranks(window) if rank not in others}
            if missing - self._silent and not is_final and time.monotonic() < until_s:
                return
            self._waiting.popleft()
            self._note_missing(missing)
            self._note_ended(window, others)
            self._of_ranks = [(rank, other) for rank, other in self._of_ranks if other.closed_ns > window.closed_ns]
            yield self._merged(window, others)

    @property
    def read_count(self) -> int:
        """Number of log files that were read to their end, and are not forgotten."""
        return sum(process.read_count for process in self._processes.values())

    def forget(self) -> list[Path]:
        """Forget the log files that were read to their end, and return them."""
        return [path for process in self._processes.values() for path in process.forget()]

    @property
    def notes(self) -> list[str]:
        """What could not be measured, and why."""
        if self.main is None:
            return [note for process in self._processes.values() for note in process.windows.notes] + self._started
        notes = [*self.main.windows.notes, *self._missing, *self._uneven.values()]
        for process in self._others():
            notes += [RANK_NOTE.format(process.rank, note) for note in process.windows.notes]
        firsts = [process for process in self._processes.values() if process.is_first and process is not self.main]
        notes += [ANOTHER_PROCESS] if any(process.windows.epochs for process in firsts) else []
        return notes + self._started

    @property
    def _started(self) -> list[str]:
        return [STARTED] if (self.folder / UNMEASURED).exists() else []

    @property
    def flags(self) -> dict[str, str]:
        """Flags of the run, with their reasons."""
        concurrent = any(CONCURRENT in process.windows.notes for process in self._processes.values())
        return {"concurrent_training": CONCURRENT} if concurrent else {}

    @property
    def possible_borders_ns(self) -> list[int]:
        """Moments that may be borders of windows which are not taken yet; empty if there was no event so far."""
        waiting = [border for window, _ in self._waiting for border in (window.opened_ns, window.closed_ns)]
        return waiting + (self.main.windows.possible_borders_ns if self.main else [])

    @property
    def saves_ns(self) -> list[list[int]]:
        """Begin and end of each file that the process of the windows has saved."""
        return self.main.saves_ns if self.main else []

    @property
    def reason(self) -> str:
        """Why there is no window; empty if no process has read data or trained."""
        if any(process.windows.has_trained for process in self._processes.values()):
            return NO_LOADER
        return NO_STEP if self._processes else ""

    @property
    def end(self) -> str | None:
        """The error that ended the script, empty without one; None if it did not end itself, or was not measured."""
        first = self.main or next(iter(self._processes.values()), None)
        return first.end if first else None

    @property
    def ended_ns(self) -> int:
        """When the process of the windows ended: as it has recorded, else at its last event."""
        return max(self.main.ended_ns, self.main.last_ns) if self.main else 0

    @property
    def problem(self) -> str:
        """The error of the agent that ended measuring before the script; empty without one."""
        first = self.main or next(iter(self._processes.values()), None)
        return first.windows.problem if first else ""

    @property
    def rank_count(self) -> int:
        """Number of ranks that train."""
        return 1 + len(self._others())

    @property
    def lacks_ranks(self) -> bool:
        """Whether the process group has ranks that are not on this node, or that left no log."""
        return self.main is not None and self.main.training.get("ranks", 1) > self.rank_count

    @property
    def places(self) -> list[RankPlace]:
        """Where each rank of this node is."""
        others = sorted(self._others(), key=lambda process: process.rank)
        ranks = [process for process in [self.main, *others] if process]
        return [place_of(process.rank, process.training, process.host) for process in ranks]

    @property
    def gpus(self) -> set[str]:
        """UUIDs of the GPUs that the ranks use, as far as they are known."""
        uuids = (process.training.get("gpu", {}).get("uuid") for process in self._others())
        return {uuid for uuid in uuids if uuid}

    def last_of(self, process: str, window: str) -> Window | None:
        """Return the last window of a name in a process that does not define the windows; None if there is none.

        Before the first training, no process defines them.
        """
        other = self._processes.get(process)
        if other is None or other is self.main:
            return None
        kept = [each for each in other.windows.windows if each.name == window] if self.main is None else []
        return kept[-1] if kept else other.last.get(window)

    def _others(self) -> list[LoggedProcess]:
        """Return the ranks other than the first."""
        return [process for process in self._processes.values() if not process.is_first and process.training]

    def _running_ranks(self, window: Window) -> list[int]:
        """Return the other ranks that may still have a window at the time of one."""
        return [other.rank for other in self._others() if not other.has_ended or other.last_ns > window.closed_ns]

    def _collect(self) -> None:
        if self.main is None:
            return
        until_s = time.monotonic() + RANK_WAIT_S
        self._waiting += [(window, until_s) for window in drain(self.main)]
        for other in self._others():
            for window in drain(other):
                self._of_ranks.append((other.rank, window))
                self._silent.discard((other.rank, window.name))  # it was late

    def _note_missing(self, missing: set[tuple[int, str]]) -> None:
        notes = [NO_WINDOW.format(rank) for rank, name in sorted(missing - self._silent) if name == EPOCH]
        self._missing += [note for note in notes if note not in self._missing]
        self._silent |= missing

    def _note_ended(self, window: Window, others: Collection[int]) -> None:
        ended = [other.rank for other in self._others() if other.has_ended and other.last_ns <= window.closed_ns]
        notes = [ENDED_RANK.format(rank) for rank in sorted(ended) if rank not in others and window.name == EPOCH]
        self._missing += [note for note in notes if note not in self._missing]

    def _note_uneven(self, window: Window, others: Mapping[int, Window]) -> None:
        steps = window.parts.get("steps", 0)
        for rank, other in others.items():
            if (own := other.parts.get("steps", 0)) != steps:
                self._uneven.setdefault(rank, OTHER_STEPS.format(rank, f"{own:g}", f"{steps:g}"))

    def _merged(self, window: Window, others: Mapping[int, Window]) -> MeasuredWindow:
        assert self.main
        first = rank_window(window, self.main.rank)
        is_unseen = window.name == EPOCH and self.rank_count < self.main.local_ranks
        if is_unseen and UNSEEN not in self._missing:
            self._missing.append(UNSEEN)
        if is_unseen or len(others) < len(self._others()):
            first = without_sums(first)
        if window.name == EPOCH:
            self._note_uneven(window, others)
        clipped_windows = {rank: clipped(others[rank], window) for rank in sorted(others)}
        ranks = [rank_window(other, rank) for rank, other in clipped_windows.items()]
        rows, steps = joined_rows([window.rank_rows, *(other.rank_rows for other in clipped_windows.values())])
        return MeasuredWindow(window, with_common_phases([first, *ranks]), rows, steps)


def place_of(rank: int, training: Mapping[str, Any], host: str) -> RankPlace:
    """Return where a rank is, from the facts of its process."""
    place: RankPlace = {"rank": rank, "host": host, "device": training.get("accelerator", "cpu")}
    return {**place, "gpu": uuid} if (uuid := training.get("gpu", {}).get("uuid")) else place


def is_training(process: LoggedProcess) -> bool:
    """Return whether a process is the first rank of its node, and has trained."""
    current = process.windows.current
    return process.is_first and bool(process.windows.epochs or (current and current.trains))


def drain(process: LoggedProcess) -> list[Window]:
    """Remove and return the windows of a process."""
    windows = [*process.windows.windows]
    process.windows.windows.clear()
    process.last |= {window.name: window for window in windows}
    return windows


def is_simultaneous(other: Window, window: Window) -> bool:
    """Return whether a window of another rank has the same name, and was open in the middle of a window."""
    middle_ns = (window.opened_ns + window.closed_ns) // 2
    return other.name == window.name and other.opened_ns < middle_ns < other.closed_ns


def rank_window(window: Window, rank: int) -> RankWindow:
    """Return the measurements of a rank."""
    parts = dict(window.parts)
    return RankWindow(window.opened_ns, window.closed_ns, 0, parts, [], False, 0.0, 0.0, None, rank)


def without_sums(rank: RankWindow) -> RankWindow:
    """Return the measurements of a rank without those that are summed over ranks, as some of these are missing."""
    return rank._replace(parts={key: value for key, value in rank.parts.items() if key not in SUM_KEYS})


def with_common_phases(ranks: Sequence[RankWindow]) -> list[RankWindow]:
    """Return the measurements of ranks with the phases that all of them have; the others are part of the rest."""
    common = [phase for phase in PHASES if all(phase in rank.parts for rank in ranks)]
    merged = []
    for rank in ranks:
        parts = {name: value for name, value in rank.parts.items() if name not in PHASES or name in common}
        if OTHER in parts:
            parts[OTHER] += sum(rank.parts[phase] for phase in PHASES if phase in rank.parts and phase not in common)
        else:
            parts.pop("timed_steps", None)
        merged.append(rank._replace(parts=parts))
    return merged


def clipped(window: Window, first: Window) -> Window:
    """Return a rank's window without the time in which it waits for the first rank, as after an evaluation."""
    early_s = max(0, first.opened_ns - window.opened_ns) * NANOSECOND
    stall_s = min(early_s, window.parts.get("loader_start_s", 0.0))  # absent without a DataLoader
    removed = {"e2e_s": early_s, **dict.fromkeys(("data_stall_s", "host_wait_s", "loader_start_s"), stall_s)}
    removed["overhead_s"] = max(0.0, min(early_s, window.first_gap_s) - stall_s)
    removed["compute_s"] = min(early_s - stall_s - removed["overhead_s"], window.parts.get("compute_s", 0.0))
    rows = rows_after(window.rank_rows, early_s, stall_s)
    if window.rank_rows:
        removed["communication_s"] = window.rank_rows[COMMUNICATION] - rows[COMMUNICATION]
    parts = {name: value - removed.get(name, 0.0) for name, value in window.parts.items()}
    if parts.get("compute_s"):
        left = parts["compute_s"] / window.parts["compute_s"]
        parts |= {phase: parts[phase] * left for phase in PHASES if phase in parts}
    opened_ns, closed_ns = max(first.opened_ns, window.opened_ns), min(first.closed_ns, window.closed_ns)
    return replace(window, opened_ns=opened_ns, closed_ns=closed_ns, parts=parts, rank_rows=rows)
