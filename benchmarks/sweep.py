"""What a sweep costs beside its runs: of a worker that trains nothing, how long each of many runs takes, and what in.

    PYTHONPATH=src:tests python benchmarks/sweep.py 1000

Hydra's own time is that of its composing; the worker's is that in which it is waited for; ours is the rest.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import stub
from rich.console import Console
from rich.table import Table

from trainmeter.job import ROOT

EDGE = 100
"""How many runs the first and the last are."""
KEYS = [f"{key}={value}" for key, value in stub.JOB.items()]


class Cost(NamedTuple):
    """What a run took, in seconds."""

    hydra_s: float
    worker_s: float
    ours_s: float


class Watch:
    """Adds up the time within the calls that it is put around, apart from those among them within another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._within = False

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        outermost, self._within = not self._within, True
        begun = time.perf_counter()
        try:
            yield
        finally:
            if outermost:
                self._within = False
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun

    def around(self, owner: Any, method: str, name: str) -> None:
        call: Callable = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.on(name):
                return call(*args, **kwargs)

        setattr(owner, method, timed)


def watched(arguments: Sequence[str]) -> None:
    """`src/train.py` with these arguments, in this process: leaves what each of its runs took in costs.json."""
    import select
    from types import SimpleNamespace

    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    from trainmeter import experiment, launch

    watch = Watch()
    watch.around(BasicSweeper, "validate_batch_is_legal", "checking")
    watch.around(ConfigLoaderImpl, "load_configuration", "hydra")
    launch.select = SimpleNamespace(select=select.select)
    watch.around(launch.select, "select", "worker")
    watch.around(launch.subprocess.Popen, "wait", "worker")
    found: list[Cost] = []
    run, last = experiment.run, time.perf_counter()

    def costing(*args: Any, **kwargs: Any) -> Any:
        nonlocal last
        outcome = run(*args, **kwargs)
        now = time.perf_counter()
        hydra_s, worker_s, checking_s = (watch.seconds.pop(name, 0.0) for name in ("hydra", "worker", "checking"))
        found.append(Cost(hydra_s, worker_s, now - last - hydra_s - worker_s - checking_s))
        last = now
        return outcome

    experiment.run = costing
    sys.argv = ["src/train.py", *arguments]
    with suppress(SystemExit):
        runpy.run_path(sys.argv[0], run_name="__main__")
    Path("costs.json").write_text(json.dumps({"runs": found, "end_s": time.perf_counter() - last}))


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
    table = Table("", "runs", "Hydra s", "worker s", "ours s", "at the end s")
    with tempfile.TemporaryDirectory() as folder:
        for tracking in ("none", "mlflow"):
            root = project(Path(folder) / tracking)
            asked = ["-m", *KEYS, f"device.python={stub.program(root)}", f"machine.lock_dir={root / 'locks'}"]
            asked += [f"tracking={tracking}", f"seed=range({count})"]
            for name in (f"tracking={tracking}", "whole before"):
                for row in rows(name, *costs(root, asked)):
                    table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["watched"]:
        watched(sys.argv[2:])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 1000)
