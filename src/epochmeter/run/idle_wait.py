"""The wait for other processes to leave the processor idle before a run."""

import os
import time

from epochmeter.config.script import ATTACHED
from epochmeter.console.console import Terminal
from epochmeter.machine.cpu_load import CONTENDED, CpuLoad, CpuUse, describe
from epochmeter.machine.recorded.root import root_folder
from epochmeter.results.run_result import RunResult
from epochmeter.run.plan import Plan
from epochmeter.shared.units import percent

LOOK_S = 1.0  # how long the processor is observed at a time
UNKNOWN_USE = "it is not known how much of the processor others use"


def wait_idle(plan: Plan, result: RunResult, terminal: Terminal) -> None:
    """Wait until others use less than `CONTENDED` of the processor, for at most `sweep.wait_idle`; record the wait.

    A run that begins nevertheless has a note.
    """
    most_s, begun_s = plan.job.sweep.wait_idle, time.monotonic()
    if not most_s:
        return
    load = CpuLoad(root_folder(plan.job.machine.root), always_names=True)
    if ATTACHED in os.environ:
        load.own_pids.add(os.getppid())  # the script that waits for this process
    use, waited_s, is_said = _look(load), time.monotonic() - begun_s, False
    while _is_busy(use) and waited_s < most_s:
        if not is_said:
            wait = f"Waiting up to {most_s:g} s for less than {percent(CONTENDED)}."
            terminal.info(f"Other processes use {_used(use)}. {wait}")
        use, waited_s, is_said = _look(load), time.monotonic() - begun_s, True
    if use.other_fraction is None:
        plan.run.idle_wait = {"waited_s": round(waited_s, 3), "reason": UNKNOWN_USE}
        result.notes.append(f"sweep.wait_idle={most_s:g} has no effect: {UNKNOWN_USE}.")
    else:
        plan.run.idle_wait = {"waited_s": round(waited_s, 3), "other_cpu_fraction": round(use.other_fraction, 3)}
    plan.describe(durably=False)
    if _is_busy(use):
        waited = f"after {waited_s:.0f} s of waiting (`sweep.wait_idle={most_s:g}`)"
        result.notes.append(f"{waited}, the run began while other processes used {_used(use)}.")


def _look(load: CpuLoad) -> CpuUse:
    """Observe the use of the processor."""
    begun_ns = time.monotonic_ns()
    load.mark()
    time.sleep(LOOK_S)
    ended_ns = time.monotonic_ns()
    load.mark()
    use = load.window(begun_ns, ended_ns)
    load.discard_before(ended_ns)
    return use


def _is_busy(use: CpuUse) -> bool:
    return use.other_fraction is not None and use.other_fraction >= CONTENDED


def _used(use: CpuUse) -> str:
    """Return how much others use, and the processes that use most of it, as a text."""
    text = f"{percent(use.other_fraction or 0.0)} of the processor"
    return f"{text}: {describe(use.others)}" if use.others else text
