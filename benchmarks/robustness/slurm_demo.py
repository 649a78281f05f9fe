"""A small sweep on a real Slurm whose two nodes, both on this machine, stand for a Jetson Nano and an AGX Xavier.

All started processes end with it. Its runs are rehearsals, in MLflow's experiment `slurm-demo`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import slurm

from epochmeter.config.installation import ROOT

NODES = {"node1": "nano", "node2": "agx"}  # node -> its feature
SWEEP = ("-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=1", "experiment=smoke", "workers=0",
         "device=nano,agx", "batch=64,128", "tracking.experiment=slurm-demo")  # fmt: skip


def main() -> int:
    if not slurm.is_available():
        print(f"make slurm-demo {slurm.REQUIREMENTS}.", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="epochmeter-slurm-") as folder:
        print(f"Starting slurmctld, and a slurmd for each of {', '.join(NODES)}.", flush=True)
        with slurm.running(Path(folder), NODES) as cluster:
            subprocess.run(["sinfo", "--Node", "--format=%N %f %T"], env=cluster.environment, check=True)
            # Both nodes are one host: each has its own locks.
            locks = f"machine.lock_dir={folder}/locks-${{oc.env:SLURMD_NODENAME,none}}"
            command = [sys.executable, "src/train.py", *SWEEP, locks, *sys.argv[1:]]
            print(f"\n$ python {' '.join(['src/train.py', *SWEEP, *sys.argv[1:]])}", flush=True)
            return subprocess.run(command, cwd=ROOT, env=cluster.environment).returncode


if __name__ == "__main__":
    sys.exit(main())
