"""Slurm's jobs, through its command-line programs."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.shared.problem import Place, Problem, machine_error, problem_of

COMMAND_LIMIT_S = 30.0
UNKNOWN_JOB = "Invalid job id"  # in scontrol's message on a job that ended some minutes ago
NOTICE_LIMIT_S = 5.0  # for an answer while Slurm ends this process, which it kills 30 s later by default
RUNNING = "RUNNING"
GONE = "GONE"  # state of a job that Slurm no longer lists, some minutes after its end; not a state of Slurm
NOTICE_S = 90  # time before a job's limit at which it gets SIGTERM, to restore device settings and write its summary
EARLY_S = 60  # by how much earlier Slurm may send it
PROBLEMS = {
    "NODE_FAIL": ("node", "its node {node} failed", ""),
    "BOOT_FAIL": ("node", "its node {node} did not start", ""),
    "TIMEOUT": ("timeout", "it reached its time limit on {node}", "hydra.launcher.time"),
    "DEADLINE": ("timeout", "it reached its deadline on {node}", ""),
    "OUT_OF_MEMORY": ("oom", "it exceeded its memory limit on {node}", "hydra.launcher.mem"),
    "CANCELLED": ("stopped", "it was canceled", ""),
    "PREEMPTED": ("stopped", "it was preempted by another job", ""),
    GONE: ("node", "Slurm no longer lists it, and it wrote no result", ""),
}
"""State in which Slurm ended a job -> code of the problem, its reason, and the key of the limit that was reached."""
WITHOUT_MESSAGE = "killed", "its process ended without an error message", ""
STATES_BY_REASON = {"NodeDown": "NODE_FAIL", "TimeLimit": "TIMEOUT", "DeadLine": "DEADLINE"}
"""Slurm's reason for the end of a job -> the state that the job has when all of its processes have ended."""
FAILED_NODES = r"(down|fail|unknown)|.*\*$"
"""Pattern of states of nodes that have failed; those with a star do not respond. To save power, others are
`powered_down`."""
NODE_ENERGY_PLUGINS = ("pm_counters", "ipmi", "xcc")
"""Slurm's plugins that read the energy of a node: of a Cray, a BMC, and Lenovo's XCC."""
NO_VALUE = 2**63  # Slurm's marks for an unknown count are above it
ENDED_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT", GONE,
)  # fmt: skip
"""A job in any other state, including states of newer versions of Slurm, may still run or start."""


class SlurmJob(NamedTuple):
    """A Slurm job: its ID is such as `17`, or `17_3` for a task of an array; its state is Slurm's, in capitals."""

    job_id: str
    state: str
    node: str = ""  # empty until Slurm assigns one
    reason: str = ""

    @property
    def is_waiting(self) -> bool:
        return not self.node and not self.has_ended

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED_STATES


def list_jobs(name: str) -> dict[str, SlurmJob]:
    """List this user's jobs with a name, by ID; Slurm forgets an ended job after its MinJobAge (5 minutes)."""
    options = ("--me", "--noheader", "--array", "--states=all", f"--name={name}", "--format=%i|%T|%N|%r")
    jobs = (SlurmJob(*row.split("|", 3)) for row in run_command("squeue", *options).splitlines())
    return {job.job_id: job for job in jobs}


def cancel(job_ids: Collection[str]) -> None:
    """Cancel jobs, which get SIGTERM first; RuntimeError if Slurm does not respond."""
    run_command("scancel", *job_ids)


def end_problem(job: SlurmJob, context: str = "") -> Problem:
    """Return the problem of a job that Slurm has ended, after its context, with those of its nodes that failed."""
    code, reason, key = PROBLEMS.get(job.state, WITHOUT_MESSAGE)
    node = (failed_nodes(job.node) if job.state == "NODE_FAIL" else "") or job.node
    message = f"{context}{reason.format(node=node)} (Slurm job {job.job_id}: {job.state})"
    return Problem(message, f"raise `{key}`" if key else "", code, Place(key=key, host=node))


def failed_nodes(nodes: str) -> str:
    """Return those of Slurm's nodes, such as `n[0-3]`, that have failed, as `n1,n2`; empty if Slurm shows none."""
    options = ("--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T")
    with suppress(RuntimeError):
        states = (row.split() for row in run_command("sinfo", *options, limit_s=NOTICE_LIMIT_S).splitlines())
        return ",".join(dict.fromkeys(name for name, state in states if re.match(FAILED_NODES, state)))
    return ""


def ending_job(environment: Mapping[str, str]) -> SlurmJob | None:
    """Return this process's job with the state in which Slurm ends it, after a SIGTERM; None if Slurm does not end it.

    A job that is still running gets the signal before its time limit. One that has ended is not ended now: a process
    may outlive it, such as a terminal that was opened in it. The state is empty if Slurm does not respond.
    """
    job_id, state = environment.get("SLURM_JOB_ID"), ""
    if job_id is None:
        return None
    try:
        description = run_command("scontrol", "--oneliner", "show", "job", job_id, limit_s=NOTICE_LIMIT_S)
        # The ID may also be that of an array, of which all jobs are shown.
        row = next((row for row in description.splitlines() if row.startswith(f"JobId={job_id} ")), "")
        state = _state_of_end(dict(re.findall(r"(\w+)=(\S*)", row))) if row else ""
    except RuntimeError as error:
        if UNKNOWN_JOB in str(error):
            return None
    if state == RUNNING:
        return None
    nodes = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURMD_NODENAME", "")
    return SlurmJob(job_id, state, nodes)


def _state_of_end(fields: Mapping[str, str]) -> str:
    """Return the state in which a job ends, by the fields that scontrol shows; `RUNNING` if it does not end now."""
    state, reason = fields.get("JobState", ""), fields.get("Reason", "")
    if state in PROBLEMS:
        return state
    if reason in STATES_BY_REASON:
        return STATES_BY_REASON[reason]
    # A job that was preempted and queued again may keep the time of that.
    if fields.get("StartTime", "") <= fields.get("PreemptTime", "") and fields.get("PreemptTime", "")[:1].isdigit():
        return "PREEMPTED"
    if state == "COMPLETING":
        return "CANCELLED"
    if state in ENDED_STATES:
        return RUNNING
    with suppress(ValueError):  # a job without a limit
        end_s = datetime.fromisoformat(fields.get("EndTime", "")).timestamp()
        return "TIMEOUT" if end_s - time.time() < NOTICE_S + EARLY_S else RUNNING
    return RUNNING


def run_command(program: str, *arguments: str, limit_s: float = COMMAND_LIMIT_S) -> str:
    """Run one of Slurm's programs and return its output; RuntimeError if that fails."""
    path = shutil.which(program)
    if path is None:
        raise machine_error(f"Slurm's {program} is not on PATH", "run this command on a host of the cluster")
    try:
        return subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit_s,
            check=True,
        ).stdout  # fmt: skip
    except subprocess.CalledProcessError as error:
        message = " ".join(error.stderr.split()) or f"code {error.returncode}"
        raise RuntimeError(f"{program} failed: {message}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{program} did not respond: {error}") from error


def accounts_whole_nodes() -> bool:
    """Return whether Slurm accounts the energy of whole nodes, rather than of processors only, or none."""
    plugin = re.search(r"^AcctGatherEnergyType\s*=\s*(\S+)", run_command("scontrol", "show", "config"), re.MULTILINE)
    return plugin is not None and plugin[1].rpartition("/")[2] in NODE_ENERGY_PLUGINS


def consumed_energy_j(job_id: str) -> float | None:
    """Return the joules that Slurm's accounting counted for an ended job; None if it counted none.

    Its rows (the job, its batch script, its steps) are of the same nodes, so that the largest one is that of the job.
    """
    rows = run_command("sacct", "--jobs", job_id, "--noheader", "--parsable2", "--format=JobIDRaw,ConsumedEnergyRaw")
    counts = (row.rpartition("|")[2] for row in rows.splitlines())
    return max((float(count) for count in counts if count.isdigit() and 0 < int(count) < NO_VALUE), default=None)


def sharing_problem(environment: Mapping[str, str] = os.environ) -> Problem | None:
    """Why the node's energy is not only this job's; None outside of Slurm and on an exclusive node."""
    job_id = environment.get("SLURM_JOB_ID")
    if job_id is None:
        return None
    try:
        description = run_command("scontrol", "--oneliner", "show", "job", job_id)
    except RuntimeError as error:
        unchecked = problem_of(error).within(f"Cannot check that Slurm job {job_id} has its node exclusively")
        return unchecked._replace(code=EnergyCode.SHARED_NODE.value)
    shared = re.search(r"\bOverSubscribe=(\S+)", description)
    if shared and shared.group(1) == "NO":
        return None
    return Problem(
        f"Slurm job {job_id} shares its node with other jobs, whose energy cannot be separated",
        "request the node exclusively: --exclusive or hydra.launcher.exclusive=true",
        EnergyCode.SHARED_NODE.value,
    )
