"""Error of measured energy: against simulated power, compared with other tools, and the cost of sampling."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

from boards import Tree, write
from common.output import print_table, sized
from common.played import Curve, play, ramp, square
from common.tools import Plan, Window
from power.simulated_sensors import CASES, FAR_S, IN_STEP_S, JITTERS, WAVES, Case, errors, simulate, step_case

from epochmeter.config.installation import ROOT
from epochmeter.shared.units import NANOSECOND

PERIODS_S = (0.005, 0.01, 0.02, 0.05, 0.1)
SIMULATED = sized({1: 600, 10: 200}, {1: 5, 10: 2})  # number of windows by length in seconds
STEPS_SIMULATED = sized({1: 60, 3: 40, 10: 20}, {1: 2, 3: 1, 10: 1})  # number of windows by length, for each duration
MEMORY = Path("/dev/shm")
TOOLS = {"epochmeter": "rails", "zeus 0.16": "zeus", "jtop 7.2": "jtop"}
SETTLING_S, SEGMENT_S = sized(6.0, 1.0), sized(18.0, 2.2)
EVERY_S, LASTS = 1.013, sized((1, 10), (1,))
"""Windows begin slightly more than a second apart, so at all phases of a periodic load."""
STUB, STUB_W = ROOT / "tests/power/nvml_stub.c", 200.0
TICKS_EVERY_S, TICKS_LAST, TICKS_MARKS = 0.503, sized((1, 2, 10, 20), (1, 2)), sized(61, 6)
COST_S, COSTS = sized((5.0, 3), (0.5, 1))
ERRORS = ("bias", "worst", "covered")
READ_S = {"memory": 0.0, "I2C": 0.0005}
"""How long reading a register takes: at once, or as over a board's bus, whose driver waits (AGX Orin: 0.55 ms)."""
SAMPLING = """
import sys, time
from epochmeter.power.meters import rails
number = rails._number
def slow(file):
    time.sleep(float(sys.argv[4]))
    return number(file)
if float(sys.argv[4]):
    rails._number = slow
from epochmeter.power.meter import open_meter
spec = {"_target_": "epochmeter.power.meters.rails.open_rails", "rails": {"total": ["VDD_IN"]}}
meter = open_meter({**spec, "period_s": float(sys.argv[2])}, gpus=[], root=sys.argv[1])
time.sleep(1)
meter.drain(time.monotonic_ns())
begun, used = time.monotonic(), time.process_time()
time.sleep(float(sys.argv[3]))
share = (time.process_time() - used) / (time.monotonic() - begun)
print(share, len(meter.drain(time.monotonic_ns()).times_ns) / (time.monotonic() - begun))
"""


def main() -> None:
    show_simulated()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        tree = write(Path(folder) / "board", "orin_nano")
        show_cost(tree)
        show_tools(tree)
        show_counter(Path(folder))


def show_simulated() -> None:
    """Simulate sensors of instantaneous and of delayed power on a simulated clock."""
    moment = {f"{name}, {1000 * period_s:g} ms": Case(wave, period_s=period_s)
              for name, wave in WAVES.items() for period_s in PERIODS_S}  # fmt: skip
    show_coverage("Error of energy in percent, sensor without delay: power, sampling period", moment)
    show_coverage("Error of energy in percent: sensor, load", CASES)
    for name, is_counter in {"power": False, "counter": True}.items():
        show_steps(f"Stated uncertainty, coverage in percent, A100, {name}, steps unknown and known", is_counter)


def show_coverage(title: str, cases: Mapping[str, Case]) -> None:
    """For each case: the error that 95 % of windows stay below, the stated half-width, and how many it covers."""
    columns = [f"{window_s} s: {name}" for window_s in SIMULATED for name in ("95 % below", "stated", "covered")]
    rows = []
    for name, case in cases.items():
        results = [simulate(name, case, window_s=length, runs=windows) for length, windows in SIMULATED.items()]
        rows.append(
            [name, *(cell for of in results for cell in (percent(of.p95), percent(of.stated), tenths(of.covered)))]
        )
    print_table(title, ["case", *columns], rows)


def show_steps(title: str, is_counter: bool) -> None:
    """For steps in step with a part-time sensor and others: the stated half-width, and how many windows it covers."""
    columns = [f"{window_s} s: {of}" for window_s in STEPS_SIMULATED for of in ("unknown", "known", "least covered")]
    rows = []
    for (kind, steps_s), jitter in product({"in step": IN_STEP_S, "others": FAR_S}.items(), JITTERS):
        cases = {f"{step_s} {jitter}": step_case(step_s, jitter, counter=is_counter) for step_s in steps_s}
        row = [kind, f"{jitter:.0%}"]
        for length, windows in STEPS_SIMULATED.items():
            for is_known in (False, True):
                results = [
                    simulate(name, case._replace(knows_steps=is_known), window_s=length, runs=windows)
                    for name, case in cases.items()
                ]
                stated = statistics.median(of.stated for of in results)
                row.append(f"{percent(stated)}, {tenths(statistics.fmean(of.covered for of in results))} %")
            row.append(tenths(min(of.covered for of in results)))
        rows.append(row)
    print_table(title, ["steps", "jitter", *columns], rows)


def show_cost(tree: Tree) -> None:
    """The fraction of a core that sampling a board's three rails takes, in all threads of a process."""
    rows = []
    for place, read_s in READ_S.items():
        for period_s in PERIODS_S[: sized(None, 1)]:
            command = [sys.executable, "-c", SAMPLING, str(tree.root), str(period_s), str(COST_S), str(read_s)]
            runs = [[float(word) for word in subprocess.check_output(command).split()] for _ in range(COSTS)]
            share, rate = (statistics.median(column) for column in zip(*runs, strict=True))
            rows.append([place, f"{1000 * period_s:g}", f"{1000 / rate:.1f}", percent(share)])
    print_table("Cost of sampling", ["registers in", "period ms", "achieved ms", "percent of a core"], rows)


def show_tools(tree: Tree) -> None:
    """Compare epochmeter with other tools on one board at the same time, in real time."""
    curves = segments()
    along = [(place * SEGMENT_S + at_s, share) for place, part in enumerate(curves.values()) for at_s, share in part]
    plan = Plan("", str(tree.root), in_ns(SETTLING_S), EVERY_S, int(len(curves) * SEGMENT_S / EVERY_S), LASTS)
    running = {title: started(plan._replace(tool=tool)) for title, tool in TOOLS.items()}
    time.sleep(SETTLING_S - 0.5)  # all have opened the board by then
    with play(tree, along) as truth:
        windows = {title: read_windows(process) for title, process in running.items()}
    rows = []
    for place, name in enumerate(curves):
        begun_ns = truth.times_ns[0] + round(place * SEGMENT_S / NANOSECOND)
        ended_ns = begun_ns + round(SEGMENT_S / NANOSECOND)
        for title, measured in windows.items():
            within = [window for window in measured if begun_ns < window.opened_ns and window.closed_ns < ended_ns]
            rows.append([name, title, *(cell for last in LASTS for cell in cells(within, last, truth.energy_j))])
    columns = [f"{last * EVERY_S:.0f} s: {of}" for last in LASTS for of in ERRORS]
    print_table("Error of energy in percent, replayed board in real time", ["power", "meter", *columns], rows)


def segments() -> dict[str, Curve]:
    """Shares of the board's watts, from a half to one and a half, for a segment each."""
    half_s = SEGMENT_S / 2
    up = ramp(0.5, 1.5, seconds=half_s)
    return {
        "constant": [(0.0, 1.0)],
        "steps": [(turn * 1.7, 1.5 if turn % 2 else 0.5) for turn in range(int(SEGMENT_S / 1.7))],
        "ramps": [*up, *((half_s + at_s, 2.0 - share) for at_s, share in up)],
        "square": square(0.5, 1.5, seconds=SEGMENT_S),
    }


def show_counter(folder: Path) -> None:
    """NVML's counter, which ticks every 0.1 s, in a stub of the driver's library at constant power."""
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", STUB], check=True)
    plan = Plan("nvml", "/", in_ns(SETTLING_S), TICKS_EVERY_S, TICKS_MARKS, TICKS_LAST)
    windows = read_windows(started(plan, LD_LIBRARY_PATH=str(folder), STUB="ticks", STUB_W=str(STUB_W)))
    rows = []
    for last in TICKS_LAST:
        steady = cells(windows, last, lambda opened_ns, closed_ns: STUB_W * (closed_ns - opened_ns) * NANOSECOND)
        rows.append([f"{last * TICKS_EVERY_S:.1f}", *steady])
    print_table("Error of energy in percent, NVML's counter renewed every 0.1 s", ["window s", *ERRORS], rows)


def signed(share: float) -> str:
    return f"{100 * share:+.2f}"


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def tenths(share: float) -> str:
    return f"{100 * share:.1f}"


def cells(windows: Sequence[Window], last: int, energy_j: Callable[[int, int], float]) -> list[str]:
    """Return bias, largest error and coverage of the windows that last `last` marks."""
    rows = [(window, energy_j(window.opened_ns, window.closed_ns)) for window in windows if window.last == last]
    measured = [(of.joules, of.uncertainty_j or 0.0, true_j) for of, true_j in rows if of.joules is not None]
    if not measured:
        return ["no energy", "", ""]
    result = errors(measured)
    states = any(window.uncertainty_j is not None for window, _ in rows)
    return [signed(result.bias), percent(result.largest), tenths(result.covered) if states else ""]


def in_ns(seconds: float) -> int:
    """A moment from now."""
    return time.monotonic_ns() + round(seconds / NANOSECOND)


def started(plan: Plan, **environment: str) -> subprocess.Popen:
    """A tool in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("tools.py")), json.dumps(plan._asdict())]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})


def read_windows(process: subprocess.Popen) -> list[Window]:
    """Wait for a tool and return its windows; none if the tool is not installed."""
    out, _ = process.communicate()
    return [Window(*window) for window in json.loads(out or "[]")]


if __name__ == "__main__":
    main()
