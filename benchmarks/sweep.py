"""What a sweep costs beside its runs: of a worker that trains nothing, how long each of many runs takes, and what in.

    PYTHONPATH=src:tests python benchmarks/sweep.py 1000

The worker's time is that in which it is waited for, ours that in which a run is ordered and made but for composing,
and Hydra's the rest; its check of all points before the first is left out. Where device=auto, as by default, a job is
composed twice, the second time for the device that was found.
"""

from __future__ import annotations

import compileall
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import stub
from output import ARGUMENTS, print_table, sized

from epochmeter.config.job import ROOT

EDGE = 100
"""How many runs the first and the last are."""
KEYS = [f"{key}={value}" for key, value in stub.JOB.items()]


class Cost(NamedTuple):
    """What a run took, in seconds; of a core's time, where that is said."""

    hydra_cpu_s: float = 0.0
    worker_s: float = 0.0
    ours_s: float = 0.0
    ours_cpu_s: float = 0.0


class Watch:
    """Tells the time that goes by within some calls, each without those within it, from all that is left."""

    def __init__(self, left: str) -> None:
        self._within = [left]
        self.clear()

    def clear(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.cpu_s: dict[str, float] = defaultdict(float)
        self._marked_s, self._marked_cpu_s = time.perf_counter(), time.process_time()

    def around(self, owner: Any, function: str, name: str, then: Callable[[], None] = lambda: None) -> None:
        """Has a function's calls told as `name`, and `then` called after each."""
        call: Callable = getattr(owner, function)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._mark()
            self._within.append(name)
            try:
                return call(*args, **kwargs)
            finally:
                self._mark()
                self._within.pop()
                then()

        setattr(owner, function, timed)

    def since_s(self) -> float:
        """How long ago it was cleared."""
        self._mark()
        return sum(self.seconds.values())

    def _mark(self) -> None:
        now_s, cpu_s = time.perf_counter(), time.process_time()
        self.seconds[self._within[-1]] += now_s - self._marked_s
        self.cpu_s[self._within[-1]] += cpu_s - self._marked_cpu_s
        self._marked_s, self._marked_cpu_s = now_s, cpu_s


def watched(arguments: Sequence[str]) -> None:
    """`src/train.py` with these arguments, in this process: leaves what each of its runs took in costs.json."""
    import select
    from types import SimpleNamespace

    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    from epochmeter.config import job
    from epochmeter.run import experiment, launch, preflight, worker_process

    found: list[Cost] = []
    watch = Watch("hydra")

    def ended() -> None:
        # Of a core's time, what the waiting for a worker takes is that of publishing meanwhile.
        ours_cpu_s = watch.cpu_s["ours"] + watch.cpu_s["worker"]
        found.append(Cost(watch.cpu_s["hydra"], watch.seconds["worker"], watch.seconds["ours"], ours_cpu_s))
        watch.clear()

    worker_process.select = SimpleNamespace(select=select.select)
    watch.around(worker_process.select, "select", "worker")
    watch.around(launch.subprocess.Popen, "wait", "worker")
    watch.around(ConfigLoaderImpl, "load_configuration", "hydra")
    watch.around(preflight, "validate_sweep", "checking", then=watch.clear)
    watch.around(job, "current_request", "ours")
    watch.around(experiment, "run", "ours", then=ended)
    sys.argv = ["src/train.py", *arguments]
    with suppress(SystemExit):
        runpy.run_path(sys.argv[0], run_name="__main__")
    Path("costs.json").write_text(json.dumps({"runs": found, "end_s": watch.since_s()}))


def project(root: Path) -> Path:
    """A copy of the project, so that its own runs are among no others."""
    for part in ("src", "conf"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(root / "src", quiet=1)
    (root / "multirun").mkdir()
    return root


def costs(root: Path, asked: Sequence[str]) -> tuple[list[Cost], float]:
    """What each run of a sweep took, and what its end did, in seconds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(ROOT / "tests")])}
    command = [sys.executable, __file__, "watched", *asked]
    with open(root / "said", "w") as said:
        subprocess.run(command, cwd=root, env=environment, check=True, stdout=said)
    told = json.loads((root / "costs.json").read_text())
    return [Cost(*cost) for cost in told["runs"]], told["end_s"]


def rows(name: str, found: Sequence[Cost], end_s: float) -> Iterator[Sequence[str]]:
    for which, some in {"first": found[:EDGE], "last": found[-EDGE:], "all": found}.items():
        means = (fmean(cost[column] for cost in some) for column in range(len(Cost._fields)))
        end = f"{end_s:.2f}" if some is found else ""
        yield name, f"{which} {len(some)}", *(f"{mean:.3f}" for mean in means), end


def main(count: int) -> None:
    measured: list[Sequence[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for tracking in ("none", "mlflow"):
            root = project(Path(folder) / tracking)
            asked = ["-m", *KEYS, f"device.python={stub.program(root)}", f"machine.lock_dir={root / 'locks'}"]
            asked += [f"tracking={tracking}", f"seed=range({count})"]
            for name in (tracking, f"{tracking}, completed before"):
                measured += rows(name, *costs(root, asked))
    columns = ("tracking", "runs", "Hydra CPU s", "training process s", "epochmeter s", "epochmeter CPU s", "its end s")
    print_table("Seconds per run of a sweep, of a training process that trains nothing", columns, measured)


if __name__ == "__main__":
    if sys.argv[1:2] == ["watched"]:
        watched(sys.argv[2:])
    else:
        main(int(ARGUMENTS[0]) if ARGUMENTS else sized(1000, 4))
