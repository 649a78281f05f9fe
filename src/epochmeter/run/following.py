"""A run from the start of its process on. The controller imports this module while that process imports torch."""

import os
import threading

from epochmeter.config.script import ATTACHED
from epochmeter.console.console import Terminal
from epochmeter.power.window_energy import Reading
from epochmeter.results.intervals import load_quantiles
from epochmeter.results.run_result import RunResult
from epochmeter.run.event_loop import EventLoop, run_secondary_event_loop
from epochmeter.run.instruments import WindowInstruments, idle_record, measure_idle_power, write_powers
from epochmeter.run.node_windows import open_nodes
from epochmeter.run.plan import Plan
from epochmeter.run.process import follow_process
from epochmeter.run.profiling import finish_trace, profile_steps
from epochmeter.run.recording import Recording
from epochmeter.run.script import RunningScript
from epochmeter.run.script_flops import measure_peaks
from epochmeter.run.script_loop import ScriptLoop
from epochmeter.run.trace_analysis import TraceAnalysis
from epochmeter.run.worker_process import WorkerProcess
from epochmeter.tracking.publisher import Tracker


def import_end() -> None:
    """Import what the end of a run uses, in a thread, so that nobody waits for it then.

    Not for a script with a `Meter`, which trains already: the thread would delay the readings of its first windows.
    """
    if ATTACHED not in os.environ:
        threading.Thread(target=_import_end, name="imports", daemon=True).start()


def _import_end() -> None:
    import epochmeter.console.run_end
    import epochmeter.run.record_end  # noqa: F401 (for the effect)

    load_quantiles()


def follow(
    process: WorkerProcess | RunningScript | None, plan: Plan, instruments: WindowInstruments, recording: Recording,
    tracker: Tracker, analysis: TraceAnalysis, before: Reading, result: RunResult, terminal: Terminal,
) -> None:  # fmt: skip
    """Measure the windows of a run until its process has ended: a training process, a script, or one that ran already.

    Raises:
        WorkerError: The process has failed.
    """
    match process:
        case WorkerProcess():
            messages = process.messages()
            EventLoop(process, plan, instruments, recording, tracker, terminal).run(messages)
            result.notes += finish_trace(messages, plan, instruments.meter, analysis)
        case RunningScript(script, windows):
            nodes = open_nodes(plan.script_node, plan.record, windows)
            ScriptLoop(script, windows, plan, instruments, recording, tracker, nodes, before).run()
        case None:
            follow_process(plan, instruments, recording, tracker, result, terminal)


def follow_secondary(process: WorkerProcess, plan: Plan, instruments: WindowInstruments) -> None:
    """Measure on another node than the first until the training process there has ended; WorkerError if it failed."""
    messages = process.messages()
    run_secondary_event_loop(messages, process, plan, instruments)
    finish_trace(messages, plan, instruments.meter)


def measure_after(
    process: WorkerProcess | RunningScript | None, plan: Plan, instruments: WindowInstruments, result: RunResult,
    terminal: Terminal,
) -> None:  # fmt: skip
    """Measure what is measured when the process has ended, and complete the facts in the record."""
    after = measure_idle_power(instruments.meter, plan.job.meter.idle_s, result, terminal)
    if isinstance(process, RunningScript):
        terminal.stage("Measuring the device's peak")
        measure_peaks(plan, instruments, process.windows)
        terminal.end_stage()
    plan.run.idle = idle_record(before=instruments.idle, after=after)
    if reason := instruments.gpu_counters.reason:
        plan.run.gpu_counters = {"reason": reason}
    if reason := instruments.cpu_load.reason:
        plan.run.run_queue = {"reason": reason}
    plan.describe()
    write_powers(instruments.meter, plan.record)
    if plan.job.profiler.program:
        terminal.stage(f"Training the first steps again under {plan.job.profiler.program}")
        result.notes += profile_steps(plan)
