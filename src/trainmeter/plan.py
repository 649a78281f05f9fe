"""The plan of one run: its job made definite on this machine, where its record goes, what it will use."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from trainmeter.datasets import manifest
from trainmeter.job import ROOT, Order, check, identity, matches, measures
from trainmeter.machine import gpus, host
from trainmeter.power import limit
from trainmeter.record import Record, read_json, write_json


@dataclass
class Plan:
    job: dict[str, Any]
    run: dict[str, Any]
    """What is known of this run beside its job; it grows as the run goes on."""
    host: dict[str, Any]
    record: Record
    gpus: list[str]
    """UUIDs of the GPUs that are metered."""
    devices: list[str]
    """What is locked: the GPUs used, or the CPU."""
    of_sweep: bool

    @property
    def whole_already(self) -> bool:
        return self.record.is_whole(self.run["identity"])

    @property
    def holder(self) -> str:
        """Who holds the locks, for those who wait."""
        return f"pid {os.getpid()} since {self.run['started']}: {command()}"

    def begin(self) -> None:
        """Opens the record: what an earlier attempt left is set aside first."""
        try:
            self.record.set_aside()
            write_json(self.record.folder / "host.json", self.host)
            self.describe(started=_now(), clock={"wall_s": time.time(), "monotonic_ns": time.monotonic_ns()})
        except OSError as error:
            raise RuntimeError(unwritten(error)) from error

    def describe(self, **facts: Any) -> None:
        """Adds to what the record says of this run; what the dataset is, is part of the job's identity."""
        self.run.update(facts)
        if self.run["dataset"]:
            self.run["identity"] = identity(self.job, self.run["dataset"]["digest"])
        self.record.describe(self.job, self.run)


def settle(order: Order) -> Plan:
    """The plan for an order: the device found where none was named, values checked, rehearsals told.

    Raises ValueError for a job that is out of range or, with rehearse=false, for another machine, and
    RuntimeError for one whose power limit this machine has but which cannot be set.
    """
    root = order.job["machine"]["root"]
    facts = host.facts(root)
    found = host.detect(matches(), facts)
    if order.choices["device"] == "auto":
        order = order.on(found)
    check(order.job)
    rehearsal = rehearsals(order, found, facts)
    if not host.fits(order.job["device"]["match"], facts):
        order = as_here(order)
    described = host.describe(root, ROOT)
    accelerator = order.job["device"]["accelerator"]
    on_gpu = accelerator == "cuda" or (accelerator == "auto" and bool(facts["gpu"]))
    used = gpus.used(described.get("gpus", ()), os.environ.get("CUDA_VISIBLE_DEVICES")) if on_gpu else []
    return Plan(
        job=order.job,
        run=_run(order, described, rehearsal),
        host=described,
        record=Record(order.folder),
        gpus=[gpu["uuid"] for gpu in used if "uuid" in gpu],
        devices=[f"gpu-{gpu['bus']}" for gpu in used] or ["gpu" if on_gpu else "cpu"],
        of_sweep=order.of_sweep,
    )


def as_here(order: Order) -> Order:
    """An order for another machine, as it trains on this one: what that device's file says of its accelerator and
    its Python does not hold here; what was typed does."""
    typed = {override.partition("=")[0] for override in order.overrides}
    here = {"accelerator": "auto", "python": None}
    kept = {key: value for key, value in here.items() if f"device.{key}" not in typed}
    return replace(order, job={**order.job, "device": {**order.job["device"], **kept}})


def withdraw(order: Order) -> None:
    """Removes the folders that were made for an order that is refused, where nothing is in them."""
    for folder in (order.folder, order.folder.parent):
        with suppress(OSError):
            folder.rmdir()


def rehearsals(order: Order, found: str, facts: Mapping[str, str | None]) -> list[str]:
    """What was asked for that this machine is not; ValueError for any of it with rehearse=false."""
    job, device = order.job, order.choices["device"]
    reasons = []
    if not host.fits(job["device"]["match"], facts):
        reasons.append(f"device={device} asked for, this machine is device={found}")
    if job["power_limit"] is not None:
        knob = limit.found(job["device"]["accelerator"] != "cpu", facts, job["machine"]["root"])
        if knob is None:
            reasons.append(f"power_limit={job['power_limit']} asked for, this machine has no limit to set")
        elif reasons or job["rehearse"] is True:
            reasons.append(f"power_limit={job['power_limit']} asked for, not applied")
        else:
            raise RuntimeError(
                f"power_limit={job['power_limit']} asks for a limit by {knob}, which this version cannot set yet. "
                "Leave power_limit out and set it by hand, or rehearse with rehearse=true."
            )
    if reasons and job["rehearse"] is False:
        raise ValueError(f"{'; '.join(reasons)}. rehearse=false refuses that; leave it out to rehearse.")
    if job["rehearse"] is True:
        reasons.append("rehearse=true")
    return reasons


def warnings(plan: Plan) -> list[str]:
    """What a person should know before the run: none of it stops it."""
    job = plan.job
    said = []
    cores = len(os.sched_getaffinity(0))
    if job["workers"] > cores:
        said.append(f"workers={job['workers']} loader processes on {cores} cores: used as configured.")
    if job["dataset"]["layout"] == "memory":
        said.append(f"dataset={job['dataset']['name']} lives in memory: storage and page cache play no part.")
    return said


def unwritten(error: OSError) -> str:
    return f"the record cannot be written: {error}. Make room or give the right to, and run it again."


def command() -> str:
    """The command that this process was started by."""
    return shlex.join([os.path.basename(sys.executable), *sys.argv])


def _run(order: Order, described: Mapping[str, Any], rehearsal: list[str]) -> dict[str, Any]:
    job = order.job
    return {
        "record_id": uuid.uuid4().hex,
        "sweep_id": order.folder.parent.name,
        "number": order.number,
        "name": _name(order),
        "identity": identity(job, _digest(ROOT / job["dataset"]["root"])),
        "choices": order.choices,
        "overrides": order.overrides,
        "command": command(),
        "started": _now(),
        # Whose process this is, for those who ask whether it still lives: never that of a machine replayed.
        "host": platform.node(),
        "pid": os.getpid(),
        "boot_id": host.boot_id(),
        "rehearsal": rehearsal,
        "energy": {"source": "none", "covers": None, "reason": "no meter was opened"},
        "power_limit_applied": None,
        "dataset": None,
    }


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _digest(dataset: Path) -> str | None:
    """The digest of a dataset that is there; None where it is still to be made."""
    try:
        return read_json(dataset / manifest.NAME)["digest"]
    except (OSError, ValueError, KeyError):
        return None


def _name(order: Order) -> str:
    """A run's name in lists, which cut it short: what was typed that changes the measurement, then what it trains."""
    last = ("model", "dataset", "device")
    typed = [(override.partition("=")[0], override) for override in order.overrides]
    first = [text for key, text in typed if key not in (*last, "machine.root") and measures(key)]
    return " ".join([*first, *(order.choices[group] for group in last)])
