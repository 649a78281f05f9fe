"""Epoch time of a training script with a tool that measures it, divided by that of the bare script.

Two processes run the same script, one of them with the tool, and train their epochs in turns. An epoch lasts from its
permission to start until the script waits for the next one: all work of a tool between two epochs is included.
Tools that are not installed here get environments of their own for the time of the benchmark, over the network.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

from common.gated import interleaved
from common.jobs import TRACKING, digits_folder
from common.output import print_table, sized
from common.pairs import COLUMNS, Ratio, median

from epochmeter.config.installation import ROOT

ROUNDS, EPOCHS = sized(12, 1), sized(10, 1)
"""Pairs of processes per tool, and measured epochs per process, after one that is not counted."""
SCRIPT = str(ROOT / "benchmarks/common/lenet_script.py")
MEASURE = (str(ROOT / "src/measure.py"), TRACKING)


class Tool(NamedTuple):
    """A tool that measures the script.

    Attributes:
        name: Its row in the table.
        packages: Requirements that are installed for it.
        runner: Arguments of Python; the first one may be a program that the packages install.
        tool: Argument of the script, for a tool that scripts use by themselves.
    """

    name: str
    packages: tuple[str, ...] = ()
    runner: tuple[str, ...] = (SCRIPT,)
    tool: str = "none"


BARE = Tool("bare script (control)")
TRACEML = ("traceml", "run", SCRIPT, "--args")
TOOLS = [
    Tool("epochmeter: `python src/measure.py`", runner=(*MEASURE, SCRIPT)),
    Tool("Zeus 0.16.0: a window per epoch", tool="zeus"),
    BARE,
    Tool("traceml-ai 0.5.0: `traceml run`, without step times", ("traceml-ai==0.5.0",), TRACEML),
    Tool("traceml-ai 0.5.0: the same, `trace_step` in the script", ("traceml-ai==0.5.0",), TRACEML, "traceml"),
    Tool("trainmeter 0.0.7: `tm`", ("trainmeter==0.0.7",), ("tm", SCRIPT)),
    Tool("CodeCarbon 3.3.2: a task per epoch", ("codecarbon==3.3.2",), tool="codecarbon"),
    Tool("Lightning 2.6.6: CSV and MLflow loggers", ("lightning==2.6.6",), tool="lightning"),
]


def make_environment(packages: tuple[str, ...], folder: Path) -> str:
    """Install packages in a new environment that also has the packages of this one; return its Python."""
    python = str(folder / "bin/python")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True, text=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "benchmark.pth").write_text(sysconfig.get_path("purelib"))
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    subprocess.run(install, check=True, capture_output=True, text=True)
    return python


def command(tool: Tool, python: str) -> list[str]:
    """Return the command that trains with a tool."""
    program = Path(python).parent / tool.runner[0]  # an absolute path stays as it is
    return [python, str(program), *tool.runner[1:], str(digits_folder()), str(EPOCHS + 2), tool.tool]


def pair(tool: Tool, python: str) -> float:
    """Run the script with a tool and bare, and return the median ratio of their epochs."""
    took_s, _ = interleaved([command(tool, python), command(BARE, sys.executable)], EPOCHS + 1)
    return statistics.median(measured_s / bare_s for measured_s, bare_s in took_s[1:])


def main() -> None:
    ratios: dict[Tool, list[float]] = {tool: [] for tool in sized(TOOLS, TOOLS[1:2])}
    reasons, pythons = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            for index, tool in enumerate(ratios):
                if tool in reasons:
                    continue
                try:
                    if tool not in pythons:
                        own = Path(folder) / str(index)
                        pythons[tool] = make_environment(tool.packages, own) if tool.packages else sys.executable
                    ratios[tool].append(pair(tool, pythons[tool]))
                    print(number, tool.name, ratios[tool][-1], file=sys.stderr)
                except subprocess.CalledProcessError as error:
                    reasons[tool] = f"not installed: {(error.stderr.strip().splitlines() or [error])[-1]}"
                except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                    reasons[tool] = str(error)
    rows = [[tool.name, *_cells(reasons.get(tool), ratios[tool])] for tool in ratios]
    print_table("Epoch time / bare script: LeNet on digits, batch 16, workers 0, one thread", ("tool", *COLUMNS), rows)


def _cells(reason: str | None, ratios: list[float]) -> list[str]:
    return [reason, "", "", ""] if reason else Ratio(*median(ratios)).cells()


if __name__ == "__main__":
    main()
