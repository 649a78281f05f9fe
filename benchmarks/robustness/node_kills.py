"""Kill one of the two nodes on which a script trains, on a real Slurm, and check the run's only record.

    PYTHONPATH=src:tests:benchmarks python benchmarks/robustness/node_kills.py --each 10

Both nodes are this host, with own names and locks. At a random instant after the second epoch, all processes of a node
are killed, as by a power cut, and Slurm marks it as down. Each column except `kills` and `epochs` counts the runs of
which it holds. Needs root and Slurm (Debian: apt-get install slurm-wlm).

    PYTHONPATH=src:tests:benchmarks python benchmarks/robustness/node_kills.py sweep

Sweep: the killed run is one of a sweep over two and one nodes. The record of the killed run names the node and keeps
its epochs, the other run is completed on the node that is left, and the same command completes the sweep.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import slurm
from common.output import ARGUMENTS, print_table, sized
from project import ENVIRONMENT, copy_sources, free_ports, wait_until

from epochmeter.run.orphans import close_orphans
from epochmeter.shared.record import Record

NODES = ("n0", "n1")
STEPS, BATCH = 16, 4
MOST_S = 1.5  # latest kill after the second epoch
EPOCHS = 12  # of the runs of a sweep that no node ends
LIMIT_S = 600
SCRIPT = f"""
import os, time, torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(int(os.environ.get("EPOCHS_ON_" + os.environ["SLURM_NNODES"], 1000))):
    for inputs in torch.utils.data.DataLoader(torch.ones({STEPS * BATCH}, 4), {BATCH}):
        model(inputs).sum().backward()
        optimizer.step()
        time.sleep(0.02)
"""


class Outcome(NamedTuple):
    """What holds of the record of a run, one node of which was killed."""

    epochs: int  # of both nodes
    one_record: bool
    has_end: bool
    sums: bool  # counts and energies are those of both nodes, or absent with a note
    maxima: bool  # the largest and the mean are those of the ranks
    order: bool  # epochs are numbered from 0, without a gap

    @staticmethod
    def columns() -> tuple[str, ...]:
        return ("epochs", "one record", "has an end", "sums right", "maxima right", "epochs in order")


class SweepOutcome(NamedTuple):
    """What holds of a sweep, one node of which was killed during its run on two nodes."""

    epochs: int  # of both nodes
    names_node: bool
    keeps_epochs: bool  # those that had been recorded when the node was killed
    other_completed: bool
    resumed: bool  # the same command measures the killed run again, and no other one

    @staticmethod
    def columns() -> tuple[str, ...]:
        return ("epochs", "names the node", "keeps epochs", "other run completed", "resumed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=sized(10, 1), help="how often each node is killed (%(default)s)")
    parser.add_argument("kinds", nargs="*", choices=[[], "run", "sweep"], help="default: both")
    options = parser.parse_args(ARGUMENTS)
    if not slurm.is_available():
        print(f"This {slurm.REQUIREMENTS}.", file=sys.stderr)
        return 1
    failed = False
    with tempfile.TemporaryDirectory(prefix="epochmeter-slurm-") as folder:
        copy_sources(root := Path(folder) / "project")
        (root / "ranked.py").write_text(SCRIPT)
        with slurm.running(Path(folder), dict.fromkeys(NODES, "")) as cluster:
            for kind in options.kinds or KINDS:
                title, inject, columns = KINDS[kind]
                rows = []
                for node in reversed(NODES):
                    outcomes = [inject(cluster, root, node, seed) for seed in range(options.each)]
                    epochs, *held = (sum(column) for column in zip(*outcomes, strict=True))
                    rows.append([node, str(options.each), str(epochs), *map(str, held)])
                    failed |= min(held) < options.each
                print_table(title, ("node", "kills", *columns()), rows)
    return int(failed)


def kill_in_run(cluster: slurm.Cluster, root: Path, node: str, seed: int) -> Outcome:
    """Kill a node at a random instant; return what holds of the record when the run has ended."""
    multirun = new_multirun(root, f"{node}-{seed}")
    (port,) = free_ports(1)
    launcher = f"-m torch.distributed.run --nnodes=2 --node_rank=$SLURM_PROCID --master_port={port} ranked.py"
    keys = "tracking=none meter=estimate meter.tdp_w=65 warmup_epochs=0 machine.lock_dir=locks$SLURM_PROCID"
    command = f"exec {sys.executable} src/measure.py {keys} -- {launcher}"
    environment = {**ENVIRONMENT, **cluster.environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with open(multirun / "output.log", "w") as log:
        output: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        srun = ["srun", "-N2", "-n2", "--exclusive", "bash", "-c", command]
        process = subprocess.Popen(srun, cwd=root, env=environment, **output)
    try:
        wait_until(lambda: any(len(record.windows()) >= 2 for record in records(multirun)), LIMIT_S, pause_s=0.1)
        time.sleep(random.Random(f"{node} {seed}").uniform(0, MOST_S))
        cluster.stop_node(node)
        process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()
        for name in NODES:
            cluster.kill_processes(name)
        cluster.start_node(node)
    close_orphans(multirun, print)
    return outcome(multirun)


def kill_in_sweep(cluster: slurm.Cluster, root: Path, node: str, seed: int) -> SweepOutcome:
    """Kill a node at a random instant of a run on two nodes; return what holds of its sweep, which is then resumed."""
    multirun = new_multirun(root, f"sweep-{node}-{seed}")
    (port,) = free_ports(1)
    launcher = f"{sys.executable} -m torch.distributed.run --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID"
    keys = ["hydra/launcher=slurm", "hydra.launcher.poll_s=0.5", "tracking=none", "warmup_epochs=0", "nodes=2,1",
            "device=cpu", "machine.lock_dir=locks-${oc.env:SLURMD_NODENAME,none}"]  # fmt: skip
    script = ["bash", "-c", f"exec {launcher} --nproc_per_node=1 --master_port={port} ranked.py"]
    command = [sys.executable, "src/measure.py", "-m", *keys, *script]
    # The run on two nodes trains until one is killed: otherwise it may have ended on a busy host, and the other begun.
    environment = {**ENVIRONMENT, **cluster.environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                   "EPOCHS_ON_1": str(EPOCHS)}  # fmt: skip
    with open(multirun / "output.log", "w") as log:
        options: dict[str, Any] = {"cwd": root, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = subprocess.Popen(command, env=environment, **options)
        try:
            wait_until(lambda: len(windows_of_first(multirun)) >= 2, LIMIT_S, pause_s=0.1)
            time.sleep(random.Random(f"sweep {node} {seed}").uniform(0, MOST_S))
            before = windows_of_first(multirun)
            cluster.stop_node(node)
            process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
            cluster.kill_processes(node)
            cluster.start_node(node)
        killed, other = runs_of_sweep(multirun)
        failure = (killed.summary() or {}).get("failure") or {}
        windows, measured = killed.windows(), completed_id(other)
        environment[f"EPOCHS_ON_{len(NODES)}"] = str(EPOCHS)
        again = subprocess.run(command, env=environment, timeout=LIMIT_S, check=False, **options)
    both = [window for window in windows if window["ranks"] == len(NODES)]
    is_kept = measured in (None, completed_id(other))
    found = SweepOutcome(
        epochs=len(both),
        names_node=failure.get("code") == "node" and failure.get("where", {}).get("host") == node,
        keeps_epochs=windows[: len(before)] == before,
        other_completed=measured is not None,
        resumed=again.returncode == 0 and killed.is_completed() and other.is_completed() and is_kept,
    )
    if not all(found[1:]):
        print((multirun / "output.log").read_text(), file=sys.stderr)
    return found


def new_multirun(root: Path, name: str) -> Path:
    """Return a new folder of runs, which the project uses from now on."""
    multirun = root / f"multirun-{name}"
    (root / "multirun").unlink(missing_ok=True)
    multirun.mkdir()
    (root / "multirun").symlink_to(multirun)
    return multirun


def runs_of_sweep(multirun: Path) -> list[Record]:
    """Return the records of the two runs of the only sweep; one that did not begin has no folder."""
    return [Record(jobs.parents[1] / number) for jobs in multirun.glob("2*/slurm/jobs.json") for number in "01"]


def windows_of_first(multirun: Path) -> list[Any]:
    """Return the windows of the first run of the only sweep so far."""
    return [window for record in runs_of_sweep(multirun)[:1] for window in record.windows()]


def completed_id(record: Record) -> str | None:
    """Return the ID of a completed run, which another measurement does not have; None if it is not completed."""
    return str(record.run()["record_id"]) if record.is_completed() else None


def records(multirun: Path) -> list[Record]:
    """Return the records of runs, without those of other nodes below them."""
    return [Record(path.parent) for path in sorted(multirun.glob("*/*/job.json")) if path.parts[-3] != ".nodes"]


def outcome(multirun: Path) -> Outcome:
    """Return what holds of the records in a folder of runs."""
    found = records(multirun)
    lines = found[0].windows()
    of_both = [line for line in lines if line["ranks"] == len(NODES)]
    alone = [line for line in lines if line["ranks"] != len(NODES)]
    return Outcome(
        epochs=len(of_both),
        one_record=len(found) == 1,
        has_end=found[0].summary() is not None,
        sums=all(map(has_sums, of_both)) and all(map(lacks_sums, alone)),
        maxima=all(map(has_maxima, of_both)),
        order=[line["epoch"] for line in lines] == [*range(len(lines))],
    )


def has_sums(line: Mapping[str, Any]) -> bool:
    metrics, (node,) = line["metrics"], line["energy"]["nodes"]
    counts = metrics["epoch/samples"], metrics["epoch/steps"]
    if "epoch/estimated_energy_j" not in metrics:  # as on a busy host
        return counts == (len(NODES) * STEPS * BATCH, STEPS)
    both_j = line["energy"]["joules"]["cpu"] + node["joules"]["cpu"]
    return counts == (len(NODES) * STEPS * BATCH, STEPS) and math.isclose(metrics["epoch/estimated_energy_j"], both_j)


def lacks_sums(line: Mapping[str, Any]) -> bool:
    absent = ("epoch/samples", "epoch/estimated_energy_j", "epoch/energy_j")
    return not line["metrics"].keys() & {*absent} and any("node" in note and "absent" in note for note in line["notes"])


def has_maxima(line: Mapping[str, Any]) -> bool:
    times = [rank["e2e_s"] for rank in line["of_ranks"]]
    metrics = line["metrics"]
    return len(times) == len(NODES) and all(
        math.isclose(found, expected, rel_tol=1e-6)
        for found, expected in ((metrics["rank_max/e2e_s"], max(times)), (metrics["epoch/e2e_s"], sum(times) / 2))
    )


KINDS = {
    "run": ("Nodes of a script killed on Slurm", kill_in_run, Outcome.columns),
    "sweep": ("Nodes killed within a sweep over nodes on Slurm", kill_in_sweep, SweepOutcome.columns),
}


if __name__ == "__main__":
    sys.exit(main())
