"""Twelve recorded situations: the runs of a command, as their records are at its end.

Each record is written from scripted epochs by the code that ends a run, so that metrics, verdicts and notes are those
of a real run.
"""

import platform
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from default_jobs import job_keys
from metadata import run_info

from epochmeter.config.schema import Job
from epochmeter.results.run_info import RunInfo
from epochmeter.results.run_result import RunResult
from epochmeter.run.record_end import write_summary
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import Problem
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import HOST_FILE, TRACE_ANALYSIS, Record

SECOND = 1_000_000_000
STEPS, BATCH = 90, 16
COUNTER = {"source": "counter", "covers": "CPU packages", "domains": ["cpu"], "reason": None}
ESTIMATED = {"source": "estimated", "covers": "CPU packages", "domains": ["cpu"], "reason": "meter=estimate",
             "codes": ["estimated"]}  # fmt: skip
NONE = {"source": "none", "covers": None, "domains": [], "reason": "No RAPL energy counter: this is a virtual machine",
        "codes": ["no_sensor"]}  # fmt: skip
REHEARSED = ("power_limit=100 requested, but this machine has no power limit",)
NO_MEMORY = Problem("CUDA out of memory", "reduce batch", "memory")
FLAGS = {"cpu_shared": "other processes used 41 % of the processor time, and no core was free"}


class Ran(NamedTuple):
    """A run of a situation.

    Attributes:
        e2e_s: Mean time per epoch, in seconds.
        parts: Fractions of the epoch's time without overhead, whose times differ by `noise` (relative).
        more: Further metrics of each epoch.
        power_w: Of the energy per epoch; None without energy.
        accuracies: Of the evaluations.
    """

    e2e_s: float = 1.0
    parts: dict[str, float] = {"data_stall": 0.2, "compute": 0.78}  # noqa: RUF012  # never changed
    more: dict[str, float] = {}  # noqa: RUF012
    noise: float = 0.01
    epochs: int = 6
    power_w: float | None = None
    energy: dict[str, object] = NONE
    keys: dict[str, object] = {}  # noqa: RUF012
    run: dict[str, object] = {}  # noqa: RUF012
    flags: dict[str, str] = {}  # noqa: RUF012
    accuracies: tuple[float, ...] = ()
    failure: Problem | None = None
    trace: dict[str, float] | None = None


def write_situation(sweep: Path, runs: list[Ran]) -> list[RunResult]:
    """Write the records of a command's runs, one per number, and return their results."""
    chance = random.Random(1)
    points = [_overrides(ran) for ran in runs]
    sweep.mkdir(parents=True)
    if len(runs) > 1:
        write_json(sweep / "points.json", {"points": points})
    return [_write_run(sweep, number, ran, points[number], len(runs) > 1, chance) for number, ran in enumerate(runs)]


def _write_run(
    sweep: Path, number: int, ran: Ran, overrides: list[str], of_sweep: bool, chance: random.Random
) -> RunResult:
    record, job = Record(sweep / str(number)), Job.from_dict(_keys(ran))
    record.folder.mkdir()
    run = _metadata(sweep, number, ran, overrides, of_sweep)
    record.describe(job.to_dict(), run.document())
    write_json(record.folder / HOST_FILE, {"cpu": {"model": "Example CPU", "cores": 4}, "memory_bytes": 16 * 10**9})
    for line in _windows(ran, number, chance):
        record.append(line)
    if ran.trace:
        write_json(record.folder / TRACE_ANALYSIS, {"metrics": ran.trace})
    result = RunResult(number, overrides, of_sweep, record.folder, rehearsal=run.rehearsal)
    if ran.failure:
        result.set_failed(ran.failure)
    write_summary(record, job, run, result, ended="2026-11-20T12:10:00+00:00")
    return result


def _overrides(ran: Ran) -> list[str]:
    """Return the overrides of a run as a person would give them."""
    named = {key: value.get("name") if isinstance(value, dict) else value for key, value in ran.keys.items()}
    return [f"{key}={value}" for key, value in named.items() if key not in ("repeat", "sweep", "model", "measure")]


def _keys(ran: Ran) -> dict[str, object]:
    defaults = {"epochs": ran.epochs, "batch": BATCH, "evaluate": bool(ran.accuracies), "meter": {"name": "auto"}}
    return job_keys(**{**defaults, **ran.keys})


def _metadata(sweep: Path, number: int, ran: Ran, overrides: list[str], of_sweep: bool) -> RunInfo:
    fields = {
        "record_id": f"r{number}", "number": number, "overrides": overrides, "of_sweep": of_sweep,
        "sweep_id": sweep.name, "name": " ".join([*overrides, "lenet digits cpu"]), "energy": ran.energy,
        "started": f"2026-11-20T12:{number:02}:00+00:00", "host": platform.node(), "flags": ran.flags,
        "clock": {"wall_s": 1_000_000.0, "monotonic_ns": 0}, "storage": {"medium": "nvme"}, "usable_cores": 4,
        "choices": {"model": "lenet", "dataset": "digits", "device": "cpu"}, **this_process()._asdict(), **ran.run,
    }  # fmt: skip
    return run_info(**fields)


def _windows(ran: Ran, number: int, chance: random.Random) -> Iterator[dict[str, object]]:
    """Yield the epochs and evaluations of a run. Each epoch begins 10 s after the one before."""
    for epoch in range(ran.epochs if ran.failure is None else 0):
        opened_ns = (100 * number + 10 * epoch) * SECOND
        parts = {
            f"{part}_s": fraction * ran.e2e_s * max(0.0, chance.gauss(1, ran.noise))
            for part, fraction in ran.parts.items()
        }
        parts["overhead_s"] = 0.02 * ran.e2e_s
        e2e_s = parts["data_stall_s"] + parts["compute_s"] + parts["overhead_s"]
        metrics = {"e2e_s": e2e_s, "copy_s": 0.0, **parts, **ran.more}
        metrics |= {"steps": float(STEPS), "samples": float(STEPS * BATCH)}
        metrics["samples_per_s"] = metrics["samples"] / e2e_s
        metrics |= {"other_cpu_fraction": 0.41} if "cpu_shared" in ran.flags else {}
        term = _energy(ran, e2e_s)
        metrics |= {name: value for name, value in term.items() if name.endswith("_j")}
        yield _window("epoch", epoch, opened_ns, metrics, term, ran.flags)
        if ran.accuracies:
            accuracy = {"e2e_s": 0.1, "accuracy": ran.accuracies[epoch], "loss": 1 - ran.accuracies[epoch]}
            yield _window("val", epoch, opened_ns + 5 * SECOND, accuracy, _energy(ran, 0.1), {})


def _energy(ran: Ran, e2e_s: float) -> dict[str, float]:
    if ran.power_w is None:
        return {}
    joules = ran.power_w * e2e_s
    if ran.energy is ESTIMATED:
        return {"estimated_energy_j": joules}
    return {"energy_j": joules, "energy_uncertainty_j": 0.02 * joules}


def _window(
    name: str, epoch: int, opened_ns: int, metrics: dict[str, float], term: dict[str, float], flags: dict[str, str]
) -> dict[str, object]:
    closed_ns = opened_ns + round(metrics["e2e_s"] * SECOND)
    times = {"opened_ns": opened_ns, "closed_ns": closed_ns}
    named = {f"{name}/{key}": value for key, value in metrics.items()}
    more = {"flags": flags} if flags else {}
    return {"window": name, "epoch": epoch, **times, "metrics": named, "energy": {**times, "term": term}, **more}


def _pair(first: Ran, second: Ran, repeats: int = 1) -> list[Ran]:
    """Return runs of two configurations in rounds."""
    order = {"sweep": {"order": "random", "repeats": repeats}}
    return [
        ran._replace(keys={**ran.keys, "repeat": turn, **order}) for turn in range(repeats) for ran in (first, second)
    ]


CROWDED = (
    "epoch 2: oversubscribed: 2 DataLoader workers + 4 threads on 4 cores; 5.2 were ready to run on average, and the "
    "threads waited 60 % of their time for a core"
)
SMALL, LARGE = Ran(1.0, keys={"batch": 16}), Ran(0.9, keys={"batch": 32})
SCRIPT = {"model": {"name": "script"}, "measure": {"command": ["train.py"]}}
STALLED = {"data_stall": 0.7, "compute": 0.28}
METERED = {"power_w": 50.0, "energy": COUNTER}
SITUATIONS = {
    "single_run": [Ran(parts={"data_stall": 0.47, "compute": 0.51}, noise=0.2)],
    "clear_winner": _pair(SMALL, LARGE._replace(e2e_s=0.7), repeats=3),
    "ties": _pair(SMALL._replace(noise=0.05), LARGE._replace(e2e_s=0.99, noise=0.05), repeats=3),
    "rehearsal_grid": [
        Ran(1.0 + watts / 1000, keys={"power_limit": watts}, run={"rehearsal": [*REHEARSED]}) for watts in (100, 130)
    ],
    "estimate": [
        ran._replace(power_w=65.0, energy=ESTIMATED, keys={**ran.keys, "meter": {"name": "estimate"}})
        for ran in (SMALL, LARGE)
    ],
    "disturbed": [ran._replace(flags=FLAGS) for ran in (SMALL, LARGE)],
    "oversubscribed": [
        Ran(
            3.0,
            keys={"workers": 2},
            more={"run_queue_wait_fraction": 0.6, "runnable_threads": 5.2},
            flags={"oversubscribed": CROWDED},
            run={"training": {"threads": 4}},
        )
    ],
    "own_script": [
        Ran(
            parts={
                **STALLED,
                "loader_fetch": 0.66,
                "loader_collate": 0.03,
                "loader_read": 0.05,
                "loader_preprocess": 0.64,
            },
            keys=SCRIPT,
            run={"training": {"loaders": [{"windows": ["epoch"], "workers": 0, "batch": BATCH}]}},
        )
    ],
    "storage_bound": [
        Ran(
            parts={**STALLED, "loader_read": 3.0, "loader_preprocess": 0.3, "loader_decode": 0.1},
            keys={"storage": {"name": "hdd", "medium": "hdd"}, "workers": 2},
            run={"storage": {"medium": "hdd"}, "dataset": {"name": "digits", "digest": "d1", "bytes": 2e9}},
        )
    ],
    "launch_bound": [
        Ran(
            parts={"data_stall": 0.02, "compute": 0.96},
            run={"training": {"accelerator": "cuda:0", "torch": "2.15.0", "gpu": {"name": "NVIDIA L4"}}},
            trace={"steps": 5.0, "kernels_per_step": 4100.0, "idle_launch_fraction": 0.61},
        )
    ],
    "failures_only": [SMALL._replace(failure=NO_MEMORY), LARGE._replace(failure=NO_MEMORY)],
    "missed_target": [
        SMALL._replace(keys={"batch": 16, "target_accuracy": 0.9}, accuracies=(0.3, 0.5, 0.6, 0.7, 0.75, 0.8))
    ],
}
"""Name of a situation -> its runs."""
