"""Runs that need no measurement: completed by an earlier start of the same command, or by another command."""

from contextlib import suppress

from epochmeter.config.installation import ROOT, display_path
from epochmeter.config.secrets import redact_tree
from epochmeter.console.console import Terminal
from epochmeter.machine.host import git_commit
from epochmeter.results import reuse
from epochmeter.results.run_result import RunResult
from epochmeter.run.plan import Plan
from epochmeter.shared.record import Record
from epochmeter.sweep.sweep_folder import reuses_none


def take_completed(plan: Plan, name: str, result: RunResult, terminal: Terminal) -> bool:
    """Set the result of a completed run that serves this request, and return whether there is one."""
    if (plan.request.of_sweep or plan.job.sweep.resume) and is_completed(plan):
        if plan.node.nodes > 1:
            hint = "omit `sweep.resume=true` to measure it again; `srun --kill-on-bad-exit` ends all nodes together"
            raise ValueError(f"{plan.record.folder} is completed, and other nodes measure it again\n  hint: {hint}")
        if not plan.request.of_sweep:  # whose table lists it
            text = f"Already completed: {display_path(plan.record.folder)}"
            terminal.info(f"{text}\n  hint: to measure it again add `sweep.again=true`")
        result.set_completed_earlier(plan.record)
    elif reused := find_reusable(plan):
        reuse.write_reference(plan.record.folder, reused, redact_tree(result.overrides))
        result.reused = reused.folder
        terminal.reused(name, reused.folder, reuse.measured_commit(reused), git_commit(ROOT))
        result.set_completed_earlier(reused)
    return result.earlier


def is_completed(plan: Plan) -> bool:
    """Return whether the run is completed, and was a rehearsal for the same reasons, if any; not if it is damaged."""
    with suppress(*reuse.READ_ERRORS):
        is_same = plan.record.is_completed(plan.run["identity"])
        return is_same and bool(plan.record.run()["rehearsal"] == plan.run["rehearsal"] and plan.record.summary())
    return False


def find_reusable(plan: Plan) -> Record | None:
    """Return a completed run of the same identity that another command measured; None if there is none to reuse."""
    folder = plan.record.folder
    if not plan.request.of_sweep or plan.run["rehearsal"] or plan.node.nodes > 1 or reuses_none(folder.parent):
        return None
    return reuse.find_completed(folder, plan.run["identity"])
