"""What a knob was found at, kept on the disk for as long as it is turned: a run that is killed loses nothing.

The files are those of one user on one machine, `<state>/<hostname>/<knob>-<digest of its devices>.json`, since a home
may be shared by many.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.process_identity import began, numbers
from epochmeter.shared.atomic_files import read_json, sync, write_json


class Memo(NamedTuple):
    """What was there, what was set, by whom and when."""

    knob: str
    devices: list[str]
    root: str
    was: str
    ours: str | None  # None while it is being turned
    by_hand: str
    """The command by which a person puts it back."""
    pid: int
    began: str | None
    """When that process began, which tells it from a later one of the same number."""
    boot_id: str
    when: str
    command: str
    numbers: str | None = None
    """PID namespace of `pid`, as `process_identity.numbers` returns it: in another one, `pid` means another process."""


class Desk:
    """Where memos lie: in `state_dir`, or by default where a user's programs keep their state."""

    def __init__(self, state_dir: str | None, *, root: str, boot_id: str, command: str) -> None:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        self.folder = (Path(state_dir) if state_dir else Path(home, "epochmeter")) / platform.node()
        self.root, self.boot_id, self.command = root, boot_id, command

    def note(self, knob: str, devices: Sequence[str], was: str, by_hand: str) -> Memo:
        """Writes down what a knob stands at, before it is turned; RuntimeError where another run has turned it."""
        pid = os.getpid()
        when = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        by = (pid, began(pid), self.boot_id, when, self.command, numbers())
        memo = Memo(knob, list(devices), self.root, was, None, by_hand, *by)
        if other := self._read(self.file(memo)):
            raise RuntimeError(
                f"{knob} is held by pid {other.pid} ({other.command}) since {other.when}. Wait for it; if it is gone, "
                f"put {knob} back to {other.was} by hand ({other.by_hand}) and remove {self.file(memo)}."
            )
        return self.keep(memo)

    def keep(self, memo: Memo) -> Memo:
        """Writes a memo; it is on the disk when this returns."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.file(memo), memo._asdict())
            sync(self.folder)
        except OSError as error:
            raise RuntimeError(
                f"no knob is turned unless what was there is written down, and that failed: {error}. "
                "Name a folder that can be written: machine.state_dir="
            ) from error
        return memo

    def drop(self, memo: Memo) -> None:
        self.file(memo).unlink(missing_ok=True)

    def left(self) -> list[Memo]:
        """The entries of runs that ended without restoring a setting, the newest first; damaged ones are left out."""
        memos = []
        for file in self.folder.glob("*.json"):
            with suppress(RuntimeError):
                memos.append(self._read(file))
        held = (memo for memo in filter(None, memos) if not self._is_held(memo))
        return sorted(held, key=lambda memo: memo.when, reverse=True)

    def damaged(self) -> list[str]:
        """A message for each entry that cannot be read."""
        said = []
        for file in sorted(self.folder.glob("*.json")):
            try:
                self._read(file)
            except RuntimeError as error:
                said.append(str(error))
        return said

    def blocking(self, knob: str, devices: Sequence[str]) -> Memo | None:
        """The entry of an ended run for this setting of any of these devices; RuntimeError if it cannot be read."""
        self._read(self._file(knob, devices))
        shared = (memo for memo in self.left() if memo.knob == knob)
        return next((memo for memo in shared if not devices or set(devices) & set(memo.devices)), None)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No two processes are within at once: of two that start together, the second finds what the first left."""
        try:
            file = (self.folder / "lock").open("w")
        except OSError as error:
            raise RuntimeError(
                f"settings that an earlier run changed are not restored: cannot lock {self.folder}: {error.strerror}\n"
                f"hint: sudo chown -R $USER {self.folder}"
            ) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _is_held(self, memo: Memo) -> bool:
        """Whether another process that still lives, or may, holds the knob: of ours, none does when this is asked."""
        if memo.boot_id != self.boot_id:
            return False
        if memo.numbers not in (None, numbers()):
            return True
        return memo.began is not None and began(memo.pid) == memo.began and memo.pid != os.getpid()

    def file(self, memo: Memo) -> Path:
        """Where a memo lies: a digest stands for its devices, whose names together may be longer than a file's."""
        return self._file(memo.knob, memo.devices)

    def _file(self, knob: str, devices: Sequence[str]) -> Path:
        digest = hashlib.sha256(" ".join(devices).encode()).hexdigest()[:12]
        return self.folder / f"{knob}-{digest}.json"

    def _read(self, file: Path) -> Memo | None:
        """A memo; None where there is none any more, for another process drops its own when it likes."""
        try:
            return Memo(**read_json(file))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise RuntimeError(
                f"cannot read {file}, the original value of a setting that an earlier run changed: {error}\n"
                f"hint: check the settings with `make doctor`, then delete the entry: rm {file}"
            ) from error
