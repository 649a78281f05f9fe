"""Records as a controller writes them, and one database per session, emptied for each test."""

import json
import os
import shutil
import socket
import sqlite3
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import Problem
from epochmeter.shared.record import Record
from epochmeter.tracking import queue
from epochmeter.tracking.client import Store, open_store
from epochmeter.tracking.export_process import refusal

STARTED = datetime(2026, 11, 20, 12, 0, 0).astimezone()
SECOND_NS = 1_000_000_000
COUNTER = {"source": "counter", "covers": "gpu0", "reason": None}
NO_METER = {"source": "none", "covers": None, "reason": "no meter: /sys/class/powercap is not readable"}
DIGITS = {"name": "digits", "digest": "0a" * 32, "count": 1797, "bytes": 123456, "classes": 10, "source": "sklearn"}
RUN_TABLES = ("metrics", "latest_metrics", "params", "tags", "runs", "experiment_tags")
JOB = {
    "device": {"name": "cuda", "rails": {"total": ["VDD_IN"]}},
    "model": {"_target_": "epochmeter.worker.models.lenet.LeNet", "name": "lenet"},
    "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.01, "momentum": 0.9},
    "tracking": {"name": "mlflow", "experiment": "epochmeter"}, "workers": 4, "pin_memory": True, "warmup_epochs": 1,
}  # fmt: skip
RUN = {
    "choices": {"device": "cuda", "model": "lenet", "dataset": "digits", "optimizer": "sgd", "tracking": "mlflow"},
    "identity": "1d" * 8, "rehearsal": [], "dataset": DIGITS, "host": socket.gethostname(), "pid": os.getpid(),
    "started": STARTED.isoformat(), "clock": {"wall_s": STARTED.timestamp(), "monotonic_ns": 100 * SECOND_NS},
    "boot_id": None,
}  # fmt: skip


def write_record(folder: Path, *, batch=16, limit=None, energy=True, epochs=3, state="completed", **run) -> Record:
    """Write a record with realistic numbers; `state=None` leaves it in the middle of the run."""
    folder.mkdir(parents=True)
    record = Record(folder)
    own = {
        "record_id": uuid.uuid4().hex, "sweep_id": folder.parent.name, "number": int(folder.name),
        "name": f"cuda lenet digits batch={batch}" + (f" power_limit={limit}" if limit else ""),
        "overrides": [f"batch={batch}"], "energy": COUNTER if energy else NO_METER,
        "power_limit_applied": limit and f"{limit} W",
    }  # fmt: skip
    record.describe({**JOB, "batch": batch, "epochs": epochs, "power_limit": limit}, {**RUN, **own, **run})
    write_json(folder / "host.json", {"hostname": socket.gethostname(), "git": {"commit": "a" * 40}})
    power_w = (limit or 250) if energy else None
    for epoch in range(epochs):
        record.append(window("epoch", epoch, 2.0, power_w, train_loss=2.0 / (epoch + 1)))
        record.append(window("val", epoch, 0.25, power_w, accuracy=1 - 0.9 / (epoch + 1)))
    if state:
        metrics = {"steady/e2e_s": 2.0, "steady/data_stall_s": 0.5, "total/e2e_s": 2.25 * epochs}
        metrics["total/epochs"] = epochs
        metrics |= {"steady/energy_j": 2.0 * power_w, "total/energy_j": 2.25 * epochs * power_w} if power_w else {}
        failure = None if state == "completed" else Problem("CUDA out of memory in epoch 2", "less", "oom").to_fields()
        record.write_summary({"state": state, "metrics": metrics, "notes": [], "failure": failure}, "1d" * 8)
    if state == "completed":
        finished = STARTED + timedelta(seconds=90)
        write_json(folder / "completed.json", {"identity": "1d" * 8, "finished": finished.isoformat()})
    return record


def window(kind, epoch, e2e_s, power_w, **metrics):
    opened_ns = (100 + 10 * epoch + (5 if kind == "val" else 0)) * SECOND_NS
    metrics |= {"e2e_s": e2e_s, **({"energy_j": e2e_s * power_w} if power_w else {})}
    times = {"opened_ns": opened_ns, "closed_ns": opened_ns + int(e2e_s * SECOND_NS)}
    named = {f"{kind}/{name}": value for name, value in metrics.items()}
    return {"window": kind, "epoch": epoch, **times, "metrics": named, "energy": None}


@pytest.fixture
def make_record(tmp_path):
    """make_record(0, batch=16, ...) -> a record with that number in a sweep's folder."""
    return lambda number=0, sweep="sweep", **keys: write_record(tmp_path / "multirun" / sweep / str(number), **keys)


@pytest.fixture
def make_queued(make_record):
    """make_queued(0, ...) -> a record that is in the queue; its process is dead."""

    def make(number=0, **keys):
        record = make_record(number, **{"pid": 2**22 + 1, **keys})
        queue.enqueue(record, record.run()["record_id"])
        return record

    return make


@pytest.fixture(scope="session")
def shared_store(template, tmp_path_factory) -> Store:
    """A copy of the projects' database, since MLflow takes two seconds to create one; no commit waits for the disk."""
    event.listen(Engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = off"))
    return open_store(uri=f"sqlite:///{shutil.copy(template / 'mlflow.db', tmp_path_factory.mktemp('mlflow'))}")


@pytest.fixture
def store(shared_store) -> Store:
    """An empty experiment in the session's database."""
    with sqlite3.connect(shared_store.uri.removeprefix("sqlite:///")) as database:
        for table in RUN_TABLES:
            database.execute(f"delete from {table}")
        database.execute("delete from experiments where name not in ('Default', 'epochmeter')")
        database.execute("update experiments set lifecycle_stage = 'active'")
    return shared_store


@pytest.fixture
def points(store):
    """points(run_id) -> every metric point of a run, read from the database itself."""

    def read(run_id: str) -> list[tuple]:
        with sqlite3.connect(store.uri.removeprefix("sqlite:///")) as database:
            return database.execute("select key, step, value from metrics where run_uuid = ?", (run_id,)).fetchall()

    return read


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """recorded() -> the calls of the exporters in `recording.py`, which are on PYTHONPATH, with modules in tmp_path."""
    refusal.cache_clear()
    file = tmp_path / "calls"
    monkeypatch.setenv("RECORDED", str(file))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(tmp_path)]))
    yield lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    refusal.cache_clear()


def runs_of(store: Store) -> list:
    return store.client.search_runs([store.experiment_id])


def statuses_of(store: Store) -> list[str]:
    return sorted(run.info.status for run in runs_of(store))


def change_record(record: Record, run: Mapping[str, object], **job: object) -> None:
    """Change keys of a record's run and of its job."""
    record.describe({**record.job(), **job}, {**record.run(), **run})
