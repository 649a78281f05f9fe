"""The measurement of a process that runs already: its gauges and the energy of its devices, from now until its end.

There is no agent in the process, so nothing is known of its epochs and steps. The time is divided into windows of a
minute, so that a killed measurement loses no more than the last one.
"""

import signal
import time

from epochmeter.console.console import Terminal
from epochmeter.machine.running_process import RunningProcess, find_earlier_process, wait_for_end
from epochmeter.machine.signals import deferred_signals
from epochmeter.power.window_energy import Reading
from epochmeter.results.quantities import span
from epochmeter.results.run_info import PROCESS
from epochmeter.results.run_result import RunResult
from epochmeter.run.instruments import WindowInstruments, write_gauges
from epochmeter.run.plan import Plan
from epochmeter.run.record_end import NO_PARTS
from epochmeter.run.recording import GAUGES_WRITE_S, Recording
from epochmeter.shared.problem import machine_error
from epochmeter.shared.protocol import RankWindow, WindowMeasured, WindowOpening
from epochmeter.shared.units import NANOSECOND
from epochmeter.tracking.publisher import Tracker

WINDOW_S = 60.0
MARK_S = 1.0  # period of looking at the processes that use the same GPUs
OTHERS = "the energy is that of the metered devices while process {} ran, with all that other processes did on them"
UNREADABLE = "process {} is of the user {}, and cannot be read: {}"
ENDED, DURATION, STOPPED = "process {} has ended", "measured for `duration_s={:g}`", "the measurement was stopped by {}"


def follow_process(
    plan: Plan,
    instruments: WindowInstruments,
    recording: Recording,
    tracker: Tracker,
    result: RunResult,
    terminal: Terminal,
) -> None:
    """Measure a running process until it ends, for `measure.duration_s`, or until a signal; all are a normal end."""
    pid, limit_s = plan.job.measure.pid or 0, plan.job.measure.duration_s
    process = find_earlier_process(pid)
    result.notes += [NO_PARTS.format(pid), *([] if plan.run.energy.missing else [OTHERS.format(pid)])]
    if process.unreadable:
        result.notes.append(UNREADABLE.format(pid, process.user or "this one", ", ".join(process.unreadable)))
    plan.run.training = {"accelerator": "cuda" if plan.on_gpu else "cpu"}
    plan.describe()
    terminal.end_stage()
    limit = f", for {span(limit_s)} at most" if limit_s else ""
    terminal.info(f"Measuring process {pid} until it ends{limit}, or Ctrl-C")
    with deferred_signals() as signals:
        end = Follower(process, plan, instruments, recording, tracker, signals).run(limit_s)
    result.notes.append(f"{end}.")
    if not plan.record.windows():
        raise machine_error(f"process {pid} ended before it was measured", "give a process that runs longer")


class Follower:
    """Records windows of a running process; `signals` are those that have arrived."""

    def __init__(
        self, process: RunningProcess, plan: Plan, instruments: WindowInstruments, recording: Recording,
        tracker: Tracker, signals: list[int],
    ) -> None:  # fmt: skip
        self._process, self._plan, self._signals = process, plan, signals
        self._instruments, self._recording, self._tracker = instruments, recording, tracker
        self._count = 0

    def run(self, limit_s: float | None) -> str:
        """Measure until the process ends, for a time, or until a signal; return why it was the end."""
        until_s = time.monotonic() + limit_s if limit_s else None
        end, pid = "", self._process.identity.pid
        while not end:
            if not self._process.is_alive:
                return ENDED.format(pid)
            before = self._instruments.read_start()
            if not self._count:
                self._plan.run.moments["opened_ns"] = before.at_ns
                self._plan.describe()
            window_until_s = min(time.monotonic() + WINDOW_S, until_s or float("inf"))
            has_ended = self._wait(window_until_s)
            after = self._instruments.read_end()
            self._instruments.mark_end()
            if has_ended:
                end = ENDED.format(pid)
            elif self._signals:
                end = STOPPED.format(signal.Signals(self._signals[0]).name)
            elif until_s is not None and time.monotonic() >= until_s:
                end = DURATION.format(limit_s)
            self._record(before, after)
        return end

    def _wait(self, until_s: float) -> bool:
        """Wait until a time, a signal or the end of the process; return whether it has ended."""
        written_s = time.monotonic()
        while (rest_s := until_s - time.monotonic()) > 0 and not self._signals:
            if wait_for_end(self._process, min(rest_s, MARK_S)):
                return True
            self._instruments.gpu_monitor.poll()
            if time.monotonic() - written_s >= GAUGES_WRITE_S:
                write_gauges(self._instruments.gauges, self._plan.record, durably=False)
                written_s = time.monotonic()
        return False

    def _record(self, before: Reading, after: Reading) -> None:
        opening = WindowOpening(PROCESS, self._count, 0)
        parts = {"e2e_s": (after.at_ns - before.at_ns) * NANOSECOND, "steps": 0.0}
        measured = RankWindow(before.at_ns, after.at_ns, 0, parts, [], False, 0.0, 0.0, None)
        self._recording.add(opening, WindowMeasured([measured], []), before, after)
        self._recording.save()
        self._instruments.discard_before(after.at_ns)
        self._tracker.flush(0.0)
        self._count += 1
