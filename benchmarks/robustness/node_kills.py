"""Kill one of the two nodes on which a script trains, on a real Slurm, and check the run's only record.

    PYTHONPATH=src:tests:benchmarks python benchmarks/robustness/node_kills.py --each 10

Both nodes are this host, with own names and locks. At a random instant after the second epoch, all processes of a node
are killed, as by a power cut, and Slurm marks it as down. Each column except `kills` and `epochs` counts the runs of
which it holds. Needs root and Slurm (Debian: apt-get install slurm-wlm).
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

from epochmeter.run.finish import close_orphans
from epochmeter.shared.record import Record

NODES = ("n0", "n1")
STEPS, BATCH = 16, 4
MOST_S = 1.5  # latest kill after the second epoch
LIMIT_S = 300
SCRIPT = f"""
import time, torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=sized(10, 1), help="how often each node is killed (%(default)s)")
    options = parser.parse_args(ARGUMENTS)
    if not slurm.is_available():
        print(f"This {slurm.REQUIREMENTS}.", file=sys.stderr)
        return 1
    rows, failed = [], False
    with tempfile.TemporaryDirectory(prefix="epochmeter-slurm-") as folder:
        copy_sources(root := Path(folder) / "project")
        (root / "ranked.py").write_text(SCRIPT)
        with slurm.running(Path(folder), dict.fromkeys(NODES, "")) as cluster:
            for node in reversed(NODES):
                outcomes = [inject(cluster, root, node, seed) for seed in range(options.each)]
                epochs, *held = (sum(column) for column in zip(*outcomes, strict=True))
                rows.append([node, str(options.each), str(epochs), *map(str, held)])
                failed |= min(held) < options.each
    columns = ("kills", "epochs", "one record", "has an end", "sums right", "maxima right", "epochs in order")
    print_table("Nodes of a script killed on Slurm", ("node", *columns), rows)
    return int(failed)


def inject(cluster: slurm.Cluster, root: Path, node: str, seed: int) -> Outcome:
    """Kill a node at a random instant; return what holds of the record when the run has ended."""
    multirun = root / f"multirun-{node}-{seed}"
    (root / "multirun").unlink(missing_ok=True)
    multirun.mkdir()
    (root / "multirun").symlink_to(multirun)
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


if __name__ == "__main__":
    sys.exit(main())
