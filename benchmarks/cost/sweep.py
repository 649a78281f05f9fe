"""Overhead of a sweep: the duration of each of many runs whose training process trains nothing, and its parts.

    PYTHONPATH=src:tests:benchmarks python benchmarks/cost/sweep.py 1000

The training process's time is the wait for it, epochmeter's the preparation and execution of a run without its
composition, and Hydra's the rest; the validation of all configurations before the first run does not count. With
device=auto, the default, a job is composed twice: the second time for the detected device.
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
from common.output import ARGUMENTS, print_table, sized

from epochmeter.config.installation import ROOT

EDGE = 100  # number of runs in the rows `first` and `last`
KEYS = [f"{key}={value}" for key, value in stub.JOB.items()]


class Cost(NamedTuple):
    """Parts of a run's duration in seconds; `cpu_s` is CPU time."""

    hydra_cpu_s: float = 0.0
    worker_s: float = 0.0
    epochmeter_s: float = 0.0
    epochmeter_cpu_s: float = 0.0


class Stopwatch:
    """Attributes time to the innermost of the watched calls.

    Args:
        rest: Name of the time outside of them.
    """

    def __init__(self, rest: str) -> None:
        self._within = [rest]
        self.clear()

    def clear(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.cpu_s: dict[str, float] = defaultdict(float)
        self._marked_s, self._marked_cpu_s = time.perf_counter(), time.process_time()

    def around(self, owner: Any, function: str, name: str, then: Callable[[], None] = lambda: None) -> None:
        """Attribute a function's calls to `name`, and call `then` after each."""
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
        """Return the seconds since `clear`."""
        self._mark()
        return sum(self.seconds.values())

    def _mark(self) -> None:
        now_s, cpu_s = time.perf_counter(), time.process_time()
        self.seconds[self._within[-1]] += now_s - self._marked_s
        self.cpu_s[self._within[-1]] += cpu_s - self._marked_cpu_s
        self._marked_s, self._marked_cpu_s = now_s, cpu_s


def run_watched(arguments: Sequence[str]) -> None:
    """Run `src/train.py` in this process and write the costs of its runs to costs.json."""
    import select
    from types import SimpleNamespace

    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    from epochmeter.config import request
    from epochmeter.run import experiment, launch, preflight, worker_process

    costs: list[Cost] = []
    watch = Stopwatch("hydra")

    def ended() -> None:
        # CPU time during the wait for the training process is that of publishing.
        epochmeter_cpu_s = watch.cpu_s["epochmeter"] + watch.cpu_s["worker"]
        costs.append(Cost(watch.cpu_s["hydra"], watch.seconds["worker"], watch.seconds["epochmeter"], epochmeter_cpu_s))
        watch.clear()

    worker_process.select = SimpleNamespace(select=select.select)
    watch.around(worker_process.select, "select", "worker")
    watch.around(launch.subprocess.Popen, "wait", "worker")
    watch.around(ConfigLoaderImpl, "load_configuration", "hydra")
    watch.around(preflight, "validate_sweep", "checking", then=watch.clear)
    watch.around(request, "current_request", "epochmeter")
    watch.around(experiment, "run", "epochmeter", then=ended)
    sys.argv = ["src/train.py", *arguments]
    with suppress(SystemExit):
        runpy.run_path(sys.argv[0], run_name="__main__")
    Path("costs.json").write_text(json.dumps({"runs": costs, "end_s": watch.since_s()}))


def copy_project(root: Path) -> Path:
    """Copy the project, so that its runs are separate."""
    for part in ("src", "conf"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(root / "src", quiet=1)
    (root / "multirun").mkdir()
    return root


def run_sweep(root: Path, arguments: Sequence[str]) -> tuple[list[Cost], float]:
    """Run a sweep; return the costs of its runs, and the seconds of its end."""
    path = os.pathsep.join(str(folder) for folder in (root / "src", ROOT / "tests", ROOT / "benchmarks"))
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, __file__, "watched", *arguments]
    with open(root / "output", "w") as output:
        subprocess.run(command, cwd=root, env=environment, check=True, stdout=output)
    result = json.loads((root / "costs.json").read_text())
    return [Cost(*cost) for cost in result["runs"]], result["end_s"]


def rows(name: str, costs: Sequence[Cost], end_s: float) -> Iterator[Sequence[str]]:
    """Yield the table's rows of a sweep."""
    for which, some in {"first": costs[:EDGE], "last": costs[-EDGE:], "all": costs}.items():
        means = (fmean(cost[column] for cost in some) for column in range(len(Cost._fields)))
        end = f"{end_s:.2f}" if some is costs else ""
        yield name, f"{which} {len(some)}", *(f"{mean:.3f}" for mean in means), end


def main(count: int) -> None:
    measured: list[Sequence[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for tracking in sized(("none", "mlflow"), ("mlflow",)):
            root = copy_project(Path(folder) / tracking)
            arguments = ["-m", *KEYS, f"device.python={stub.program(root)}", f"machine.lock_dir={root / 'locks'}"]
            arguments += [f"tracking={tracking}", f"seed=range({count})"]
            for name in (tracking, f"{tracking}, completed before"):
                measured += rows(name, *run_sweep(root, arguments))
    columns = ("tracking", "runs", "Hydra CPU s", "training process s", "epochmeter s", "epochmeter CPU s", "its end s")
    print_table("Seconds per run of a sweep, of a training process that trains nothing", columns, measured)


if __name__ == "__main__":
    if sys.argv[1:2] == ["watched"]:
        run_watched(sys.argv[2:])
    else:
        main(int(ARGUMENTS[0]) if ARGUMENTS else sized(1000, 2))
