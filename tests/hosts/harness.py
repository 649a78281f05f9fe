"""Hosts: small training scripts that count for themselves, run bare and measured.

A host in `scripts/` writes its own windows, by its count and clock, and a hash of its weights (`scripts/truth.py`).
Measuring must change neither its output, exit code nor weights, and the record must agree with its own count.

    PYTHONPATH=src:tests python -m hosts.harness NAME...            print where event logs of hosts are wrong
    PYTHONPATH=src:tests python -m hosts.harness --record NAME...   keep their event logs in `logs/`
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from epochmeter.segmentation.logs import FactsFile, ThreadLog
from epochmeter.segmentation.phase_estimate import MAX_HALF_WIDTH
from epochmeter.segmentation.phases import FEW_TIMED
from epochmeter.segmentation.process import ProcessWindows
from epochmeter.segmentation.script import ScriptWindows
from epochmeter.segmentation.windows import Window
from epochmeter.shared.events import Event
from epochmeter.shared.record import Record

FOLDER = Path(__file__).resolve().parent
SCRIPTS, LOGS = FOLDER / "scripts", FOLDER / "logs"
MAX_LOG_BYTES = 100_000
ROOT = FOLDER.parents[1]
PACKAGES = ROOT / ".hosts"  # `make test-hosts` installs them
LIMIT_S = 300
DEFAULT_STEPS = 500  # of a window, by conf
STEPS_PER_WINDOW, LOADER = "measure.steps_per_window=", "measure.loader="
TOLERANCE = 0.02
STEP_TOLERANCE_S = 0.002
PHASE_TOLERANCE_S = 0.0005  # per step
COMPARED = ("e2e_s", "data_stall_s", "steps", "samples")
OF_LOADERS = ("loader_read_s",)
"""What is compared as well if a script knows it."""
ALWAYS = ("e2e_s",)
"""What the record has of an evaluation."""


@dataclass(frozen=True)
class Host:
    """A host and how it is started.

    Attributes:
        name: Name of its script, without `.py`, unless `command` is given.
        arguments: Arguments of the script.
        command: Another command than the script; `{python}` and `{scripts}` are replaced, as in the next.
        launcher: Command that starts the script.
        needs: Modules without which it is skipped.
        keys: Keys of `measure.py`.
        environment: Further environment variables.
        is_quick: Whether it also belongs to the system tests.
        failure: Part of the failure in the record of a host that is not measured, or fails by itself.
        is_measured: Whether windows are recorded.
    """

    name: str
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    is_quick: bool = False
    failure: str = ""
    is_measured: bool = True

    @property
    def id(self) -> str:
        return "-".join((self.name, *self.arguments))

    @property
    def steps_per_window(self) -> int:
        """Steps of an epoch without passes of a known length."""
        return int(self.value(STEPS_PER_WINDOW) or DEFAULT_STEPS)

    def value(self, key: str) -> str | None:
        """Return the value of a key, which ends with `=`; None if it is not given."""
        return next((given[len(key) :] for given in self.keys if given.startswith(key)), None)

    @property
    def missing(self) -> list[str]:
        """The needed modules that are not installed."""
        return [module for module in self.needs if not (PACKAGES / module).exists() and find_spec(module) is None]

    def variables(self) -> dict[str, str]:
        """Return its environment variables."""
        packages = {"PYTHONPATH": str(PACKAGES)} if self.needs and PACKAGES.exists() else {}
        return {**packages, **{name: text.format(scripts=str(SCRIPTS)) for name, text in self.environment.items()}}

    def words(self) -> list[str]:
        """Return the command, without the interpreter of a script."""
        words = self.command or (*self.launcher, str(SCRIPTS / f"{self.name}.py"), *self.arguments)
        return [word.format(python=sys.executable, scripts=str(SCRIPTS)) for word in words]


@dataclass(frozen=True)
class Outcome:
    """What a host left: its output, its exit code as a shell has it, and its own truth."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    truth: Mapping[str, Any]
    of_command: str = ""  # stderr of measure.py, or of a launcher


def run(command: Sequence[str], host: Host, folder: Path, **environment: str) -> Outcome:
    """Run a command in a new folder."""
    folder.mkdir(parents=True)
    given = {**os.environ, **host.variables()}
    if "PYTHONPATH" in environment and "PYTHONPATH" in given:
        environment["PYTHONPATH"] += os.pathsep + given["PYTHONPATH"]
    own = {
        "HOST_TRUTH": str(folder / "truth.json"), "HOST_ERRORS": str(folder / "stderr"), "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0", "GLOO_SOCKET_IFNAME": "lo", "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "80",
    }  # fmt: skip
    work = folder / "work"
    work.mkdir()
    done = subprocess.run(
        command, cwd=work, env={**given, **own, **environment}, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    errors, truth = folder / "stderr", folder / "truth.json"
    return Outcome(
        done.stdout,
        errors.read_bytes() if errors.exists() else b"",
        128 - done.returncode if done.returncode < 0 else done.returncode,
        json.loads(truth.read_text()) if truth.exists() else {},
        done.stderr.decode(),
    )


def starts_python(host: Host) -> list[str]:
    """Return the interpreter that `measure.py` adds to a command."""
    words = host.words()
    return [sys.executable] if words[0] == "-m" or words[0].endswith(".py") else []


def run_bare(host: Host, folder: Path) -> Outcome:
    """Run a host without measuring it."""
    return run([*starts_python(host), *host.words()], host, folder)


def run_measured(host: Host, folder: Path, sources: Path) -> tuple[Outcome, Record]:
    """Run a host by `measure.py` of a copy of the sources; return its record too."""
    keys = [f"machine.lock_dir={folder}/locks", "tracking=none", f"hydra.run.dir={folder}/run/0", *host.keys]
    keys += [f"device.python={sys.executable}"] if starts_python(host) else []
    command = [sys.executable, str(sources / "src/measure.py"), *keys, "--", *host.words()]
    return run(command, host, folder), Record(folder / "run/0")


@contextmanager
def silent_controller() -> Iterator[str]:
    """Listen as a controller that reads all messages and answers none; yields the path of its socket."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/link")
        listener.listen()

        def drain(connection: socket.socket) -> None:
            with connection:
                while connection.recv(1 << 16):
                    pass

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=drain, args=[connection], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"{folder}/link"
        listener.shutdown(socket.SHUT_RDWR)


def run_logged(host: Host, folder: Path) -> Outcome:
    """Run a host with the agent, but without a controller; its events are in the folder `logs`."""
    (logs := folder / "logs").mkdir(parents=True)
    with silent_controller() as link:
        arguments = {"socket": link, "logs": str(logs), "folder": str(folder), "loader": host.value(LOADER)}
        agent = json.dumps(arguments)
        path = {"PYTHONPATH": str(ROOT / "src/epochmeter/agent/path"), "EPOCHMETER_AGENT": agent}
        return run([*starts_python(host), *host.words()], host, folder / "logged", **path)


def segmented(host: Host, logs: Path) -> ScriptWindows:
    """Return the windows that the events of a host give."""
    windows = ScriptWindows(logs, host.steps_per_window)
    windows.read(is_final=True)
    return windows


def record_log(host: Host, folder: Path, truth: Mapping[str, Any]) -> None:
    """Keep the events of a host with a single process, and its own count, as a file of JSON lines.

    Raises:
        ValueError: The file would be too large to keep.
    """
    (path,) = folder.glob("*.jsonl")
    lines: list[dict[str, Any]] = [{"truth": truth}, *({"facts": anonymous(facts)} for facts in FactsFile(path).read())]
    for first in sorted(folder.glob(f"{path.stem}-*.0")):
        events = [[*event] for event in ThreadLog(first.with_suffix("")).read(is_at_rest=True)]
        lines.append({"thread": int(first.stem.rpartition("-")[2]), "events": events})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if len(text) > MAX_LOG_BYTES:
        raise ValueError(f"the log of {host.id} has {len(text)} bytes")
    LOGS.mkdir(exist_ok=True)
    (LOGS / f"{host.id}.jsonl").write_text(text)


def anonymous(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts without those that name this machine."""
    return {name: value for name, value in facts.items() if name not in ("host", "identity")}


def replayed(host: Host, path: Path) -> tuple[Mapping[str, Any], ProcessWindows]:
    """Return the own count of a host whose log was kept, and the windows that its events give."""
    windows, truth, events = ProcessWindows(host.steps_per_window), {}, {}
    for line in map(json.loads, path.read_text().splitlines()):
        match line:
            case {"truth": truth}:
                pass
            case {"facts": facts}:
                windows.add_facts(facts)
            case {"thread": thread, "events": of_thread}:
                events[thread] = [Event(*event) for event in of_thread]
    windows.add(events, is_final=True)
    return truth, windows


def mismatches(host: Host, truth: Mapping[str, Any], windows: Sequence[Mapping[str, Any]], notes: str) -> list[str]:
    """Return where the windows of a record differ from a host's own count.

    Args:
        host: The host.
        truth: What the host has written.
        windows: Lines of the record: `window`, `metrics`, `partial`, and whatever states reasons.
        notes: The notes of the record.
    """
    own = truth.get("windows", []) if host.is_measured else []
    kinds, expected = ([each["window"] for each in of] for of in (windows, own))
    if kinds != expected:
        return [f"windows {kinds}, by the script's own count {expected}"]
    found = []
    for number, (mine, line) in enumerate(zip(own, windows, strict=True)):
        metrics = {name.partition("/")[2]: value for name, value in line["metrics"].items()}
        if bool(line.get("partial")) != mine["partial"]:
            found.append(f"window {number}: partial is {line.get('partial')}, not {mine['partial']}")
        known = [key for key in OF_LOADERS if key in mine]
        for key in [*COMPARED, *known] if line["window"] == "epoch" else ALWAYS:
            if key in mine["unknown"]:
                reason = mine["unknown"][key]
                if key in metrics:
                    found.append(f"window {number}: {key} is {metrics[key]}, but cannot be known")
                elif reason not in json.dumps(line) + notes:
                    found.append(f"window {number}: {key} is absent without the reason `{reason}`")
            elif key not in metrics:
                found.append(f"window {number}: {key} is absent, and {mine[key]} by the script's own count")
            elif abs(metrics[key] - mine[key]) > allowed(key, mine):
                found.append(f"window {number}: {key} is {metrics[key]}, and {mine[key]} by the script's own count")
        found += [f"window {number}: {text}" for text in wrong_phases(mine, metrics, json.dumps(line) + notes)]
    if truth.get("note", "") not in notes:
        found.append(f"no note has `{truth['note']}`: {notes}")
    return found


def wrong_phases(mine: Mapping[str, Any], metrics: Mapping[str, float], reasons: str) -> list[str]:
    """Return where the phases of a window differ from the host's own times, which older logs lack.

    Those of short steps are estimated, or absent if too few steps were timed.
    """
    phases, found = mine.get("phases", {}), []
    if phases.keys().isdisjoint(metrics) and FEW_TIMED.partition("{")[0] in reasons:
        return []
    estimated_s = MAX_HALF_WIDTH * metrics["compute_s"] if "timed_steps" in metrics else 0.0
    for phase, own_s in phases.items():
        allowed_s = max(TOLERANCE * own_s, PHASE_TOLERANCE_S * mine["steps"]) + mine["delay_s"] + estimated_s
        if abs(metrics.get(phase, 0.0) - own_s) > allowed_s:
            found.append(f"{phase} is {metrics.get(phase)}, and {own_s} by the script's own count")
    return found


def allowed(key: str, mine: Mapping[str, Any]) -> float:
    """Return by how much a metric may differ: times by 2 % or 2 ms per step, and by load; counts not at all."""
    if not key.endswith("_s"):
        return 0
    by_load_s = mine.get("delay_s", 0.0)  # older logs lack it
    return max(TOLERANCE * mine[key], STEP_TOLERANCE_S * max(1, mine["steps"])) + by_load_s


def as_line(window: Window) -> dict[str, Any]:
    """Return a window in the form of a line of the record."""
    metrics = {f"{window.name}/{part}": value for part, value in window.parts.items()}
    if window.name != "epoch":
        metrics = {name: value for name, value in metrics.items() if name.endswith("/e2e_s")}
    return {
        "window": window.name, "metrics": metrics, "partial": window.is_partial, "rule": window.rule,
        "reason": window.reason,
    }  # fmt: skip


def main(names: Sequence[str]) -> int:
    from hosts.declared import HOSTS

    failed, records = 0, names[:1] == ["--record"]
    for host in HOSTS:
        if names and host.id not in names and host.name not in names:
            continue
        if host.missing:
            print(f"{host.id}: skipped, no module {', '.join(host.missing)}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            bare = run_bare(host, Path(folder, "bare"))
            outcome = run_logged(host, Path(folder, "agent"))
            found = segmented(host, Path(folder, "agent/logs"))
            lines = [as_line(measured.window) for measured in found.take(is_final=True)]
            wrong = differences(bare, outcome)
            wrong += mismatches(host, outcome.truth, lines, " ".join(found.notes))
            failed += bool(wrong)
            if records and not wrong:
                record_log(host, Path(folder, "agent/logs"), outcome.truth)
            print(f"{host.id}: {'FAILED' if wrong else 'ok'} (exit code {bare.exit_code})", flush=True)
            for line in wrong:
                print(f"    {line}")
            if wrong:
                for line in lines:
                    print(f"    {line}")
                print(f"    notes {found.notes}, own {outcome.truth.get('windows')}", flush=True)
                print(f"    stderr {outcome.stderr.decode()[-1500:]} {outcome.of_command[-1500:]}")
    return failed


def differences(bare: Outcome, measured: Outcome) -> list[str]:
    """Return what measuring has changed in a host's output, exit code or weights."""
    pairs = {
        "stdout": (bare.stdout, measured.stdout),
        "stderr": (bare.stderr, measured.stderr),
        "exit code": (bare.exit_code, measured.exit_code),
        "weights": (bare.truth.get("weights"), measured.truth.get("weights")),
        "values": (bare.truth.get("values"), measured.truth.get("values")),
    }
    return [f"{name}: bare {own!r}, measured {other!r}" for name, (own, other) in pairs.items() if own != other]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
