"""Records of runs and sweeps for the live view, at a fixed moment."""

import os
import platform

from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record

NOW_S = 1_000_000.0
SECOND = 1_000_000_000
JOB = {
    "model": {"name": "lenet"}, "dataset": {"name": "digits", "layout": "files"}, "batch": 16, "epochs": 6,
    "warmup_epochs": 1, "evaluate": True, "target_accuracy": None, "target_loss": None,
}  # fmt: skip


def window(name, epoch, opened_s, e2e_s, **metrics):
    """Return a line of epochs.jsonl; times are seconds before now."""
    opened_ns, closed_ns = (round((5000 - before_s) * SECOND) for before_s in (opened_s, opened_s - e2e_s))
    own = {f"{name}/{key}": value for key, value in {"e2e_s": e2e_s, **metrics}.items()}
    term = {"energy_j": metrics["energy_j"], "energy_uncertainty_j": 1.0} if "energy_j" in metrics else {}
    energy = {"opened_ns": opened_ns, "closed_ns": closed_ns, "term": term}
    return {"window": name, "epoch": epoch, "opened_ns": opened_ns, "closed_ns": closed_ns, "metrics": own,
            "energy": energy}  # fmt: skip


def epochs(count=3):
    """Return epochs of 8 s and evaluations of 1 s, one each 10 s; the last one was closed 5 s before now."""
    parts = {"data_stall_s": 2.0, "copy_s": 0.0, "compute_s": 5.9, "overhead_s": 0.1, "steps": 90, "energy_j": 80.0}
    lines = []
    for epoch in range(count):
        opened_s = 14 + 10 * (count - 1 - epoch)
        lines.append(window("epoch", epoch, opened_s, 8.0, **parts))
        lines.append(window("val", epoch, opened_s - 8, 1.0, energy_j=10.0))
    return lines


def write_run(folder, lines=(), *, silent_s=0.0, summary=None, job=JOB, **run):
    """Write a run's record; its files have changed `silent_s` before now."""
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(folder)
    metadata = {
        "number": 0, "name": "lenet digits cpu", "identity": "id", "overrides": [], "rehearsal": [], "flags": {},
        "record_id": "r", "energy": {"source": "counter", "covers": "CPU", "domains": ["cpu"], "reason": None},
        "started": "2026-11-20T12:00:00+00:00", "sweep_id": folder.parent.name,
        "clock": {"wall_s": NOW_S - 100, "monotonic_ns": 4900 * SECOND}, **this_process()._asdict(), **run,
    }  # fmt: skip
    record.describe(job, metadata)
    for line in lines:
        record.append(line)
    if summary:
        record.write_summary({"metrics": {}, "notes": [], "failure": None, **summary}, metadata["identity"])
    for path in folder.iterdir():
        os.utime(path, (NOW_S - silent_s, NOW_S - silent_s))
    return folder


def write_ended(folder, number, time_s, energy_j, *, state="completed", failure=None, rehearsal=(), **keys):
    """Write the record of an ended run of a sweep."""
    metrics = {"steady/e2e_s": time_s, "steady/energy_j": energy_j, "steady/data_stall_s": time_s / 4}
    ended = {"state": state, "failure": failure, "ended": "2026-11-20T12:00:40+00:00"}
    overrides = [f"{key}={value}" for key, value in keys.items()]
    measured = {**metrics, "total/energy_j": 10 * energy_j} if state == "completed" else {}
    return write_run(folder / str(number), job={**JOB, **keys}, number=number, overrides=overrides, rehearsal=rehearsal,
                     summary={**ended, "metrics": measured}, host=platform.node())  # fmt: skip


def write_points(folder, *points):
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "points.json", {"points": [list(point) for point in points]})
    os.utime(folder / "points.json", (NOW_S, NOW_S))
