"""One run, from its request to its result.

`measure` makes the plan and claims the devices, `run_first_node` prepares them and starts the process. What follows is
in following.py, and the end, whatever ended the run, in finish.py.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from epochmeter.config.installation import ROOT
from epochmeter.config.request import RunRequest
from epochmeter.config.script import ATTACHED, is_program
from epochmeter.console.console import Terminal
from epochmeter.datasets.ready import prepare_dataset
from epochmeter.machine import device_lock
from epochmeter.machine.signals import prefer_stop
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.restore import refuse_unrestored, restore_after_kill
from epochmeter.power.knobs.restore_journal import SavedSetting
from epochmeter.results import documents
from epochmeter.results.budget import check_is_measured
from epochmeter.results.run_info import DatasetFacts, Energy
from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import read_points
from epochmeter.results.throughput import check_length
from epochmeter.run import launch
from epochmeter.run.completed import take_completed
from epochmeter.run.finish import finalizing, remove_empty_folders
from epochmeter.run.idle_wait import wait_idle
from epochmeter.run.instruments import (
    WindowInstruments,
    check_idle,
    cool_down,
    idle_record,
    measure_idle_power,
    open_instruments,
)
from epochmeter.run.interpreters import check_interpreter, find_interpreter
from epochmeter.run.job_status import NOT_SENT, JobStatus, reported_status
from epochmeter.run.moments import command_ns
from epochmeter.run.plan import Plan, command_line, open_restore_journal
from epochmeter.run.recording import Recording
from epochmeter.run.resolve import plan_warnings, resolve_plan
from epochmeter.run.script import RunningScript, running_script
from epochmeter.run.trace_analysis import TraceAnalysis
from epochmeter.run.worker_process import WorkerError, WorkerProcess
from epochmeter.shared.problem import Problem, format_problem, problem_of
from epochmeter.tracking.publisher import make_tracker

TOGETHER_HINT = 'if its script waits for this one, as clients of federated learning do: Meter("measure.lock=false")'
"""For a script that waits for another one, and would do so for ever if the other one waits for it."""


def run(request: RunRequest, terminal: Terminal, earlier: Sequence[RunResult] = ()) -> RunResult:
    """Measure one run, to whatever end; a signal that stopped it is in the result, for the caller to raise again.

    `earlier` are the results of the sweep's runs so far.
    """
    result = RunResult(
        request.number, request.overrides, request.of_sweep, request.folder, start_monotonic_s=time.monotonic()
    )
    try:
        with prefer_stop():
            measure(request, result, terminal, earlier)
    except (ValueError, RuntimeError, OSError) as error:
        result.set_failed(problem_of(error)._replace(code="job"))
        terminal.refused(error)
    except (KeyboardInterrupt, SystemExit) as stop:
        terminal.end_stage()
        result.set_stopped(stop)
        terminal.failed(result)
    remove_empty_folders(request)
    return result


def measure(request: RunRequest, result: RunResult, terminal: Terminal, earlier: Sequence[RunResult]) -> None:
    """Make the plan, and measure the run on locked devices unless a completed run serves the request.

    A script that has run without a controller is not run again: its record is made from its events.
    """
    begun_ns = command_ns(of_sweep=request.of_sweep)
    if events := request.job.measure.events:
        from epochmeter.run.unattended import record_unattended

        record_unattended(request, Path(events), result, terminal)
        return
    terminal.stage("Checking the machine and the dataset")
    unrestored = restore_after_kill(open_restore_journal(request), terminal.warn)
    plan = resolve_plan(request)
    plan.run.moments["command_ns"] = begun_ns
    terminal.end_stage()
    points = read_points(request.folder.parent)
    name = points.label(request.number) or plan.run.name
    if take_completed(plan, name, result, terminal):
        return
    command, python = plan.job.measure.command, plan.job.device.python
    is_running = ATTACHED in os.environ or plan.job.measure.pid is not None
    starts_python = not is_program(command) and not is_running
    if starts_python:
        check_interpreter(find_interpreter(python))
    result.rehearsal = plan.run.rehearsal
    eta = points.forecast(request.number, earlier)
    if request.of_sweep and not plan.job.verbose:
        terminal.sweep_run_started(name, result.rehearsal, plan_warnings(plan), eta)
    else:
        terminal.run_started(name, plan.record.folder, result.rehearsal, plan_warnings(plan), eta)
    if command and python and starts_python:
        terminal.info_once(f"The script runs with {python}.")
    with claimed_devices(plan, unrestored, result, terminal):
        result.notes += plan.open_record()
        if plan.node.is_first:
            with reported_status(plan, result, earlier) as status:
                run_first_node(plan, result, terminal, status)
        else:
            run_other_node(plan, result, terminal)
        if not plan.script_node.is_first:
            from epochmeter.run.node_windows import hand_over

            lines = plan.record.windows()
            is_joined = bool(lines) and plan.run.training.get("ranks", 1) > lines[-1]["ranks"]
            result.folder = hand_over(plan.script_node, plan.record, is_joined=is_joined)
        result.end_monotonic_s = time.monotonic()


@contextmanager
def claimed_devices(
    plan: Plan, unrestored: list[SavedSetting], result: RunResult, terminal: Terminal
) -> Iterator[None]:
    """Lock the devices of a run, and restore settings that a killed run left changed."""
    locked = plan.devices if plan.job.measure.lock else []
    if not locked:
        result.notes.append("`measure.lock=false`: other runs may have used the device at the same time.")
    holder = f"pid {os.getpid()} since {plan.run.started}: {command_line()}"

    def say(waiting: str) -> None:
        terminal.warn(format_problem(Problem(waiting, TOGETHER_HINT if ATTACHED in os.environ else "")))

    with device_lock.lock_devices(locked, plan.job.machine.lock_dir, holder, say):
        # Again: a run that held the device until now may have been killed.
        unrestored = restore_after_kill(plan.journal, terminal.warn, unrestored)
        refuse_unrestored([knob for knob, _ in plan.targets.values()], plan.journal)
        used = {name for gpu in plan.used_gpus for name in gpu.values()}
        for setting in unrestored:
            if not setting.devices or used.intersection(setting.devices):
                result.notes.append(f"{setting.knob} could not be restored to its original {setting.original}.")
        yield


def run_first_node(plan: Plan, result: RunResult, terminal: Terminal, status: JobStatus = NOT_SENT) -> None:
    """Run on the first node: its record is open and its devices are locked. An error or stop is set in the result."""
    tracker = make_tracker(plan.record, **plan.job.tracking.to_dict())
    with finalizing(plan, result, tracker, terminal), TraceAnalysis(plan.record.folder) as analysis:
        result.notes += tracker.wait_for_previous(terminal.info)
        with prepared_device(plan, result, terminal) as (settings, instruments):
            terminal.stage("Starting the training process" if plan.job.measure.pid is None else "Reading the process")
            recording = Recording(plan, instruments, settings, terminal, status)
            tracker.open()
            instruments.cpu_load.background_pids.update(tracker.export_pids)
            if not plan.job.measure.command:
                tracker.start()  # ranks connect when they have imported torch
            before = instruments.read_start()
            with started_process(plan, result) as process:
                if plan.node.nodes == 1 and ATTACHED not in os.environ:
                    recording.start(before)
                if plan.job.measure.command:
                    tracker.start()  # now, as importing MLflow would delay the start of a script
                from epochmeter.run import following  # while the process imports torch

                following.import_end()
                following.follow(process, plan, instruments, recording, tracker, analysis, before, result, terminal)
            recording.process_ended()
            following.measure_after(process, plan, instruments, result, terminal)
        terminal.stage("Analyzing the profiler's trace")
        result.notes += analysis.notes()


@contextmanager
def started_process(plan: Plan, result: RunResult) -> Iterator[WorkerProcess | RunningScript | None]:
    """Start the training process or the script, and wait for its end; None for a process that runs already."""
    if plan.job.measure.command and plan.job.measure.pid is None:
        with running_script(plan, result) as script:
            yield script
        return
    plan.run.moments["process_ns"] = time.monotonic_ns()
    with start_training(plan) if plan.job.measure.pid is None else nullcontext() as worker:
        yield worker
    plan.run.moments["ended_ns"] = time.monotonic_ns()


def run_other_node(plan: Plan, result: RunResult, terminal: Terminal) -> None:
    """Run on another node: train and measure; the first node's controller gets the energy of each window."""
    try:
        with prepared_device(plan, result, terminal) as (_, instruments), start_training(plan) as worker:
            from epochmeter.run.following import follow_secondary  # while the process imports torch

            follow_secondary(worker, plan, instruments)
    except WorkerError as error:
        result.set_failed(problem_of(error))
        terminal.failed(result)
    else:
        shutil.rmtree(plan.record.folder.parent, ignore_errors=True)


@contextmanager
def prepared_device(
    plan: Plan, result: RunResult, terminal: Terminal
) -> Iterator[tuple[AppliedSettings, WindowInstruments]]:
    """Prepare the dataset, wait for an idle and cool device, set it up, open the instruments, measure idle power."""
    job = plan.job
    terminal.stage(f"Checking dataset {job.dataset.name}")
    plan.run.dataset = documents.check(prepare_dataset(job.dataset, job.storage, ROOT, terminal.info), DatasetFacts)
    plan.describe(durably=False)
    terminal.end_stage()
    check_length(job, plan.run.training_samples or 0, (plan.ranks or 1) * plan.node.nodes)
    wait_idle(plan, result, terminal)
    cool_down(plan, result, terminal)
    terminal.stage("Preparing the device and its meter")
    with (
        AppliedSettings(list(plan.targets.values()), plan.journal, terminal.warn) as settings,
        open_instruments(plan, terminal) as instruments,
    ):
        instruments.own_processes(processes_before(plan))
        plan.record_settings(settings.applied)
        for key, setting in (plan.run.applied or {}).items():
            terminal.info_once(f"{key} set to {setting} (restored after the run)")
        plan.run.energy, plan.run.storage = Energy(**instruments.meter.energy), instruments.data_source.metadata
        plan.describe(durably=False)
        if (missing := plan.run.energy.missing) and job.meter.name != "none":
            terminal.no_energy(missing.message)
        check_is_measured(job, plan.run)
        since_ns = time.monotonic_ns()
        idle = measure_idle_power(instruments.meter, job.meter.idle_s, result, terminal)
        plan.run.idle = idle_record(before=idle)
        plan.describe(durably=False)
        if job.measure.pid is None:
            check_idle(plan, instruments, since_ns, result, terminal)
        yield settings, instruments._replace(idle=idle)


def processes_before(plan: Plan) -> list[int]:
    """Return the process of a run that runs already: a given one, or a script with a `Meter`; else an empty list."""
    if plan.job.measure.pid is not None:
        return [plan.job.measure.pid]
    return [os.getppid()] if ATTACHED in os.environ else []


def start_training(plan: Plan) -> AbstractContextManager[WorkerProcess]:
    """Start the training process, or this node's ranks of it."""
    job, folder, limit_s = plan.job, plan.record.folder, plan.job.sweep.timeout_s
    # Only the first rank reports progress, so the other nodes' ranks are silent while a window is open.
    silence_s = job.sweep.hung_after_s if plan.node.is_first else None
    return launch.launched(folder, job.device.python, plan.gpus, plan.ranks, plan.node, limit_s, silence_s)
