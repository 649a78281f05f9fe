"""Records, databases, gauges and traces of any size, for `cost/scale.py`: copies of one real run."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

from common.jobs import trained

from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.record import INTERVALS, Record

REAL = ["model=lenet", "dataset=digits", "batch=64", "workers=0", "epochs=3", "cache=keep", "profiler=none"]
REPEATS = 3  # of each configuration of a sweep
MAX_RUNS = 10_000  # of a sweep; the files of further runs are links


@cache
def real_record() -> Record:
    """Train once, and return the record."""
    (record,) = trained(*REAL)
    return record


def long_run(epochs: int, folder: Path, **ended: Any) -> Record:
    """Write the record of a run of many epochs, copies of the last one of a real run."""
    real = real_record()
    described, windows = read_json(real.folder / "job.json"), real.windows()
    last = [window for window in windows if window["epoch"] == windows[-1]["epoch"]]
    run = {**described["run"], "sweep_id": folder.parent.name, "record_id": f"{folder.parent.name}-{epochs}"}
    run["number"], run["moments"] = int(folder.name), {**described["run"]["moments"]}
    folder.mkdir(parents=True, exist_ok=True)
    dump(folder / "job.json", {**described, "job": {**described["job"], "epochs": epochs}, "run": run})
    shutil.copy(real.folder / "host.json", folder)
    draw = random.Random(0)
    period_ns = last[-1]["closed_ns"] - last[0]["opened_ns"]
    with open(folder / "epochs.jsonl", "w") as file:
        for epoch in range(epochs):
            slower = draw.gauss(1, 0.01)
            for window in last:
                times = {name: window[name] + epoch * period_ns for name in ("opened_ns", "closed_ns")}
                metrics = {name: value * slower if name.endswith("_s") else value
                           for name, value in window["metrics"].items()}  # fmt: skip
                energy = {**window["energy"], **times}
                file.write(json.dumps({**window, **times, "epoch": epoch, "metrics": metrics, "energy": energy}) + "\n")
    for name, columns in (("steps.bin", len(INTERVALS)), ("losses.bin", 1)):
        steps = int(last[0]["metrics"]["epoch/steps"])
        part = (real.folder / name).read_bytes()[-4 * columns * steps :]
        with open(folder / name, "wb") as file:
            for _ in range(epochs):
                file.write(part)
    if ended:
        for name in ("summary.json", "completed.json"):
            shutil.copy(real.folder / name, folder)
    return Record(folder)


def appended(record: Record) -> Callable[[], dict[str, Any]]:
    """Return a function that appends one more epoch, with its steps, to a record, and returns its window."""
    *_, last = record.windows()
    steps = int(last["metrics"].get("epoch/steps", 0)) or 1
    number = last["epoch"]

    def append() -> dict[str, Any]:
        nonlocal number
        number += 1
        window = {**last, "epoch": number, "window": last["window"]}
        if last["window"] == "epoch":
            record.append_steps(array("f", [0.0] * len(INTERVALS) * steps), durably=False)
            record.append_losses(array("f", [0.5] * steps))
        record.append(window)
        return window

    return append


def grid(runs: int) -> Iterator[dict[str, int]]:
    """Yield the keys of `runs` runs: a grid with three repeats each, whose last axis is as long as needed."""
    points = -(-runs // REPEATS)
    limits = range(100, 100 + -(-points // 40))
    keys = ("power_limit", "batch", "workers", "repeat")
    every = product(limits, (8, 16, 32, 64, 128, 256, 512, 1024), (0, 1, 2, 4, 8), range(REPEATS))
    return (dict(zip(keys, values, strict=True)) for values in islice(every, runs))


def write_sweep(runs: int, sweep: Path) -> Path:
    """Write the records of a sweep: copies of a real one with varied keys and metrics, up to `MAX_RUNS`."""
    record = real_record()
    described, ended, windows = read_json(record.folder / "job.json"), record.summary(), record.windows()
    draw = random.Random(0)
    sweep.mkdir(parents=True)
    common = {name: sweep / f".{name}" for name in ("host.json", "steps.bin", "losses.bin")}
    for name, path in common.items():
        shutil.copy(record.folder / name, path)
    points = []
    for number, keys in enumerate(grid(min(runs, MAX_RUNS))):
        slower = 1 + 4 / keys["batch"] + 20 / keys["power_limit"] + draw.gauss(0, 0.01)
        power_w = 40 + 0.8 * keys["power_limit"] * draw.uniform(0.98, 1.02)
        folder = sweep / str(number)
        folder.mkdir()
        identity = f"{number:08x}"
        run = {**described["run"], "sweep_id": sweep.name, "number": number, "record_id": f"{sweep.name}-{number}"}
        run["overrides"] = [f"{key}={value}" for key, value in keys.items()]
        run["energy"] = {"source": "counter", "covers": "GPUs used", "reason": None}
        run["of_sweep"], run["identity"] = True, identity
        points.append(run["overrides"])
        dump(folder / "job.json", {**described, "job": {**described["job"], **keys}, "run": run})
        dump(folder / "summary.json", {**ended, "metrics": varied(ended["metrics"], slower, power_w)})
        lines = [json.dumps({**window, "metrics": varied(window["metrics"], slower, power_w)}) for window in windows]
        (folder / "epochs.jsonl").write_text("".join(f"{line}\n" for line in lines))
        dump(folder / "completed.json", {"identity": identity, "finished": "2026-01-01T00:00:00+00:00"})
        for name, path in common.items():
            with suppress(OSError):
                os.link(path, folder / name)
                continue
            shutil.copy(path, folder / name)  # more links than the file system allows
    for number in range(MAX_RUNS, runs):
        (sweep / str(number)).mkdir()
        for name in ("job.json", "summary.json", "epochs.jsonl", "completed.json"):
            os.link(sweep / str(number % MAX_RUNS) / name, sweep / str(number) / name)
    dump(sweep / "points.json", {"points": points})
    return sweep


def varied(metrics: dict[str, float], slower: float, power_w: float) -> dict[str, float]:
    """Return the metrics of a run that is `slower` times as long, at this power."""
    times = {name: value * slower if name.endswith("_s") else value for name, value in metrics.items()}
    energy = {name.replace("e2e_s", "energy_j"): value * power_w for name, value in times.items() if "e2e_s" in name}
    return {**times, **energy}


def multiply(database: Path, run_id: str, runs: int) -> None:
    """Add copies of a run to MLflow's database."""
    with sqlite3.connect(database) as connection:
        for table in ("runs", "params", "tags", "metrics", "latest_metrics"):
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            wanted = {
                "run_uuid": "substr(? || run_uuid, 1, 32)",
                "value": "CASE key WHEN 'epochmeter.record_id' THEN value || ? "
                "WHEN 'epochmeter.folder' THEN value || ? ELSE value END" if table == "tags" else "value",
            }  # fmt: skip
            values = ", ".join(wanted.get(column, column) for column in columns)
            insert = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} WHERE run_uuid = ?"
            count = values.count("?")
            rows = ([f"{number:08x}"] * count + [run_id] for number in range(1, runs))
            connection.executemany(insert, rows)


def dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))


def gauge_file(days: int, folder: Path) -> Path:
    """Write the gauges of some days, one row per second."""
    from epochmeter.shared.record import GAUGES

    columns = ["monotonic_ns", "ram_used_bytes", *(f"cpu{core}_utilization" for core in range(8)), "disk_utilization"]
    path = folder / GAUGES
    with open(path, "w") as file:
        file.write(",".join(columns) + "\n")
        for second in range(86_400 * days):
            file.write(f"{second * 10**9},8123456789," + ",".join([f"0.{second % 97:02}1"] * 9) + "\n")
    return path


def write_trace(path: Path, megabytes: int) -> None:
    """Write a trace of steps with 200 operators and kernels each."""
    from kineto import Kineto

    written, step = 0, 0
    with open(path, "w") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{}], "traceEvents": [')
        while written < megabytes * 10**6:
            trace, begin = Kineto(), 10_000 * step
            trace._correlation = 1000 * step
            trace.step(step, begin, 9_900)
            for number in range(200):
                at = begin + 10 + 45 * number
                trace.host(f"aten::operator{number % 40}", at, 40)
                trace.launch(f"kernel{number % 50}", at + 20, 25, launched=at + 5)
            text = ",\n".join(json.dumps(event) for event in trace.events)
            file.write((",\n" if step else "") + text)
            written, step = written + len(text), step + 1
        file.write("]}")
