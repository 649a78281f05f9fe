"""Records as a controller writes them, and one database per session, emptied for each test."""

import os
import shutil
import socket
import sqlite3
import uuid
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record
from epochmeter.tracking.client import Store, open_store

STARTED = datetime(2026, 11, 20, 12, 0, 0).astimezone()
SECOND_NS = 1_000_000_000
COUNTER = {"source": "counter", "covers": "gpu0", "reason": None}
NO_METER = {"source": "none", "covers": None, "reason": "no meter: /sys/class/powercap is not readable"}
DIGITS = {
    "name": "digits",
    "digest": "0a" * 32,
    "count": 1797,
    "bytes": 123456,
    "classes": 10,
    "source": "scikit-learn's load_digits",
}
RUN_TABLES = ("metrics", "latest_metrics", "params", "tags", "input_tags", "inputs", "datasets", "runs")


def write_record(folder: Path, *, batch=16, limit=None, energy=True, epochs=3, state="completed", **run) -> Record:
    """Write a record with realistic numbers; `state=None` leaves it in the middle of the run."""
    folder.mkdir(parents=True)
    record = Record(folder)
    record.describe(job_keys(batch, limit, epochs), {**run_metadata(folder, batch, limit, energy), **run})
    write_json(folder / "host.json", {"hostname": socket.gethostname(), "git": {"commit": "a" * 40}})
    power_w = (limit or 250) if energy else None
    stall_s, compute_s = 0.4 + 2.0 / batch, 16 / batch + 300 / (limit or 250)
    for epoch in range(epochs):
        record.append(window("epoch", epoch, stall_s * 1.6 if epoch == 0 else stall_s, compute_s, power_w))
        record.append(window("val", epoch, 0.02, 0.2, power_w))
    if state:
        metrics = summary_metrics(epochs, stall_s, compute_s, power_w)
        failure = None if state == "completed" else {"kind": "oom", "message": "CUDA out of memory in epoch 2"}
        record.write_summary({"state": state, "metrics": metrics, "notes": [], "failure": failure}, "1d" * 8)
    if state == "completed":
        finished = STARTED + timedelta(seconds=90)
        write_json(folder / "completed.json", {"identity": "1d" * 8, "finished": finished.isoformat()})
    return record


def job_keys(batch, limit, epochs):
    return {
        "device": {"name": "cuda", "rails": {"total": ["VDD_IN"]}},
        "model": {"_target_": "epochmeter.worker.models.lenet.LeNet", "name": "lenet"},
        "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.01, "momentum": 0.9},
        "tracking": {"name": "mlflow", "experiment": "epochmeter"},
        "batch": batch,
        "epochs": epochs,
        "power_limit": limit,
        "workers": 4,
        "pin_memory": True,
    }


def run_metadata(folder, batch, limit, energy):
    return {
        "record_id": uuid.uuid4().hex,
        "sweep_id": folder.parent.name,
        "number": int(folder.name),
        "name": f"cuda lenet digits batch={batch}" + (f" power_limit={limit}" if limit else ""),
        "identity": "1d" * 8,
        "choices": {"device": "cuda", "model": "lenet", "dataset": "digits", "optimizer": "sgd", "tracking": "mlflow"},
        "overrides": [f"batch={batch}"],
        "started": STARTED.isoformat(),
        "clock": {"wall_s": STARTED.timestamp(), "monotonic_ns": 100 * SECOND_NS},
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot_id": None,
        "rehearsal": [],
        "energy": COUNTER if energy else NO_METER,
        "power_limit_applied": limit,
        "dataset": DIGITS,
    }


def window(kind, epoch, stall_s, compute_s, power_w):
    opened_ns = (100 + 10 * epoch + (5 if kind == "val" else 0)) * SECOND_NS
    e2e_s = stall_s + compute_s + 0.05
    metrics = {
        "epoch/data_stall_s": stall_s,
        "epoch/compute_s": compute_s,
        "epoch/overhead_s": 0.05,
        "epoch/train_loss": 2.0 / (epoch + 1),
        "epoch/train_accuracy": 1 - 0.8 / (epoch + 1),
    }
    if kind == "val":
        metrics = {"val/loss": 2.1 / (epoch + 1), "val/accuracy": 1 - 0.9 / (epoch + 1)}
    energy = {f"{kind}/energy_j": e2e_s * power_w} if power_w else {}
    return {
        "window": kind,
        "epoch": epoch,
        "opened_ns": opened_ns,
        "closed_ns": opened_ns + int(e2e_s * SECOND_NS),
        "metrics": {f"{kind}/e2e_s": e2e_s, **metrics, **energy},
        "energy": None,
    }


def summary_metrics(epochs, stall_s, compute_s, power_w):
    e2e_s = stall_s + compute_s + 0.05
    metrics = {
        "steady/e2e_s": e2e_s,
        "steady/data_stall_s": stall_s,
        "steady/compute_s": compute_s,
        "steady/overhead_s": 0.05,
        "std/e2e_s": 0.01,
        "total/e2e_s": epochs * e2e_s,
        "total/epochs": epochs,
        "model/parameters": 61706,
    }
    energy = {"steady/energy_j": e2e_s * power_w, "total/energy_j": epochs * e2e_s * power_w} if power_w else {}
    return {**metrics, **energy}


@pytest.fixture
def make_record(tmp_path):
    """make_record(0, batch=16, ...) -> a record with that number in a sweep's folder."""
    return lambda number=0, sweep="sweep", **keys: write_record(tmp_path / "multirun" / sweep / str(number), **keys)


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory) -> Store:
    return open_store(uri=f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}")


@pytest.fixture
def store(shared_store) -> Store:
    """An empty experiment in the session's database."""
    clear(shared_store)
    return shared_store


@pytest.fixture
def other_store(shared_store, tmp_path) -> Store:
    """Another, empty database, in `tmp_path`."""
    clear(shared_store)
    shutil.copy(shared_store.uri.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    return open_store(uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


def clear(store: Store) -> None:
    """Delete all runs, tags of experiments, and other experiments."""
    with sqlite3.connect(store.uri.removeprefix("sqlite:///")) as database:
        for table in (*RUN_TABLES, "experiment_tags"):
            database.execute(f"delete from {table}")
        database.execute("delete from experiments where name not in ('Default', 'epochmeter')")
        database.execute("update experiments set lifecycle_stage = 'active'")


@pytest.fixture
def points(store):
    """points(run_id) -> every metric point of a run, read from the database itself."""

    def read(run_id: str) -> list[tuple]:
        with sqlite3.connect(store.uri.removeprefix("sqlite:///")) as database:
            return database.execute("select key, step, value from metrics where run_uuid = ?", (run_id,)).fetchall()

    return read
