"""Faults, injected into a run of seconds at an instant that a seed draws, and what is found after the same command was
started once more: the run is of a recorded board, whose power mode it turns, and goes on from its checkpoints."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import boards
import psutil
import slurm
from conftest import Project
from controls import Board

from epochmeter.results.run_status import status_of
from epochmeter.shared.record import Record
from epochmeter.tracking.publish import is_superseded

DEFAULT = 5
"""The power mode that the board is in, and is to be in after all."""
EPOCHS = 12
LATEST = 6
"""The instant is within an epoch from the second to the one after so many: however fast the machine, others follow."""
LIMIT_S = 600
HUNG_AFTER_S = 60
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
SHOWN = {"completed": "FINISHED", "failed": "FAILED", "killed": "KILLED", "running": "RUNNING"}
EARLIER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>
/* The clock that can be set, an hour back as soon as a file is there. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME && access(SET_BACK, F_OK) == 0) now->tv_sec -= 3600;
    return failed;
}
"""


class UnsuitedError(Exception):
    """This machine cannot bring the fault about; says why."""


class Scene:
    """A project on a board of its own, the command that is hurt, and what draws the instant."""

    def __init__(self, project: Project, root: Path, seed: int) -> None:
        self.project, self.root, self.chance = project, root, random.Random(seed)
        boards.write(root, "nx")
        shutil.rmtree(root / "var/lib/nvpmodel")  # nvpmodel's own stands here for it
        self.board = Board(root).with_modes("nx", current=DEFAULT)
        # One thread: of several scenes at once each would wait for the others.
        self.environment = {"PATH": self.board.on_path(), "AS_ROOT": "1", "OMP_NUM_THREADS": "1"}
        self.before: list[str] = []
        self.asked: dict[str, object] = {"workers": 0}
        self.database = project.root / "mlflow.db"
        self.command: subprocess.Popen = None  # type: ignore[assignment]

    def start(self) -> subprocess.Popen:
        """The command, which is the same each time."""
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
            **self.asked,
        }
        asked = self.project.quick("-m", **overrides)
        return self.project.start("train", *asked, before=self.before, **self.environment)

    def record(self) -> Record:
        (record,) = self.project.records()
        return record

    def worker(self) -> psutil.Process:
        ours = self.project.at_work_in(self.record().folder)
        found = [process for process in ours if process.ppid() == self.command.pid]
        assert found, "there is no worker to be hurt"
        return found[0]

    def wait(self) -> None:
        """Until the instant that is drawn, at which the command's run is to be under way."""
        epochs = self.chance.randint(1, LATEST)

        def measured() -> list[dict]:
            return next((record.windows()[epochs - 1 :] for record in self.project.records()), [])

        (last, *_) = self.project.until(measured, LIMIT_S)
        time.sleep(self.chance.uniform(0, last["metrics"]["epoch/e2e_s"]))
        assert self.command.poll() is None, f"the command had ended before it was hurt: {self.command.returncode}"

    def was_ended(self) -> None:
        """Looks whether what was done did end the run."""
        assert not self.record().is_completed(), "the run completed: nothing has hurt it"

    def small_disk(self, path: Path, size: str) -> Path:
        """That folder on a file system of its own, of so many bytes."""
        path.mkdir(exist_ok=True)
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, text=True
        )
        if mounted.returncode:
            raise UnsuitedError(f"no right to mount: {mounted.stderr.strip()}")
        return path


Fault = Callable[[Scene], Generator[None, None, None]]
"""What is done before the command begins, once it trains, when it has ended, and when it has been started once more: a
step to each `yield`; and what is undone when all has been looked at."""


def worker_is_killed(scene: Scene) -> Iterator[None]:
    yield
    scene.worker().kill()
    yield
    scene.was_ended()


def steward_is_killed(scene: Scene) -> Iterator[None]:
    yield
    scene.command.kill()
    yield
    scene.was_ended()


def both_are_killed(scene: Scene) -> Iterator[None]:
    yield
    worker = scene.worker()
    scene.command.kill()
    with suppress(psutil.NoSuchProcess):
        worker.kill()
    yield
    scene.was_ended()


def sigterm(scene: Scene) -> Iterator[None]:
    yield
    scene.command.terminate()
    yield
    scene.was_ended()


def ctrl_c_twice(scene: Scene) -> Iterator[None]:
    yield
    for pause_s in (scene.chance.uniform(0, 0.5), 0):
        os.killpg(scene.command.pid, signal.SIGINT)
        time.sleep(pause_s)
    yield
    scene.was_ended()


def memory_runs_out(scene: Scene) -> Iterator[None]:
    """A limit that the worker is over at once: the next page it asks for is refused."""
    yield
    resource.prlimit(scene.worker().pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    yield
    scene.was_ended()


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


def server_is_away_at_the_start(scene: Scene) -> Iterator[None]:
    with served(scene) as gate:
        gate.close()
        yield
        gate.open()
        yield
        yield
        yield


def server_is_away_in_the_middle(scene: Scene) -> Iterator[None]:
    with served(scene) as gate:
        yield
        gate.close()
        time.sleep(scene.chance.uniform(0.5, 2))
        gate.open()
        yield
        yield
        yield


def server_is_away_at_the_end(scene: Scene) -> Iterator[None]:
    with served(scene) as gate:
        yield
        gate.close()
        yield
        gate.open()
        yield
        yield


def server_is_away_for_good(scene: Scene) -> Iterator[None]:
    """Until, one day, somebody says `make publish`."""
    with served(scene) as gate:
        gate.close()
        yield
        yield
        yield
        gate.open()
        yield


def server_answers_errors(scene: Scene) -> Iterator[None]:
    with served(scene) as gate:
        yield
        gate.answers_errors()
        yield
        gate.open()
        yield
        yield


def database_is_locked(scene: Scene) -> Iterator[None]:
    yield
    threading.Thread(target=_lock, args=(scene.database, 30), daemon=True).start()
    yield
    yield


def clock_is_set_back(scene: Scene) -> Iterator[None]:
    source, shim = scene.root / "earlier.c", scene.root / "earlier.so"
    source.write_text(EARLIER.replace("SET_BACK", f'"{scene.root}/set_back"'))
    compiled = subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, source, "-ldl"], capture_output=True)
    if compiled.returncode:
        raise UnsuitedError("no C compiler")
    scene.environment["LD_PRELOAD"] = str(shim)
    yield
    (scene.root / "set_back").touch()
    yield
    yield


def the_same_is_started_twice(scene: Scene) -> Iterator[None]:
    """The second finds the first at work, and measures in a folder of its own."""
    yield
    second = scene.start()
    yield
    second.communicate(timeout=LIMIT_S)
    yield


def worker_hangs(scene: Scene) -> Iterator[None]:
    scene.asked["sweep.hung_after_s"] = HUNG_AFTER_S
    yield
    scene.worker().suspend()
    yield
    scene.was_ended()


def loader_hangs(scene: Scene) -> Iterator[None]:
    scene.asked |= {"sweep.hung_after_s": HUNG_AFTER_S, "workers": 1}
    yield
    for process in scene.project.until(scene.worker().children):  # none between two epochs
        process.suspend()
    yield


def node_drops_out(scene: Scene) -> Iterator[None]:
    """The only one of a cluster, so that the same command waits for it to be back, as what it left turned does."""
    if not slurm.is_available():
        raise UnsuitedError(slurm.REQUIREMENTS)
    (folder := scene.root / "slurm").mkdir()
    with slurm.running(folder, {"n0": ""}) as cluster:
        scene.environment["SLURM_CONF"] = cluster.environment["SLURM_CONF"]
        scene.asked |= {"hydra/launcher": "slurm", "hydra.launcher.poll_s": 0.5}
        yield
        cluster.stop_node("n0")
        yield
        cluster.start_node("n0")
        yield
        yield


FAULTS: dict[str, Fault] = {
    "SIGKILL of the worker": worker_is_killed,
    "SIGKILL of the steward": steward_is_killed,
    "SIGKILL of both": both_are_killed,
    "SIGTERM": sigterm,
    "Ctrl-C twice": ctrl_c_twice,
    "no memory": memory_runs_out,
    "record's disk full": record_has_no_room,
    "database's disk full": database_has_no_room,
    "record's folder read-only": record_may_not_be_written,
    "server down at the start": server_is_away_at_the_start,
    "server down in the middle": server_is_away_in_the_middle,
    "server down at the end": server_is_away_at_the_end,
    "server down for good": server_is_away_for_good,
    "server answers errors": server_answers_errors,
    "database locked for 30 s": database_is_locked,
    "clock set back an hour": clock_is_set_back,
    "the same command twice": the_same_is_started_twice,
    "worker hangs": worker_hangs,
    "data loader hangs": loader_hangs,
    "node of a cluster drops out": node_drops_out,
}


class Found(NamedTuple):
    """What is found after a fault, and the same command once more: all 0, and `wrong` empty."""

    lost_epochs: int
    """Measured by the first, and once more by the second, beyond the one that was in flight in each run."""
    doubled: int
    """Runs that MLflow shows more than once, or not as their records say."""
    unrestored: int
    left: int
    """Processes."""
    wrong: str
    """How the second command ended, where it did not end whole."""


def inject(fault: Fault, scene: Scene) -> Found:
    """Brings a fault about at the instant that is drawn, and looks at what the same command makes of it."""
    steps = fault(scene)
    try:
        next(steps)
        scene.command = scene.start()
        scene.wait()
        next(steps)
        scene.command.communicate(timeout=LIMIT_S)
        next(steps, None)
        before = measured(scene.project)
        again = scene.start()
        said, errors = again.communicate(timeout=LIMIT_S)
        next(steps, None)
        wrong = "" if again.returncode == 0 else f"exit code {again.returncode}: {(errors or said)[-300:]}"
        publish = scene.project.start("publish", **scene.environment)
        _, errors = publish.communicate(timeout=LIMIT_S)
        wrong += "" if publish.returncode == 0 else f" {errors[-300:]}"
        return Found(
            lost_epochs=sum(then.lost(Record(folder)) for folder, then in before.items()),
            doubled=shown_wrongly(scene),
            unrestored=int(scene.board.mode() != DEFAULT),
            left=len(left(scene.project)),
            wrong=wrong.strip(),
        )
    finally:
        for process in left(scene.project):
            process.kill()
        for _ in steps:
            pass
        for folder in ("multirun", "shown"):
            subprocess.run(["umount", "--lazy", scene.project.root / folder], capture_output=True)


class Measured(NamedTuple):
    """What a run's record held when the first command had ended."""

    record_id: str
    epochs: int
    was_completed: bool

    def lost(self, record: Record) -> int:
        """How many of its epochs were measured once more, less the one that was in flight."""
        run = record.run()
        same = run["record_id"] == self.record_id
        if self.was_completed:
            return 0 if same else self.epochs
        resumed = run.get("resumed", []) if same else []
        return max(0, self.epochs - (resumed[-1]["epoch"] if resumed else 0) - 1)


def measured(project: Project) -> dict[Path, Measured]:
    return {
        record.folder: Measured(record.run()["record_id"], len(record.windows()), record.is_completed())
        for record in project.records()
    }


def shown_wrongly(scene: Scene) -> int:
    """Count records that MLflow does not show exactly once in their state; replaced attempts are not to be shown."""
    query = (
        "select tags.value, runs.status from runs join tags using (run_uuid) "
        "where tags.key = 'epochmeter.record_id' and runs.lifecycle_stage = 'active'"
    )
    with closing(sqlite3.connect(scene.database)) as database:
        shown = sorted(database.execute(query).fetchall())
    records = [each for record in scene.project.records() for each in (record, *record.attempts())]
    current = [record for record in records if not is_superseded(record)]
    expected = sorted((record.run()["record_id"], SHOWN[status_of(record)]) for record in current)
    return len(set(shown) ^ set(expected)) + len(shown) - len(set(shown))


def left(project: Project) -> list[psutil.Process]:
    """Every process of a command in this project, or of what one has started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            ours = any(str(project.root) in word for word in process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                found.append(process)
    return found


class Gate:
    """Stands before a server: it lets through, refuses, or answers every request with an error."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._pass: Callable[[socket.socket], None] = self._through
        threading.Thread(target=self._serve, daemon=True).start()

    def open(self) -> None:
        self._pass = self._through

    def close(self) -> None:
        self._pass = lambda asking: None

    def answers_errors(self) -> None:
        self._pass = self._error

    def _serve(self) -> None:
        while True:
            asking, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(asking, self._pass), daemon=True).start()

    def _answer(self, asking: socket.socket, how: Callable[[socket.socket], None]) -> None:
        with asking, suppress(OSError):
            how(asking)

    def _through(self, asking: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as server:
            back = threading.Thread(target=_copy, args=(server, asking), daemon=True)
            back.start()
            _copy(asking, server)
            back.join()

    def _error(self, asking: socket.socket) -> None:
        asking.recv(65536)
        asking.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def served(scene: Scene) -> Iterator[Gate]:
    """A real MLflow server behind a gate, which the command publishes to."""
    folder = scene.root / "server"
    folder.mkdir()
    scene.database = Path(shutil.copy(scene.database, folder))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--backend-store-uri", f"sqlite:///{scene.database}", "--artifacts-destination", str(folder / "files")]
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port), *options]
    quiet: Mapping[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    own = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = subprocess.Popen(command, cwd=folder, env=own, start_new_session=True, **quiet)
    try:
        Project.until(lambda: _answers(port), LIMIT_S)
        gate = Gate(port)
        scene.asked |= {"tracking": "server", "tracking.uri": gate.address}
        yield gate
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def _lock(path: Path, seconds: float) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as database:
        database.execute("begin exclusive")
        time.sleep(seconds)
        database.execute("rollback")
