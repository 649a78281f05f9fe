"""Runs that need no measurement: completed by an earlier start of the same command, or by another command."""

from contextlib import suppress

from epochmeter.config.installation import ROOT, display_path
from epochmeter.config.secrets import conceal_tree
from epochmeter.console.console import Terminal
from epochmeter.datasets.ready import inspect_users_folder
from epochmeter.machine.host import git_commit
from epochmeter.results import reuse
from epochmeter.results.run_folder import READ_ERRORS
from epochmeter.results.run_info import read_run
from epochmeter.results.run_result import RunResult
from epochmeter.run.plan import Plan, identity_of, recorded_differences
from epochmeter.shared.problem import Problem, format_problem, input_error
from epochmeter.shared.record import Record
from epochmeter.sweep.sweep_folder import reuses_none


def take_completed(plan: Plan, name: str, result: RunResult, terminal: Terminal) -> bool:
    """Set the result of a completed run that serves this request, and return whether there is one.

    A run that this command has completed before and that does not count now, is named with the reason.
    """
    takes_own = plan.request.of_sweep or plan.job.sweep.resume
    if takes_own and plan.digest is None:
        complete_identity(plan, terminal)
    if takes_own and is_completed(plan):
        if plan.node.nodes > 1:
            hint = "add `sweep.again=true` to measure it again; `srun --kill-on-bad-exit` ends all nodes together"
            raise input_error(f"{plan.record.folder} is completed, and other nodes measure it again", hint)
        if not plan.request.of_sweep:  # whose table lists it
            text = f"Already completed: {display_path(plan.record.folder)}"
            terminal.info(format_problem(Problem(text, "to measure it again add `sweep.again=true`")))
        result.set_completed_earlier(plan.record)
    elif reused := find_reusable(plan):
        reuse.write_reference(plan.record.folder, reused, conceal_tree(result.overrides))
        result.reused = reused.folder
        terminal.reused(name, reused.folder, reuse.measured_commit(reused), git_commit(ROOT))
        result.set_completed_earlier(reused)
    elif takes_own:
        plan.run.identity = identity_of(plan, plan.digest)
        name_uncounted(plan, terminal)
    return result.earlier


def complete_identity(plan: Plan, terminal: Terminal) -> None:
    """Complete the identity of a run whose dataset has no checksum yet.

    A user's folder is inspected. A dataset that is not here would be made as it was for a completed run of the same
    configuration.
    """
    dataset, sweep = plan.job.dataset, plan.record.folder.parent
    if not reuse.completed_runs(sweep):
        return
    if digest := inspect_users_folder(dataset, ROOT, terminal.info):
        plan.digest, plan.run.identity = digest, identity_of(plan, digest)
        return
    recorded = {run.identity for _, run in reuse.completed_runs(sweep)}
    for digest in reuse.recorded_digests(sweep, dataset.name):
        if (identity := identity_of(plan, digest)) in recorded:
            plan.run.identity = identity
            terminal.info_once(f"Dataset {dataset.name} is not here: completed runs count by the checksum in them.")
            return


def name_uncounted(plan: Plan, terminal: Terminal) -> None:
    """Print why completed runs of the same overrides do not count, once per reason."""
    sweep = plan.record.folder.parent
    if reuses_none(sweep):
        return
    overrides, command = (conceal_tree(own) for own in (plan.run.overrides, plan.job.measure.command))
    identity = plan.run.identity
    for job, run in reuse.completed_runs(sweep):
        recorded = (job.get("measure") or {}).get("command")  # absent in records of earlier versions
        is_same = run.overrides == overrides and recorded == command
        if is_same and run.identity != identity:
            with suppress(*READ_ERRORS):
                reasons = "; ".join(recorded_differences(plan.job, plan.run, job, run))
                terminal.info_once(f"Completed runs of the same configuration do not count: {reasons}.")
                return


def is_completed(plan: Plan) -> bool:
    """Return whether the run is completed, and was a rehearsal for the same reasons, if any; not if it is damaged."""
    with suppress(*READ_ERRORS):
        is_same = plan.record.is_completed(plan.run.identity)
        return is_same and bool(read_run(plan.record).rehearsal == plan.run.rehearsal and plan.record.summary())
    return False


def find_reusable(plan: Plan) -> Record | None:
    """Return a completed run of the same identity that another command measured; None if there is none to reuse."""
    folder = plan.record.folder
    if not plan.request.of_sweep or plan.run.rehearsal or plan.node.nodes > 1 or reuses_none(folder.parent):
        return None
    return reuse.find_completed(folder, plan.run.identity)
