"""Replay of a recording: `machine.root=board.tar.gz` is this machine, until the process ends.

The files are unpacked into a temporary folder and played there; the clients of NVML, amdsmi and jtop are replaced.
"""

import atexit
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.installation import python_path
from epochmeter.machine import amd, jtop, nvml
from epochmeter.machine.recorded import archive
from epochmeter.machine.recorded.player import repeated_files
from epochmeter.machine.recorded.stand_ins import RecordedAmdSmi, RecordedJtop, RecordedNvml
from epochmeter.machine.recorded.table_types import is_number, is_text, mapping_of, optional_text
from epochmeter.machine.temporary_folders import create_folder
from epochmeter.shared.types import Document

MOST_LISTED = 3
MEMORY = "/dev/shm"
MIN_FREE_BYTES, MAX_RATIO = 1 << 24, 20
"""Room that a folder in memory needs: so much, and so many times the size of the archive."""


class Recording(NamedTuple):
    """A recording that is replayed.

    Attributes:
        name: The value of `machine.root`.
        folder: The root of its files.
        manifest: What the archive says about itself.
    """

    name: str
    folder: Path
    manifest: Document

    @property
    def origin(self) -> str:
        """What was recorded, when, and by which version."""
        kind = self.manifest.get("architecture") or "unknown"
        duration_s = float(self.manifest["duration_s"])
        by = f"on {self.manifest.get('date')} by epochmeter {self.manifest.get('epochmeter')}"
        return f"{kind} machine, recorded {by}; {duration_s:.0f} s, repeated"

    @property
    def other_architecture(self) -> str:
        """The architecture of the recorded machine, if it is known and not that of this one."""
        recorded = str(self.manifest.get("architecture") or "")
        return "" if recorded in ("", platform.machine()) else recorded

    @property
    def missing(self) -> str:
        """Which files could not be read when it was recorded, and why; empty if all could."""
        missing: Mapping[str, str] = self.manifest.get("missing") or {}
        shown = [f"/{path} ({why})" for path, why in islice(missing.items(), MOST_LISTED)]
        more = len(missing) - len(shown)
        return ", ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


class Replay(NamedTuple):
    """A recording, and the clients of its drivers."""

    recording: Recording
    nvml: RecordedNvml
    amdsmi: RecordedAmdSmi
    jtop: RecordedJtop


def _memory(path: Path) -> str | None:
    """Return a folder in memory for the files of an archive; None if there is none, or `TMPDIR` names another one.

    On a disk, replacing a file may take milliseconds, and the player would be late.
    """
    with suppress(OSError):
        has_room = shutil.disk_usage(MEMORY).free > MIN_FREE_BYTES + MAX_RATIO * path.stat().st_size
        if "TMPDIR" not in os.environ and has_room and os.access(MEMORY, os.W_OK | os.X_OK):
            return MEMORY
    return None


class Clock:
    """The time since the begin of a replay."""

    def __init__(self) -> None:
        self.begun_s = time.monotonic()

    def begin(self) -> None:
        self.begun_s = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self.begun_s


_in_use: Replay | None = None


def use_drivers(name: str | None) -> None:
    """Use the drivers of a recording from now on; None: those of this machine."""
    global _in_use
    chosen = replay(name) if name else None
    if chosen is not _in_use:
        nvml.replace_client(chosen.nvml if chosen else None)
        amd.replace_client(chosen.amdsmi if chosen else None)
        jtop.replace_client(chosen.jtop if chosen else None)
        _in_use = chosen


def replay(name: str) -> Replay:
    """Return the replay of an archive, which begins at the first call; InputError if it cannot be replayed."""
    return _replay(name, os.getpid())


@cache
def _replay(name: str, pid: int) -> Replay:
    folder, lock = create_folder(_memory(Path(name)))
    atexit.register(_remove, folder, lock, pid)
    root = folder / archive.ROOT
    root.mkdir()
    documents = archive.unpack(Path(name), root)
    clock = Clock()
    replayed, files = read_documents(name, root, documents, clock)
    duration_s = float(replayed.recording.manifest["duration_s"])
    player = _start_player(root, files, duration_s, pid) if files else None
    clock.begin()
    if player and not _send(player, clock.begun_s):
        raise archive.refusal(Path(name), "its files cannot be played")
    return replayed


def read_documents(name: str, root: Path, documents: Mapping[str, bytes], clock: Clock) -> tuple[Replay, Document]:
    """Return the replay of an archive that is unpacked below `root`, and the values of its files.

    Raises:
        InputError: One of its documents is damaged, or has a value of another type.
    """
    manifest, series, nvml_table, amd_table, jtop_table = (
        archive.read_document(Path(name), documents, document)
        for document in (archive.MANIFEST, archive.SERIES, archive.NVML, archive.AMDSMI, archive.JTOP)
    )
    try:
        duration_s, files = manifest["duration_s"], series.get("files", {})
        if not is_number(duration_s) or not duration_s > 0:
            raise ValueError("it has no duration")
        repeated_files(files, root, duration_s)
        recording = Recording(name, root, manifest)
        for key in ("architecture", "date", "epochmeter"):
            optional_text(manifest.get(key), key)
        if not mapping_of(is_text, is_text)(manifest.get("missing") or {}):
            raise ValueError("missing has a value of another type")
        nvml_client = RecordedNvml(nvml_table, duration_s, clock)
        amd_client = RecordedAmdSmi(amd_table, duration_s, clock)
        jtop_client = RecordedJtop(jtop_table, duration_s, clock)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise archive.refusal(Path(name), f"it is damaged ({str(error) or type(error).__name__})") from error
    return Replay(recording, nvml_client, amd_client, jtop_client), files


def _start_player(root: Path, files: Document, duration_s: float, pid: int) -> "subprocess.Popen[str]":
    """Start the process that plays the files, and wait until it can begin."""
    player = subprocess.Popen(
        [sys.executable, "-m", "epochmeter.machine.recorded.player"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": python_path()},
        start_new_session=True,  # it gets no Ctrl-C
        text=True,
    )
    atexit.register(_stop, player, pid)
    _send(player, json.dumps({"root": str(root), "files": files, "duration_s": duration_s}))
    if player.stdout:
        player.stdout.readline()
    return player


def _send(player: "subprocess.Popen[str]", line: object) -> bool:
    """Send a line to the player; False if it has ended."""
    try:
        print(line, file=player.stdin, flush=True)
    except BrokenPipeError:
        return False
    return True


def _stop(player: "subprocess.Popen[str]", pid: int) -> None:
    """End the player, unless this is a child that was forked."""
    if os.getpid() == pid:
        with suppress(BrokenPipeError):
            player.communicate()


def _remove(folder: Path, lock: int, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
