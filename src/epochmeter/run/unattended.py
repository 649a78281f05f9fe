"""A script that ran without a controller: the record of its run, from the events that its `Meter` has left in a folder.

agent/unattended.py makes the folder. The record has times and counts, but neither energy nor gauges nor settings.
"""

import platform
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from epochmeter.config.request import RunRequest
from epochmeter.config.script import is_program
from epochmeter.console.console import Terminal
from epochmeter.machine import host
from epochmeter.results import documents
from epochmeter.results.run_info import Clock, Energy
from epochmeter.results.run_result import RunResult
from epochmeter.run.finish import finalizing
from epochmeter.run.nodes import Node
from epochmeter.run.plan import Plan, identity_of, open_restore_journal
from epochmeter.run.preflight import validate_job
from epochmeter.run.recovery import add_windows, running_processes
from epochmeter.run.resolve import compose, initial_run
from epochmeter.run.script import NO_PASS, check_trained
from epochmeter.segmentation.script import ScriptWindows
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.events import FOLDER_PREFIX, NO_CONTROLLER, SCRIPT_FILE
from epochmeter.shared.events_version import events_version
from epochmeter.shared.problem import Problem, input_error
from epochmeter.shared.process_identity import Process, pid_namespace
from epochmeter.shared.record import HOST_FILE, Record
from epochmeter.shared.record_files import read_document
from epochmeter.tracking.publisher import make_tracker

KEPT_KEYS = ("warmup_epochs", "measure.steps_per_window", "measure.loader")
"""Keys of a `Meter` that apply without a controller. The file may be from someone else: none names a server or code."""
UNUSED = f"{{}} had no effect, as {NO_CONTROLLER}"
MAY_RUN = "the script may still run on another host or in a container, and record more: its events are kept"
NO_END = Problem("the script was killed, or has ended without Python's exit (os._exit)", code="killed")
INSTALL = "install `epochmeter[tool]` in an environment of its own, or name one by `EPOCHMETER_CONTROLLER`"


class ProcessFacts(TypedDict):
    """The fields of a `Process`."""

    host: str
    pid: int
    boot_id: str | None
    start_ticks: str | None
    pid_namespace: str | None


class UnattendedScript(TypedDict):
    """The file in a folder of events, as agent/unattended.py writes it."""

    version: str
    command: list[str]
    overrides: list[str]
    reason: str
    started: str
    clock: Clock
    process: ProcessFacts


def read_script(folder: Path) -> UnattendedScript:
    """Return the facts on the script that has left its events in a folder; InputError if there are none."""
    try:
        script: UnattendedScript = documents.check(read_document(folder / SCRIPT_FILE), UnattendedScript)
    except (OSError, ValueError) as error:
        hint = f"name a folder `{FOLDER_PREFIX}...`, which a `Meter` without a controller has made"
        raise input_error(f"`{folder}` has no events of a script: {error}", hint) from error
    if script["version"] != events_version():
        problem = f"the events in `{folder}` were recorded by another version of epochmeter"
        raise input_error(problem, "use the version that the script's environment has")
    return script


def kept_overrides(script: UnattendedScript, given: Sequence[str]) -> list[str]:
    """Return the overrides of a script's `Meter` that apply, without those of keys that are given now."""
    given_keys = {override.partition("=")[0] for override in given}
    return [text for text in script["overrides"] if _applies(text) and text.partition("=")[0] not in given_keys]


def _applies(override: str) -> bool:
    return override.partition("=")[0] in KEPT_KEYS or override == "tracking=none"


def record_unattended(request: RunRequest, folder: Path, result: RunResult, terminal: Terminal) -> None:
    """Make the record of a script from the events in a folder, publish and print it, and delete the folder.

    InputError if the script still runs.
    """
    script = read_script(folder)
    may_run = _may_run(folder)
    plan = _plan(request, script)
    terminal.run_started(plan.run.name, plan.record.folder, [], [])
    result.notes += plan.open_record()
    plan.run.started, plan.run.clock = script["started"], script["clock"]
    if plan.run.host != platform.node():
        write_json(plan.record.folder / HOST_FILE, {"hostname": plan.run.host})
    tracker = make_tracker(plan.record, **plan.job.tracking.to_dict())
    with finalizing(plan, result, tracker, terminal):
        tracker.open()
        tracker.start()
        windows = ScriptWindows(folder, plan.job.measure.steps_per_window)
        windows.read(is_final=True)
        result.notes += add_windows(plan.record, plan.job, plan.run, windows, NO_CONTROLLER)
        plan.describe()
        result.notes += _unused_note(script) + ([MAY_RUN] if may_run else [])
        if failure := _failure(windows, script):
            result.set_failed(failure)
        else:
            check_trained(windows, plan, windows.notes or [windows.reason or NO_PASS])
    is_recorded = plan.record.windows() and plan.record.summary()
    if is_recorded and not may_run and folder.name.startswith(FOLDER_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _may_run(folder: Path) -> bool:
    """Return whether it is not known that the script has ended; InputError if it runs here."""
    running = running_processes(folder)
    here = [process for process in running if _is_visible(process)]
    if here:
        problem = f"the script of `{folder}` still runs (process {here[0].pid})"
        raise input_error(problem, "run this command again when the script has ended")
    return bool(running)


def _is_visible(process: Process) -> bool:
    return process.host == platform.node() and process.pid_namespace in (None, pid_namespace())


def _plan(request: RunRequest, script: UnattendedScript) -> Plan:
    """Return the plan of a run that is over: on this machine nothing is used, and no setting is changed."""
    validate_job(request.job, request.choices, request.overrides)
    process = Process(**script["process"])
    if process.host == platform.node():
        request, _ = compose(request, host.device_facts(request.job.machine.root))
    job = replace(request.job, strategy=replace(request.job.strategy, ranks=1))
    run = replace(
        initial_run(replace(request, job=job), []),
        energy=Energy(source="none", reason=NO_CONTROLLER, hint=INSTALL),
        **process._asdict(),
    )
    record, journal = Record(request.folder), open_restore_journal(request)
    plan = Plan(request, job, Node(), False, [], [], {}, record, journal, None, run)
    run.identity = identity_of(plan, None)
    return plan


def _unused_note(script: UnattendedScript) -> list[str]:
    keys = [f"`{override.partition('=')[0]}=`" for override in script["overrides"] if not _applies(override)]
    return [UNUSED.format(" and ".join(keys))] if keys else []


def _failure(windows: ScriptWindows, script: UnattendedScript) -> Problem | None:
    """Return why the script failed; None if it did not, as far as is known. A notebook's kernel need not end itself."""
    if windows.end:
        return Problem(windows.end)
    is_lost = windows.end is None and not windows.problem and not is_program(script["command"])
    return NO_END if is_lost else None
