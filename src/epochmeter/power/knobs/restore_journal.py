"""The journal of original device settings, from which a setting is restored even after a run was killed.

An entry is a file `<state>/<hostname>/<knob>-<checksum of its devices>.json`; the host name separates machines that
share a home folder.
"""

import hashlib
import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from epochmeter.shared.atomic_files import fsync_folder, lock_folder, read_json, write_json
from epochmeter.shared.process_identity import Process, is_alive, this_process


class SavedSetting(NamedTuple):
    """A journal entry: an original setting, the applied one, and the process that changed it."""

    knob: str
    devices: list[str]
    root: str
    was: str  # the original setting
    ours: str | None  # the applied setting; None while it is being changed
    by_hand: str  # the shell command that restores it
    pid: int
    start_ticks: str | None  # start time of that process, which distinguishes it from a later one with the same pid
    boot_id: str
    when: str
    command: str
    pid_namespace: str | None = None
    """PID namespace of `pid`, as `pid_namespace` returns it: in another one, `pid` means another process."""


class RestoreJournal:
    """The journal of one user on one machine, in `state_dir` or else in the user's XDG state folder."""

    def __init__(self, state_dir: str | None, *, root: str, boot_id: str, command: str) -> None:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
        self.folder = (Path(state_dir) if state_dir else Path(home, "epochmeter")) / platform.node()
        self.root, self.boot_id, self.command = root, boot_id, command

    def note(self, knob: str, devices: Sequence[str], was: str, by_hand: str) -> SavedSetting:
        """Record an original setting before it is changed; RuntimeError if another process has changed it already."""
        me, when = this_process(), datetime.now(timezone.utc).isoformat(timespec="microseconds")
        by = (me.pid, me.start_ticks, self.boot_id, when, self.command, me.pid_namespace)
        entry = SavedSetting(knob, list(devices), self.root, was, None, by_hand, *by)
        if earlier := self._read(self._file(knob, devices)):
            raise RuntimeError(
                f"cannot set {knob}: pid {earlier.pid} ({earlier.command}) has changed it since {earlier.when}\n"
                f"hint: wait for that run; if it no longer exists, restore {earlier.was}: {self.by_hand(earlier)}"
            )
        return self.update(entry)

    def update(self, entry: SavedSetting) -> SavedSetting:
        """Write an entry durably."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self._file(entry.knob, entry.devices), entry._asdict())
            fsync_folder(self.folder)
        except OSError as error:
            raise RuntimeError(
                f"cannot write the journal of original device settings, so none is changed: {error}\n"
                "hint: name a writable folder: machine.state_dir="
            ) from error
        return entry

    def remove(self, entry: SavedSetting) -> None:
        """Delete an entry."""
        self._file(entry.knob, entry.devices).unlink(missing_ok=True)

    def by_hand(self, entry: SavedSetting) -> str:
        """Return the command to paste that restores a setting and deletes its entry."""
        return f"{entry.by_hand} && rm {shlex.quote(str(self._file(entry.knob, entry.devices)))}"

    def unrestored(self) -> list[SavedSetting]:
        """The entries of runs that ended without restoring a setting, the newest first; damaged ones are left out."""
        abandoned = (entry for entry in self._read_all()[0] if not self._is_in_use(entry))
        return sorted(abandoned, key=lambda entry: entry.when, reverse=True)

    def damaged(self) -> list[str]:
        """A message for each entry that cannot be read."""
        return self._read_all()[1]

    def _read_all(self) -> tuple[list[SavedSetting], list[str]]:
        """All entries, and a message for each one that cannot be read."""
        entries, messages = [], []
        for file in sorted(self.folder.glob("*.json")):
            try:
                entries.append(self._read(file))
            except RuntimeError as error:
                messages.append(str(error))
        return [entry for entry in entries if entry], messages

    def blocking(self, knob: str, devices: Sequence[str]) -> SavedSetting | None:
        """The entry of an ended run for this setting of any of these devices; RuntimeError if it cannot be read."""
        self._read(self._file(knob, devices))
        entries = (entry for entry in self.unrestored() if entry.knob == knob)
        return next((entry for entry in entries if not devices or set(devices) & set(entry.devices)), None)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the journal against other processes, so that two concurrent starts do not restore the same setting."""
        try:
            descriptor = lock_folder(self.folder)
        except OSError as error:
            raise RuntimeError(
                f"settings that an earlier run changed are not restored: cannot lock {self.folder}: {error.strerror}\n"
                f"hint: sudo chown -R $USER {self.folder}"
            ) from error
        try:
            yield
        finally:
            os.close(descriptor)

    def _is_in_use(self, entry: SavedSetting) -> bool:
        """Whether the process of an entry may still be running; this process holds none when it calls this."""
        if entry.boot_id != self.boot_id:
            return False
        process = Process(platform.node(), entry.pid, None, entry.start_ticks, entry.pid_namespace)
        return is_alive(process) and process != this_process()._replace(boot_id=None)

    def _file(self, knob: str, devices: Sequence[str]) -> Path:
        # Devices are hashed, since their names together may exceed the length of a file name.
        digest = hashlib.sha256(" ".join(devices).encode()).hexdigest()[:12]
        return self.folder / f"{knob}-{digest}.json"

    def _read(self, file: Path) -> SavedSetting | None:
        """Read an entry; None if another process has just deleted it."""
        try:
            return SavedSetting(**read_json(file))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise RuntimeError(
                f"cannot read {file}, the original value of a setting that an earlier run changed: {error}\n"
                f"hint: check the settings with `make doctor`, then delete the entry: rm {file}"
            ) from error
