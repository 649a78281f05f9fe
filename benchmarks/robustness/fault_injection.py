"""Faults injected into a short run at a random instant, and the losses after the same command was started again.

The run is on a simulated board, whose power mode it changes, and resumes from its checkpoints.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import boards
import psutil
import servers
import slurm
from controls import Board
from project import Project

from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.record import Record
from epochmeter.tracking.publish import is_superseded

DEFAULT = 5  # the power mode of the board before and after each run
EPOCHS = 12
LAST_FAULT_EPOCH = 6  # faults are injected after 1 to 6 of the 12 epochs, so that epochs follow also on a fast machine
LIMIT_S = 600
HUNG_AFTER_S = 60
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
SHOWN = {"completed": "FINISHED", "failed": "FAILED", "killed": "KILLED", "running": "RUNNING"}
EARLIER_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>
/* The settable clock, an hour earlier once a file exists. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME && access(SET_BACK, F_OK) == 0) now->tv_sec -= 3600;
    return failed;
}
"""


class UnsuitedError(Exception):
    """The fault cannot be injected on this machine, with the reason."""


class Scene:
    """A project on its own board, the command that is interrupted, and the random instant."""

    def __init__(self, project: Project, root: Path, seed: int) -> None:
        self.project, self.root, self.random = project, root, random.Random(seed)
        boards.write(root, "nx")
        shutil.rmtree(root / "var/lib/nvpmodel")  # replaced by the simulated nvpmodel
        self.board = Board(root).with_modes("nx", current=DEFAULT)
        # One thread: several scenes may run in parallel.
        self.environment = {"PATH": self.board.on_path(), "AS_ROOT": "1", "OMP_NUM_THREADS": "1"}
        self.before: list[str] = []
        self.overrides: dict[str, object] = {"workers": 0}
        self.database = project.root / "mlflow.db"
        self.command: subprocess.Popen = None  # type: ignore[assignment]

    def start(self) -> subprocess.Popen:
        """Start the command; it is the same each time."""
        overrides = {
            "machine.root": self.root,
            "machine.state_dir": self.root / "state",
            "meter.idle_s": 0,
            "device.python": "null",
            "device.accelerator": "cpu",
            "power_limit": 15,
            "epochs": EPOCHS,
            "batch": 32,
            "evaluate": "false",
            "checkpoint.every": 1,
            "tracking": "mlflow",
            **self.overrides,
        }
        arguments = self.project.quick("-m", **overrides)
        return self.project.start("train", *arguments, before=self.before, **self.environment)

    def record(self) -> Record:
        (record,) = self.project.records()
        return record

    def worker(self) -> psutil.Process:
        processes = self.project.at_work_in(self.record().folder)
        children = [process for process in processes if process.ppid() == self.command.pid]
        assert children, "there is no training process"
        return children[0]

    def wait(self) -> None:
        """Wait until the random instant, at which the run must still be in training."""
        epochs = self.random.randint(1, LAST_FAULT_EPOCH)

        def measured() -> list[dict]:
            return next((record.windows()[epochs - 1 :] for record in self.project.records()), [])

        (last, *_) = self.project.until(measured, LIMIT_S)
        time.sleep(self.random.uniform(0, last["metrics"]["epoch/e2e_s"]))
        assert self.command.poll() is None, f"the command ended before the fault: {self.command.returncode}"

    def small_disk(self, path: Path, size: str) -> Path:
        """Mount a file system of this size at a folder."""
        path.mkdir(exist_ok=True)
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, text=True
        )
        if mounted.returncode:
            raise UnsuitedError(f"mounting is not permitted: {mounted.stderr.strip()}")
        return path


Fault = Callable[[Scene], Generator[None, None, None]]
"""A generator with one step per `yield`: before the command starts, while it trains, after its end, after the second
command, and clean-up."""


def interrupted_by(act: Callable[[Scene], None]) -> Fault:
    """Return a fault that interrupts the training, so that the run is not completed."""

    def fault(scene: Scene) -> Iterator[None]:
        yield
        act(scene)
        yield
        assert not scene.record().is_completed(), "the run was completed in spite of the fault"

    return fault


def kill_both(scene: Scene) -> None:
    worker = scene.worker()
    scene.command.kill()
    with suppress(psutil.NoSuchProcess):
        worker.kill()


def press_ctrl_c_twice(scene: Scene) -> None:
    for pause_s in (scene.random.uniform(0, 0.5), 0):
        os.killpg(scene.command.pid, signal.SIGINT)
        time.sleep(pause_s)


def limit_memory(scene: Scene) -> None:
    """Set a memory limit that the training process exceeds already."""
    resource.prlimit(scene.worker().pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))


def with_server(*states: str) -> Fault:
    """Return a fault of an MLflow server, by its state in each step: open, closed, restarted, failing or unchanged."""

    def fault(scene: Scene) -> Iterator[None]:
        with served(scene) as gate:
            for state in states:
                if state in ("closed", "restarted"):
                    gate.close()
                if state == "restarted":
                    time.sleep(scene.random.uniform(0.5, 2))
                if state in ("open", "restarted"):
                    gate.open()
                if state == "failing":
                    gate.answers_errors()
                yield

    return fault


def record_has_no_room(scene: Scene) -> Iterator[None]:
    disk = scene.small_disk(scene.project.root / "multirun", "2m")
    yield
    _fill(disk)
    yield
    (disk / "filler").unlink()


def database_has_no_room(scene: Scene) -> Iterator[None]:
    disk = scene.small_disk(scene.project.root / "shown", "8m")
    scene.database = Path(shutil.copy(scene.database, disk))
    scene.environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{scene.database}"
    yield
    _fill(disk)
    yield
    (disk / "filler").unlink()


def record_may_not_be_written(scene: Scene) -> Iterator[None]:
    scene.before = UNPRIVILEGED
    yield
    folder = scene.record().folder
    folder.chmod(0o555)
    yield
    folder.chmod(0o755)


def database_is_locked(scene: Scene) -> Iterator[None]:
    yield
    threading.Thread(target=_lock, args=(scene.database, 30), daemon=True).start()
    yield
    yield


def clock_is_set_back(scene: Scene) -> Iterator[None]:
    source, shim = scene.root / "earlier.c", scene.root / "earlier.so"
    source.write_text(EARLIER_CLOCK.replace("SET_BACK", f'"{scene.root}/set_back"'))
    compiled = subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], capture_output=True)
    if compiled.returncode:
        raise UnsuitedError("no C compiler")
    scene.environment["LD_PRELOAD"] = str(shim)
    yield
    (scene.root / "set_back").touch()
    yield
    yield


def the_same_is_started_twice(scene: Scene) -> Iterator[None]:
    """The second command measures in its own folder, because the first is running."""
    yield
    second = scene.start()
    yield
    second.communicate(timeout=LIMIT_S)
    yield


def worker_hangs(scene: Scene) -> Iterator[None]:
    scene.overrides["sweep.hung_after_s"] = HUNG_AFTER_S
    yield from interrupted_by(lambda scene: scene.worker().suspend())(scene)


def loader_hangs(scene: Scene) -> Iterator[None]:
    scene.overrides |= {"sweep.hung_after_s": HUNG_AFTER_S, "workers": 1}
    yield
    for process in scene.project.until(scene.worker().children):  # none between two epochs
        process.suspend()
    yield


def node_drops_out(scene: Scene) -> Iterator[None]:
    """The only node of a cluster, so that the same command waits for it."""
    if not slurm.is_available():
        raise UnsuitedError(slurm.REQUIREMENTS)
    (folder := scene.root / "slurm").mkdir()
    with slurm.running(folder, {"n0": ""}) as cluster:
        scene.environment["SLURM_CONF"] = cluster.environment["SLURM_CONF"]
        scene.overrides |= {"hydra/launcher": "slurm", "hydra.launcher.poll_s": 0.5}
        yield
        cluster.stop_node("n0")
        yield
        cluster.start_node("n0")
        yield
        yield


FAULTS: dict[str, Fault] = {
    "SIGKILL of the worker": interrupted_by(lambda scene: scene.worker().kill()),
    "SIGKILL of the controller": interrupted_by(lambda scene: scene.command.kill()),
    "SIGKILL of both": interrupted_by(kill_both),
    "SIGTERM": interrupted_by(lambda scene: scene.command.terminate()),
    "Ctrl-C twice": interrupted_by(press_ctrl_c_twice),
    "no memory": interrupted_by(limit_memory),
    "record's disk full": record_has_no_room,
    "database's disk full": database_has_no_room,
    "record's folder read-only": record_may_not_be_written,
    "server down at the start": with_server("closed", "open", "unchanged", "unchanged"),
    "server down in the middle": with_server("unchanged", "restarted", "unchanged", "unchanged"),
    "server down at the end": with_server("unchanged", "closed", "open", "unchanged"),
    "server down for good": with_server("closed", "unchanged", "unchanged", "open"),
    "server answers errors": with_server("unchanged", "failing", "open", "unchanged"),
    "database locked for 30 s": database_is_locked,
    "clock set back an hour": clock_is_set_back,
    "the same command twice": the_same_is_started_twice,
    "worker hangs": worker_hangs,
    "data loader hangs": loader_hangs,
    "node of a cluster drops out": node_drops_out,
}


class Damage(NamedTuple):
    """Damage by a fault and a second start of the same command; everything must be 0 or empty."""

    lost_epochs: int  # measured by both commands, without the one that was interrupted in each run
    doubled: int  # runs that MLflow shows more than once, or in another state than their records
    unrestored: int  # device settings that were not restored
    processes: int  # that still run
    error: str  # of the second command


def inject(fault: Fault, scene: Scene) -> Damage:
    """Inject a fault at the random instant, start the same command again, and return the damage."""
    steps = fault(scene)
    try:
        next(steps)
        scene.command = scene.start()
        scene.wait()
        next(steps)
        scene.command.communicate(timeout=LIMIT_S)
        next(steps, None)
        before = [
            (record, record.run()["record_id"], len(record.windows()), record.is_completed())
            for record in scene.project.records()
        ]
        again = scene.start()
        output, errors = again.communicate(timeout=LIMIT_S)
        next(steps, None)
        error = "" if again.returncode == 0 else f"exit code {again.returncode}: {(errors or output)[-300:]}"
        publish = scene.project.start("publish", **scene.environment)
        _, errors = publish.communicate(timeout=LIMIT_S)
        error += "" if publish.returncode == 0 else f" {errors[-300:]}"
        return Damage(
            lost_epochs=sum(lost_epochs(*earlier) for earlier in before),
            doubled=count_wrong_runs(scene),
            unrestored=int(scene.board.mode() != DEFAULT),
            processes=len(scene.project.at_work_in(scene.project.root)),
            error=error.strip(),
        )
    finally:
        for process in scene.project.at_work_in(scene.project.root):
            process.kill()
        for _ in steps:
            pass
        for folder in ("multirun", "shown"):
            subprocess.run(["umount", "--lazy", scene.project.root / folder], capture_output=True)


def lost_epochs(record: Record, record_id: str, epochs: int, was_completed: bool) -> int:
    """Return how many of a record's earlier epochs were measured again, without the one that was interrupted."""
    run = record.run()
    same = run["record_id"] == record_id
    if was_completed:
        return 0 if same else epochs
    resumed = run.get("resumed", []) if same else []
    return max(0, epochs - (resumed[-1]["epoch"] if resumed else 0) - 1)


def count_wrong_runs(scene: Scene) -> int:
    """Count records that MLflow does not show exactly once in their state; replaced attempts must not be shown."""
    query = (
        "select tags.value, runs.status from runs join tags using (run_uuid) "
        "where tags.key = 'epochmeter.record_id' and runs.lifecycle_stage = 'active'"
    )
    with closing(sqlite3.connect(scene.database)) as database:
        shown = sorted(database.execute(query).fetchall())
    records = [attempt for record in scene.project.records() for attempt in (record, *record.attempts())]
    current = [record for record in records if not is_superseded(record)]
    expected = sorted((record.run()["record_id"], SHOWN[RunFolder(record.folder).state]) for record in current)
    return len(set(shown) ^ set(expected)) + len(shown) - len(set(shown))


class Gate:
    """A proxy in front of a server that forwards requests, refuses them, or answers with errors."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._handle: Callable[[socket.socket], None] = self._forward
        threading.Thread(target=self._serve, daemon=True).start()

    def open(self) -> None:
        self._handle = self._forward

    def close(self) -> None:
        self._handle = lambda client: None

    def answers_errors(self) -> None:
        self._handle = self._send_error

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(client, self._handle), daemon=True).start()

    def _answer(self, client: socket.socket, handle: Callable[[socket.socket], None]) -> None:
        with client, suppress(OSError):
            handle(client)

    def _forward(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as server:
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            _copy(client, server)
            back.join()

    def _send_error(self, client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def served(scene: Scene) -> Iterator[Gate]:
    """Start an MLflow server behind a gate; the command publishes to it."""
    folder = scene.root / "server"
    folder.mkdir()
    scene.database = Path(shutil.copy(scene.database, folder))
    with servers.mlflow(folder, f"sqlite:///{scene.database}") as address:
        gate = Gate(int(address.rpartition(":")[2]))
        scene.overrides |= {"tracking": "server", "tracking.uri": gate.address}
        yield gate


def _fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def _lock(path: Path, seconds: float) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as database:
        database.execute("begin exclusive")
        time.sleep(seconds)
        database.execute("rollback")
