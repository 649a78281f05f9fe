"""Kill `validate.py settings=true` while it changes settings: nothing may stay changed after the next start.

The machine is simulated: files below a folder, and the program that sets its power mode. `validate` changes the mode,
restores it, and lets another process change it and be killed. The next `validate` restores what a kill has left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from common.output import ARGUMENTS, print_table, sized
from controls import Board

from epochmeter.config.installation import ROOT

CHANGES = "setting applied"  # of the line that it prints before it changes settings
CHANGED_S = 0.012  # within which a setting is restored
KILLS, MODES, LIMIT_S = int(ARGUMENTS[0]) if ARGUMENTS else sized(40, 2), "nx", 300.0


class Outcome(NamedTuple):
    """What a kill left, before and after the next start."""

    after_s: float
    was_changed: bool
    is_changed: bool
    entries: int
    processes: int
    is_complete: bool

    @property
    def is_right(self) -> bool:
        return not (self.is_changed or self.entries or self.processes) and self.is_complete


def command(folder: Path, board: Board, *keys: str) -> list[str]:
    """Return the command that validates the simulated machine."""
    own = [f"machine.root={board.root}", f"machine.state_dir={folder}/state", f"machine.lock_dir={folder}/locks"]
    return [sys.executable, str(ROOT / "src/validate.py"), "device=cpu", "meter=none", *own, f"out={folder}/out", *keys]


def validate(
    folder: Path, board: Board, environment: dict[str, str], kill_after_s: float | None, *, once_changed: bool = False
) -> float:
    """Run it, or kill it some seconds after it begins to change settings, or has changed one; return how long it took.

    A setting is changed for some tens of milliseconds only, so few kills at any moment would find it changed.
    """
    original = board.mode()
    with subprocess.Popen(
        command(folder, board, "settings=true"),
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr
        for line in process.stderr:
            if CHANGES in line:
                break
        begun = time.monotonic()
        while once_changed and board.mode() == original and process.poll() is None:
            time.sleep(0.001)
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            os.kill(process.pid, signal.SIGKILL)
        process.stderr.read()
        process.wait(LIMIT_S)
        return time.monotonic() - begun


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that name the folder."""
    return [
        process for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid() and any(str(folder) in word for word in process.info["cmdline"] or [])
    ]  # fmt: skip


def wait_for_end(folder: Path) -> int:
    """Wait until the processes of a killed command have ended with it; return how many have not."""
    for _ in range(40):
        if not processes_of(folder):
            return 0
        time.sleep(0.05)
    return len(processes_of(folder))


def killed(folder: Path, longest_s: float, chance: random.Random, *, once_changed: bool) -> Outcome:
    """Kill the command at a random moment, start it again, and return what is left."""
    board = Board(folder / "board").with_modes(MODES)
    environment = {**os.environ, "PATH": board.on_path(), "AS_ROOT": "1"}
    original = board.mode()
    after_s = chance.uniform(0, CHANGED_S if once_changed else longest_s)
    validate(folder, board, environment, after_s, once_changed=once_changed)
    processes, was_changed = wait_for_end(folder), board.mode() != original
    validate(folder, board, environment, None)
    document = json.loads((folder / "out/validation.json").read_text())
    states = {line["check"]: line["state"] for line in document["lines"] if line["check"].startswith("settings")}
    journal = [path for path in (folder / "state").rglob("*.json") if path.parent.name != "validations"]
    is_complete = list(states.values()) == ["passed"] * 3
    return Outcome(after_s, was_changed, board.mode() != original, len(journal), processes, is_complete)


def main() -> int:
    chance, outcomes = random.Random(0), []
    with tempfile.TemporaryDirectory() as name:
        board = Board(Path(name) / "board").with_modes(MODES)
        environment = {**os.environ, "PATH": board.on_path(), "AS_ROOT": "1"}
        longest_s = validate(Path(name), board, environment, None)
    for number in range(KILLS):
        with tempfile.TemporaryDirectory() as name:
            outcomes.append(killed(Path(name), longest_s, chance, once_changed=number % 2 == 0))
        print(number, outcomes[-1], file=sys.stderr)
    row = [
        str(len(outcomes)), f"{longest_s:.1f}", str(sum(each.was_changed for each in outcomes)),
        str(sum(each.is_changed for each in outcomes)), str(sum(bool(each.entries) for each in outcomes)),
        str(sum(bool(each.processes) for each in outcomes)), str(sum(each.is_complete for each in outcomes)),
    ]  # fmt: skip
    columns = ("kills", "within s", "changed by the kill", "changed after the next start", "left in the journal",
               "processes left", "completed by the next start")  # fmt: skip
    print_table("Kills of `validate settings=true` while it changes settings, simulated board", columns, [row])
    return 0 if all(each.is_right for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
