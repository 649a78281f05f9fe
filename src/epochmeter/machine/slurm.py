"""What Slurm says of its nodes and jobs, by the programs that it brings; nothing of ours is installed on its host."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

PATIENCE_S = 30.0
ARRAY_LIMIT = 1001
"""Jobs in an array, where Slurm does not say how many it takes: its own default."""
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
AT_WORK = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
OUT_OF_USE = ("down", "drain", "fail", "unk", "maint", "reboot", "power")
"""How the states begin of a node that takes no job by now."""


GONE = "GONE"
"""Ours for the state of a job that Slurm has forgotten, which it does some minutes after its end."""


class Job(NamedTuple):
    """A job as Slurm knows it; one of an array goes by `17_3`."""

    job_id: str
    state: str
    """In capitals, such as PENDING, RUNNING, COMPLETED, NODE_FAIL."""
    node: str = ""
    why: str = ""

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING

    @property
    def has_ended(self) -> bool:
        return self.state not in (*WAITING, *AT_WORK)


class Machine(NamedTuple):
    """A node of the cluster."""

    name: str
    features: frozenset[str]
    state: str

    @property
    def is_in_use(self) -> bool:
        """Whether it takes jobs: `idle*` is a node that does not answer."""
        return not self.state.startswith(OUT_OF_USE) and not self.state.endswith("*")


def machines(partition: str | None = None) -> list[Machine]:
    """The nodes of a partition, or of all. RuntimeError where there is no Slurm, or it does not answer."""
    among = [f"--partition={partition}"] if partition else []
    rows = ask("sinfo", "--noheader", "--Node", "--format=%N|%f|%T", *among).splitlines()
    found = dict.fromkeys(rows)  # once for each partition
    return [machine(row) for row in found]


def machine(row: str) -> Machine:
    name, features, state = row.split("|")
    return Machine(name, frozenset(re.findall(r"[^,\s]+", features)) - {"(null)"}, state.lower())


def jobs(name: str) -> dict[str, Job]:
    """This user's jobs of a name, by their ids: those that wait or run, and those that ended a while ago.

    Slurm forgets an ended one after its MinJobAge, 5 minutes unless told otherwise. RuntimeError where it does not
    answer.
    """
    rows = ask("squeue", "--me", "--noheader", "--array", "--states=all", f"--name={name}", "--format=%i|%T|%N|%r")
    found = (Job(*row.split("|", 3)) for row in rows.splitlines())
    return {job.job_id: job for job in found}


def array_limit() -> int:
    """How many jobs an array may have whose first is 0; 1 where Slurm is told to take no arrays."""
    try:
        told = ask("scontrol", "show", "config")
    except RuntimeError:
        return ARRAY_LIMIT
    limits = re.findall(r"(?:^MaxArraySize\s*=\s*|\bmax_array_tasks=)(\d+)", told, re.MULTILINE)
    return max(1, min(map(int, limits), default=ARRAY_LIMIT))


def cancel(job_ids: Collection[str]) -> None:
    """Has Slurm end these jobs, by SIGTERM first; RuntimeError where it does not answer."""
    if job_ids:
        ask("scancel", *job_ids)


def ask(program: str, *arguments: str) -> str:
    """What one of Slurm's programs says; RuntimeError where it is not there, fails or hangs."""
    found = shutil.which(program)
    if found is None:
        raise RuntimeError(
            f"Slurm was asked for, and there is no program {program} on PATH. Start this on a host of the cluster."
        )
    try:
        return subprocess.run(
            [found, *arguments],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        ).stdout  # fmt: skip
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split()) or f"code {error.returncode}"
        raise RuntimeError(f"{program} failed: {said}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"{program} did not answer: {error}") from error


def lacking(constraint: str | int, there: Sequence[Machine]) -> list[str]:
    """The features that a constraint names and no node has; what joins them, as in `nano&nvme|agx`, is Slurm's."""
    known = {feature for each in there for feature in each.features}
    return [word for word in named(constraint) if word not in known]


def serving(constraint: str | int | None, there: Sequence[Machine]) -> list[Machine]:
    """The nodes that have any feature of the constraint: no fewer than those that Slurm would take."""
    words = {*named(constraint)} if constraint else set()
    return [each for each in there if not words or words & each.features]


def named(constraint: str | int) -> list[str]:
    """The features in a constraint, such as `nano`, `80gb` or `3090`, which is a number where it was typed."""
    return re.findall(r"[^\s&|,()\[\]]+", re.sub(r"\*\d+", "", str(constraint)))


def company(environment: Mapping[str, str]) -> str | None:
    """Why what the whole node uses is not this job's alone; None outside of Slurm, and where the node is exclusive."""
    job_id = environment.get("SLURM_JOB_ID")
    if job_id is None:
        return None
    try:
        told = ask("scontrol", "--oneliner", "show", "job", job_id)
    except RuntimeError as error:
        return f"Whether Slurm gives the node to this job alone is not known: {error}."
    shared = re.search(r"\bOverSubscribe=(\S+)", told)
    if shared and shared.group(1) == "NO":
        return None
    return (
        f"Slurm's job {job_id} shares its node with others, whose energy cannot be told from its own: "
        "ask for the whole node, by --exclusive or hydra.launcher.exclusive=true."
    )
