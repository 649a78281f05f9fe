"""The load and the programs with known times of this machine, as processes of the Python that trains."""

import json
import os
import re
import select
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from epochmeter.config.installation import python_path
from epochmeter.machine.gpu_counters import GpuCounters
from epochmeter.results.roofline import datasheet_flop_per_s
from epochmeter.shared.problem import MachineError, machine_error
from epochmeter.shared.record import Record
from epochmeter.validation.bench import Pair, Peaks
from epochmeter.validation.switched_load import Pulse, Switch, Work

LIMIT_S = 300.0  # longest wait for a program
LOAD, SCRIPT = "epochmeter.worker.known_load", "epochmeter.worker.known_script"
WORKERS = {"0 workers": 0, "1 worker": 1}
PARTS = {"stall": "data_stall_s", "fetch": "loader_read_s", "prep": "loader_preprocess_s"}
DEVICE_PARTS = {"copy": "copy_s", "compute": "compute_s"}
MIXES, MIX_S = ("products", "copies", "idle"), 2.0
PEAKS = 4  # measurements, of which the first one warms up
TORCH_HINT = "`python src/doctor.py` lists why training is not possible"
QUIET = ("tracking=none", "profiler=none", "meter=none", "roofline.peaks=none", "sweep.again=true")


def environment() -> dict[str, str]:
    """Return the variables of a process that imports this package."""
    return {**os.environ, "PYTHONPATH": python_path()}


class LoadProcess:
    """A process that loads the device as requested; MachineError once it has ended, or if it gives no answer."""

    def __init__(self, python: str, device: str) -> None:
        """Start the load; MachineError if it cannot run."""
        self.device = device
        self._limit_s = LIMIT_S
        self._failure: MachineError | None = None
        command = [python, "-m", LOAD, device]
        self._process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def switch(self, switches: Sequence[Switch]) -> None:
        """Begin to switch the load on and off."""
        self._request({"switch": [*switches]}, sum(map(sum, switches)))

    def pulses(self) -> list[Pulse]:
        """Wait for the end of the last pause, and return the actual pulses."""
        return [(begun_s, ended_s) for begun_s, ended_s in self._answer()["pulses"]]

    def work(self, seconds: float) -> None:
        """Begin work of a fixed number of operations."""
        self._request({"work": seconds}, 2 * seconds)  # the first time, it is also counted

    def done(self) -> Work:
        """Wait for the end of the work."""
        return Work(**self._answer())

    def peaks(self, times: int) -> list[float]:
        """Return measured peaks, in FLOP/s."""
        self._request({"peaks": times})
        return [float(peak) for peak in self._answer()["flop_per_s"]]

    @contextmanager
    def kernels(self, mix: str, seconds: float) -> Iterator[None]:
        """Run kernels of a mix meanwhile."""
        self._request({"kernels": mix, "s": seconds}, seconds)
        yield
        self._answer()

    def _request(self, request: Mapping[str, Any], seconds: float = 0.0) -> None:
        """Send a request, which takes about these seconds."""
        if self._failure:
            raise self._failure
        self._limit_s = LIMIT_S + seconds
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._error() from error

    def _answer(self) -> dict[str, Any]:
        """Wait for the answer to the last request, which is one line."""
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], self._limit_s)[0]:  # as of a driver that hangs
            raise self._error(f"it gave no answer within {self._limit_s:g} s")
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
        if not answer or "error" in answer:
            raise self._error(str(answer.get("error", "")))
        return answer

    def _error(self, message: str = "") -> MachineError:
        """End the process, and return the error of this and all further requests."""
        self._process.kill()
        _, errors = self._process.communicate()
        lines = errors.strip().splitlines()
        why = message or (lines[-1] if lines else f"it ended with {self._process.returncode}")
        self._failure = machine_error(f"the known load cannot run: {why}", TORCH_HINT)
        return self._failure


class KnownPrograms:
    """Programs with known times on this machine; `keys` are those of its runs, such as the device and the locks."""

    def __init__(
        self, python: str, load: LoadProcess, folder: Path, *, device: str, keys: Sequence[str], counters: Sequence[str]
    ) -> None:
        self._python, self._load, self._folder = python, load, folder
        self._device, self._keys, self._counters = device, keys, counters

    def waits(self) -> Mapping[str, Mapping[str, Pair]]:
        """Measure scripts with known waits."""
        found: dict[str, dict[str, Pair]] = {part: {} for part in PARTS}
        for case, workers in WORKERS.items():
            record, output = self._measured(f"waits{workers}", "waits", str(workers))
            for part, pair in pairs(record, known_times(output), PARTS).items():
                found[part][case] = pair
        return found

    def device_times(self) -> Mapping[str, Pair]:
        """Time a script's copies and compute by its own events, bare, then measure it."""
        bare = self._finished([self._python, "-m", SCRIPT, "device"])
        record, _ = self._measured("device", "device")
        return pairs(record, known_times(bare.stdout), DEVICE_PARTS)

    def overhead(self, count: int) -> Sequence[float]:
        """Let a measured script and a bare one train their epochs in turns."""
        script = ("turns", self._load.device)
        commands = [self._measuring("turns", *script), [self._python, "-m", SCRIPT, *script]]
        ratios = []
        with ExitStack() as stack:
            measured, bare = (stack.enter_context(Turns(command, self._folder)) for command in commands)
            for number in range(count + 1):
                order = (measured, bare) if number % 2 else (bare, measured)
                took_s = {turns: turns.epoch_s() for turns in order}
                ratios.append(took_s[measured] / took_s[bare])
        return ratios[1:]  # the first epoch warms up

    def peaks(self) -> Peaks:
        """Measure the peak several times, as a run does it."""
        precision = "bf16" if self._counters else "fp32"
        datasheet = datasheet_flop_per_s({"gpu": {"name": self._device}, "ranks": 1}, precision)
        return Peaks(self._load.peaks(PEAKS)[1:], datasheet, self._device)

    def kernels(self) -> Mapping[str, Mapping[str, float]]:
        """Read the counters while kernels of each mix run."""
        found = {}
        with closing(GpuCounters(self._counters)) as counters:
            for mix in MIXES:
                with self._load.kernels(mix, MIX_S):
                    time.sleep(MIX_S / 4)
                    counters.mark()
                    begun_ns = time.monotonic_ns()
                    time.sleep(MIX_S / 2)
                    ended_ns = time.monotonic_ns()
                    counters.mark()
                if counters.reason:
                    raise machine_error(counters.reason, counters.remedy or "")
                found[mix] = counters.window(begun_ns, ended_ns)
        return found

    def _measuring(self, name: str, *arguments: str) -> list[str]:
        keys = [*QUIET, *self._keys, f"device.python={self._python}", f"hydra.run.dir={self._folder}/{name}/0"]
        return [sys.executable, "-m", "epochmeter", "run", *keys, "--", "-m", SCRIPT, *arguments]

    def _measured(self, name: str, *arguments: str) -> tuple[Record, str]:
        done = self._finished(self._measuring(name, *arguments))
        return Record(self._folder / name / "0"), done.stdout

    def _finished(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        try:
            done = subprocess.run(
                command, env=environment(), cwd=self._folder, capture_output=True, text=True, timeout=LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise machine_error(f"a known program cannot run: {error}", TORCH_HINT) from error
        if done.returncode:
            raise failed(done.stderr, done.returncode)
        return done


class Turns:
    """A process that trains an epoch when it gets its turn."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._folder, self._log = folder, folder / f"turns{id(self)}.log"
        self._socket = folder / f"{id(self)}"
        self._command = [*command, str(self._socket)]

    def __enter__(self) -> "Turns":
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("w") as log:
            listener.bind(str(self._socket))
            listener.listen(1)
            listener.settimeout(LIMIT_S)
            self._process = subprocess.Popen(
                self._command, env=environment(), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            self._connection = self._accept(listener)
        self._connection.settimeout(LIMIT_S)
        return self

    def _accept(self, listener: socket.socket) -> socket.socket:
        listener.settimeout(0.5)
        for _ in range(int(2 * LIMIT_S)):
            try:
                return listener.accept()[0]
            except TimeoutError:
                if self._process.poll() is not None:
                    break
        self._process.kill()
        raise failed(self._log.read_text(), self._process.wait())

    def epoch_s(self) -> float:
        """Train an epoch, and return its duration."""
        self._connection.sendall(b".")
        answer = self._connection.recv(8)
        if len(answer) < 8:
            raise failed(self._log.read_text(), self._process.wait(LIMIT_S))
        return float(struct.unpack("d", answer)[0])

    def __exit__(self, *end: object) -> None:
        self._connection.close()
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def failed(errors: str, code: int) -> MachineError:
    """Return the error of a program that ended too early, with its last line."""
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    message = next(
        (line for line in reversed(lines) if re.match(r"error: |\w*Error: ", line)), lines[-1] if lines else ""
    )
    return machine_error(f"a known program ended with {code}: {message}", TORCH_HINT)


def known_times(output: str) -> list[dict[str, float]]:
    """Return what a script printed for each of its epochs but the first one."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")][1:]


def pairs(record: Record, known: Sequence[Mapping[str, float]], parts: Mapping[str, str]) -> dict[str, Pair]:
    """Return the medians of known and measured seconds per step, by part; MachineError if a part was not measured."""
    epochs = [window["metrics"] for window in record.windows() if window["window"] == "epoch"][1:]
    found = {}
    for part, name in parts.items():
        if not epochs or any(f"epoch/{name}" not in metrics for metrics in epochs):
            raise machine_error(f"the run has no `{name}`", "")
        measured_s = statistics.median(metrics[f"epoch/{name}"] / metrics["epoch/steps"] for metrics in epochs)
        found[part] = Pair(statistics.median(times[part] for times in known), measured_s)
    return found
