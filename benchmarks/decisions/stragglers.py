"""How often a straggler is found with its causes, and how often one is found among equal ranks.

    PYTHONPATH=src:tests:benchmarks python benchmarks/decisions/stragglers.py [--short] [simulated] [equal] [gloo]
    PYTHONPATH=src:tests:benchmarks python benchmarks/decisions/stragglers.py recorded=FOLDER

Simulated ranks: the steps of a rank are an autoregressive series, with normal or heavy-tailed innovations (Student's t
with 4 degrees of freedom). Data stalls are exponential. One rank is slower by 15 % of a step, three standard
deviations: in its data, its compute, both in each step, or both by turns. Or another rank is slower in each step, which
is no straggler. The goals: found in 95 %, the causes right in 90 % of these, and none among equal ranks in 95 %.

Equal: real gloo ranks that do the same (`common/equal_ranks.py`), also while other processes use the processor.

Gloo: four ranks of a script sleep in place of loading and computing (`common/ranks_script.py`). `recorded=` evaluates
the runs of such scripts in a folder again, as after a change of the rule.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from common.equal_ranks import Load, steps_of
from common.jobs import measured
from common.output import ARGUMENTS, print_table, sized
from common.ranks_script import SLOW
from project import free_ports

from epochmeter.config.installation import ROOT
from epochmeter.results.straggler_of_run import rows_of_run
from epochmeter.results.stragglers import Straggler, find_straggler
from epochmeter.shared.record import Record

SCRIPT = str(ROOT / "benchmarks/common/ranks_script.py")
DATA, COMPUTE = "data_stall", "compute"
CAUSES: Mapping[str, frozenset[str]] = {
    "data": frozenset({DATA}),
    "compute": frozenset({COMPUTE}),
    "both": frozenset({DATA, COMPUTE}),
    "turns": frozenset({DATA, COMPUTE}),
}
"""Kind -> causes of the straggler; the other kinds have none."""
NONE = ("none", "rank turns")
RANKS = sized((2, 4, 8, 64), (2, 8))
STEP_S, STD, STALL_S, EXCHANGE_S = 0.02, 0.05, 0.001, 0.001
SLOWER_S = 3 * STD * STEP_S
NOISES = ((0.0, "normal"), (0.5, "t"), (0.8, "normal"))
STEPS = 400
LOADS = sized((Load(2, 40), Load(2, 160), Load(4, 40), Load(4, 40, sleep_s=0.004)), (Load(2, 40),))
EQUAL_RUNS = sized((6, 5), (1, 1))  # sets of processes, and runs of each
GLOO, GLOO_COLUMNS = "Stragglers among four gloo ranks", ("slow", "runs", "verdict right", "with causes")
BEFORE = 100  # values before a series begins, so that it is stationary
FOUND, RIGHT, FALSE = 0.95, 0.9, 0.05


def series(chance: np.random.Generator, shape: tuple[int, int], correlation: float, noise: str) -> np.ndarray:
    """Return the compute of ranks in successive steps."""
    size = (shape[0], BEFORE + shape[1])
    innovations = chance.normal(0, 1, size) if noise == "normal" else chance.standard_t(4, size) / math.sqrt(2)
    values = np.zeros(size)
    for place in range(1, size[1]):
        values[:, place] = correlation * values[:, place - 1] + math.sqrt(1 - correlation**2) * innovations[:, place]
    return STEP_S * np.maximum(0.1, 1 + STD * values[:, BEFORE:])


def simulated(chance: np.random.Generator, kind: str, ranks: int, correlation: float, noise: str) -> np.ndarray:
    """Return the rows of ranks, which end each step together."""
    compute = series(chance, (ranks, STEPS), correlation, noise)
    stall = chance.exponential(STALL_S, (ranks, STEPS))
    in_data = chance.random(STEPS) < 0.5 if kind == "turns" else np.full(STEPS, 0.5)
    if kind == "rank turns":
        compute[chance.integers(0, ranks, STEPS), np.arange(STEPS)] += SLOWER_S
    elif kind in CAUSES:
        in_data = in_data if kind in ("turns", "both") else np.full(STEPS, float(kind == "data"))
        stall[SLOW] += SLOWER_S * in_data
        compute[SLOW] += SLOWER_S * (1 - in_data)
    own = stall + compute
    waits = own.max(axis=0) - own + EXCHANGE_S
    return np.stack([stall, stall, compute + waits, waits], axis=2)


def outcome(kind: str, found: Straggler | None) -> tuple[bool, bool]:
    """Return whether the verdict names the slow rank, or rightly none, and whether it names the causes."""
    if kind in NONE:
        return found is None, found is None
    is_found = found is not None and found.rank == SLOW
    return is_found, is_found and frozenset(found.causes if found else ()) == CAUSES[kind]


def simulated_row(kind: str, ranks: int, simulations: int) -> list[str]:
    """Return a row with a cell for each noise, and whether all reach the goals."""
    cells, holds = [], True
    for correlation, noise in NOISES:
        chance = np.random.default_rng(0)
        results = [
            outcome(kind, find_straggler(simulated(chance, kind, ranks, correlation, noise)))
            for _ in range(simulations)
        ]
        found, right = (sum(column) / simulations for column in zip(*results, strict=True))
        if kind in NONE:
            holds &= 1 - found <= FALSE
            cells.append(f"{100 * (1 - found):.1f} false")
        else:
            holds &= found >= FOUND and right >= RIGHT * found
            cells.append(f"{100 * found:.1f} found, {100 * right / found if found else 0:.1f} right")
    return [str(ranks), kind, *cells, "yes" if holds else "NO"]


def equal_row(load: Load, processes: int, runs: int) -> list[str]:
    """Return how often one of equal ranks is found."""
    found = 0
    for _ in range(processes):
        (port,) = free_ports(1)
        found += sum(find_straggler(rows) is not None for rows in steps_of(load, runs, port))
    text = f"{1e3 * load.sleep_s:g} ms" if load.sleep_s else "none"
    return [str(load.ranks), text, str(load.epochs * load.steps), str(processes * runs), str(found)]


def gloo_record(kind: str, epochs: int) -> Record:
    """Measure a script with four ranks."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = ["torchrun", "--standalone", "--nproc_per_node=4", SCRIPT, kind, str(epochs), folder]
        record, _ = measured("tracking=none", "sweep.again=true", "sweep.wait_idle=0", *launcher)
    return record


def gloo_row(kind: str, records: Iterable[Record]) -> list[str]:
    """Return how often the verdict on four gloo ranks is right."""
    results = [outcome(kind, straggler_in(record)) for record in records]
    found, right = (sum(column) for column in zip(*results, strict=True))
    return [kind, str(len(results)), str(found), str(right)]


def straggler_in(record: Record) -> Straggler | None:
    rows = rows_of_run(record, record.windows(), warmup_epochs=1)
    assert rows is not None, record.folder
    return find_straggler(rows)


def recorded(folder: Path) -> dict[str, list[Record]]:
    """Return the runs of the script in a folder of sweeps, by kind; those without an end are left out."""
    of_kind: dict[str, list[Record]] = {}
    for path in sorted(folder.glob("*/0")):
        record = Record(path)
        command = record.job()["measure"]["command"] or ()
        if record.is_completed() and any(name.endswith("ranks_script.py") for name in command):
            of_kind.setdefault(command[-3], []).append(record)
    return of_kind


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests", "benchmarks"))
    kinds, simulations = [*CAUSES, *NONE], sized(400, 20)
    if not ARGUMENTS or "simulated" in ARGUMENTS:
        print_table(
            "Stragglers among simulated ranks, in % of the runs",
            ("ranks", "slow", *(f"correlation {correlation}, {noise}" for correlation, noise in NOISES), "goals"),
            [simulated_row(kind, ranks, simulations) for ranks in RANKS for kind in kinds],
        )
    if not ARGUMENTS or "equal" in ARGUMENTS:
        print_table(
            "Stragglers among equal gloo ranks",
            ("ranks", "sleep per step", "steps", "runs", "found"),
            [equal_row(load, *EQUAL_RUNS) for load in LOADS],
        )
    for argument in ARGUMENTS:
        if argument.startswith("recorded="):
            of_kind = recorded(Path(argument.partition("=")[2]))
            print_table(GLOO, GLOO_COLUMNS, [gloo_row(kind, records) for kind, records in of_kind.items()])
    if not ARGUMENTS or "gloo" in ARGUMENTS:
        runs, epochs = sized((10, 5), (1, 3))
        rows = [gloo_row(kind, [gloo_record(kind, epochs) for _ in range(runs)]) for kind in sized(kinds, kinds[:1])]
        print_table(GLOO, GLOO_COLUMNS, rows)


if __name__ == "__main__":
    main()
