"""A training process that follows the protocol but trains nothing: an epoch lasts as many milliseconds as the batch.

The controller starts it with `device.python=PROGRAM`; the rest of a run, its record and MLflow included, is real.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from pathlib import Path

from epochmeter.shared import protocol
from epochmeter.shared.lifetime import die_with_parent
from epochmeter.shared.record import INTERVALS, Record
from epochmeter.worker.connection import ControllerConnection

STEPS, SAMPLES = 4, 64
JOB = {"dataset": "tensors", "evaluate": "false", "profiler": "none", "cache": "keep", "epochs": 2, "batch": 1}
"""Overrides that such a process needs, since it has neither data nor a model."""


def program(folder: Path) -> Path:
    """Write the training process as a program that starts quickly, since Python does not search for packages."""
    text = f"#!{sys.executable} -S\nimport sys\nif sys.argv[1] == '-c':\n    sys.exit()\n"
    tests = f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    return executable(folder / "stub", f"{text}{tests}import stub\nstub.main(sys.argv[-1])\n")


def failing(folder: Path, name: str = "failing") -> Path:
    """Write a program that looks like a Python with torch and fails as a training process."""
    return executable(folder / name, '#!/bin/sh\n[ "$1" != -m ]\n')


def executable(path: Path, text: str) -> Path:
    """Write a program, and return its path."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def main(folder: str) -> None:
    die_with_parent()
    record, connection = Record(folder), ControllerConnection(os.environ["EPOCHMETER_SOCKET"])
    connection.request(protocol.Built({"parameters": 1}, {"accelerator": "cpu", "torch": "none"}))
    for epoch in range(record.job()["epochs"]):
        if trained(epoch, record, connection).stop:
            break
    connection.request(protocol.Trained())
    connection.send(protocol.Finished())


def trained(epoch: int, record: Record, connection: ControllerConnection) -> protocol.Recorded:
    """Report an epoch that only sleeps."""
    connection.request(protocol.WindowOpening("epoch", epoch, STEPS))
    opened_ns = time.monotonic_ns()
    time.sleep(record.job()["batch"] / 1000)
    closed_ns = time.monotonic_ns()
    connection.request(protocol.WindowClosed(opened_ns, closed_ns))
    e2e_s = (closed_ns - opened_ns) * 1e-9
    record.append_steps(array("f", [0.0, 0.0, 0.0, e2e_s / STEPS] * STEPS))
    record.append_losses(array("f", [1.0] * STEPS))
    assert len(INTERVALS) == 4
    parts = dict.fromkeys(("data_stall_s", "copy_s", "overhead_s", "clock_residual_s"), 0.0)
    parts |= {"e2e_s": e2e_s, "compute_s": e2e_s, "steps": STEPS, "samples": SAMPLES}
    measured = protocol.RankWindow(opened_ns, closed_ns, 0, parts, [], False, SAMPLES, SAMPLES, SAMPLES / 2)
    return connection.request(protocol.WindowMeasured([measured], []))
