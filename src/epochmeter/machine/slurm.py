"""Slurm's jobs, through its command-line programs."""

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from typing import NamedTuple

from epochmeter.machine.energy_codes import EnergyCode
from epochmeter.shared.problem import Problem, machine_error, problem_of

COMMAND_LIMIT_S = 30.0
GONE = "GONE"  # state of a job that Slurm no longer lists, some minutes after its end; not a state of Slurm
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


def run_command(program: str, *arguments: str) -> str:
    """Run one of Slurm's programs and return its output; RuntimeError if that fails."""
    path = shutil.which(program)
    if path is None:
        raise machine_error(f"Slurm's {program} is not on PATH", "run this command on a host of the cluster")
    try:
        return subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=COMMAND_LIMIT_S,
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
