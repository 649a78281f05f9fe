"""A fleet on one machine: a real Slurm whose two nodes are a nano and an agx, and a small sweep sent to them.

Everything that it starts ends with it. Its runs are rehearsals, shown in MLflow as the experiment `slurm-demo`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import slurm

from epochmeter.config.job import ROOT

NODES = {"board1": "nano", "board2": "agx"}
SWEEP = ("-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=1", "experiment=smoke", "workers=0",
         "device=nano,agx", "batch=64,128", "tracking.experiment=slurm-demo")  # fmt: skip


def main() -> int:
    if not slurm.is_here():
        print(f"make slurm-demo {slurm.LACK}.", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="epochmeter-slurm-") as folder:
        print(f"Starting slurmctld, and a slurmd for each of {', '.join(NODES)}.", flush=True)
        with slurm.running(Path(folder), NODES) as cluster:
            subprocess.run(["sinfo", "--Node", "--format=%N %f %T"], env=cluster.environment, check=True)
            # The boards are one host here: each has locks of its own.
            locks = f"machine.lock_dir={folder}/locks-${{oc.env:SLURMD_NODENAME,none}}"
            command = [sys.executable, "src/train.py", *SWEEP, locks, *sys.argv[1:]]
            print(f"\n$ python {' '.join(['src/train.py', *SWEEP, *sys.argv[1:]])}", flush=True)
            return subprocess.run(command, cwd=ROOT, env=cluster.environment).returncode


if __name__ == "__main__":
    sys.exit(main())
