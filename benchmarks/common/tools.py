"""Meters of epochmeter and other tools, each in its own process, which measure the same board at the same times.

`python tools.py '{"tool": ..., ...}'`, a Plan as JSON, prints Windows as JSON. At each mark, windows end and begin, so
that long windows overlap.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from epochmeter.config.installation import ROOT
from epochmeter.power.meter import EnergyMeter, open_meter
from epochmeter.power.window_energy import Reading, energy_of_window, take_reading
from epochmeter.shared.units import NANOSECOND

PERIOD_S = yaml.safe_load((ROOT / "conf/meter/rails.yaml").read_text())["period_s"]
JTOP_S = 0.5  # jtop's own default is a second


class Plan(NamedTuple):
    """The tool, and the times of its windows."""

    tool: str
    root: str
    begin_ns: int
    every_s: float
    marks: int
    lasts: Sequence[int]  # durations of the windows in marks


class Energy(NamedTuple):
    """A window's joules with their uncertainty; None if the tool does not report them."""

    joules: float | None
    uncertainty_j: float | None = None


class Window(NamedTuple):
    """A window: it opens when the tool has begun it, and closes when the tool is asked to end it."""

    last: int  # duration in marks
    opened_ns: int
    closed_ns: int
    joules: float | None
    uncertainty_j: float | None


class Tool(Protocol):
    """Begins and ends windows, each with its own key."""

    def begin(self, key: str) -> None: ...

    def end(self, key: str) -> Energy: ...

    def close(self) -> None: ...


class Epochmeter:
    """A meter of epochmeter."""

    def __init__(self, meter: EnergyMeter) -> None:
        self.close = meter.close
        self._meter = meter
        self._open: dict[str, tuple[Reading, int]] = {}

    def begin(self, key: str) -> None:
        self._open[key] = take_reading(self._meter), time.monotonic_ns()

    def end(self, key: str) -> Energy:
        closed_ns = time.monotonic_ns()
        (before, opened_ns), after = self._open.pop(key), take_reading(self._meter)
        window_s = (closed_ns - opened_ns) * NANOSECOND
        metrics = energy_of_window(before, after, self._meter, window_s).metrics
        return Energy(metrics.get("energy_j"), metrics.get("energy_uncertainty_j"))


class Zeus:
    """Zeus's monitor of a Jetson, redirected to the one below `root`."""

    def __init__(self, root: str) -> None:
        import zeus.device.soc as soc
        from zeus.device.soc import jetson
        from zeus.monitor import ZeusMonitor

        jetson.Path = lambda path: Path(f"{root}{path}" if str(path).startswith("/sys/") else path)
        soc.jetson_is_available = jetson.jetson_is_available = lambda: True
        self._monitor = ZeusMonitor(gpu_indices=[], cpu_indices=[])

    def begin(self, key: str) -> None:
        self._monitor.begin_window(key)

    def end(self, key: str) -> Energy:
        total_mj = self._monitor.end_window(key).soc_energy.total_energy_mj
        return Energy(None if total_mj is None else total_mj / 1000)

    def close(self) -> None:
        """Nothing to do: the poller ends with the process."""


class Jtop:
    """jetson-stats' client as commonly used: the mean of its samples times the duration."""

    def __init__(self, root: str) -> None:
        import jtop
        import jtop.service

        self._folder = tempfile.TemporaryDirectory()
        jtop.service.JTOP_PIPE = f"{self._folder.name}/jtop.sock"
        command = [sys.executable, str(Path(__file__).with_name("jtop_board.py")), jtop.service.JTOP_PIPE, root]
        self._service = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._service.stdout
        self._service.stdout.readline()  # it listens
        self._samples: list[tuple[float, float]] = []
        self._begun_s: dict[str, float] = {}
        self._client = jtop.jtop(interval=JTOP_S)
        self._client.attach(self._add_sample)
        self._client.start()

    def begin(self, key: str) -> None:
        self._begun_s[key] = time.monotonic()

    def end(self, key: str) -> Energy:
        begun_s, now_s = self._begun_s.pop(key), time.monotonic()
        return Energy(statistics.mean(watts for at_s, watts in self._samples if at_s >= begun_s) * (now_s - begun_s))

    def close(self) -> None:
        self._client.close()
        self._service.kill()
        self._service.wait()
        self._folder.cleanup()

    def _add_sample(self, client: Any) -> None:
        self._samples.append((time.monotonic(), client.power["tot"]["power"] / 1000))


SPECS: dict[str, dict[str, Any]] = {
    "rails": {
        "_target_": "epochmeter.power.meters.rails.open_rails",
        "period_s": PERIOD_S,
        "rails": {"total": ["VDD_IN"]},
    },
    "nvml": {"_target_": "epochmeter.power.meters.nvml.open_nvml"},
}
GPUS = {"nvml": ["GPU-aaaa"]}


def open_tool(plan: Plan) -> Tool:
    if plan.tool in SPECS:
        return Epochmeter(open_meter(SPECS[plan.tool], gpus=GPUS.get(plan.tool, []), root=plan.root))
    return {"zeus": Zeus, "jtop": Jtop}[plan.tool](plan.root)


def measure(tool: Tool, plan: Plan) -> list[Window]:
    windows, opened_ns = [], {}
    for mark in range(plan.marks):
        left_s = (plan.begin_ns - time.monotonic_ns()) * NANOSECOND + mark * plan.every_s
        time.sleep(max(0.0, left_s))
        for last in plan.lasts:
            if mark >= last:
                key = f"{mark - last} for {last}"
                closed_ns = time.monotonic_ns()
                windows.append(Window(last, opened_ns[key], closed_ns, *tool.end(key)))
        for last in plan.lasts:
            key = f"{mark} for {last}"
            tool.begin(key)
            opened_ns[key] = time.monotonic_ns()
    return windows


if __name__ == "__main__":
    plan = Plan(**json.loads(sys.argv[1]))
    with closing(open_tool(plan)) as tool:
        print(json.dumps(measure(tool, plan)))
