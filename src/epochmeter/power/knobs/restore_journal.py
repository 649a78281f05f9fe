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
from epochmeter.shared.process_identity import is_alive, recorded_process, this_process


class SavedSetting(NamedTuple):
    """A journal entry: a setting, and from `host` on the identity of the process that changed it."""

    knob: str
    devices: list[str]
    root: str
    original: str
    applied: str | None  # None while it is being changed
    by_hand: str  # the shell command that restores the original
    when: str
    command: str
    host: str
    pid: int
    boot_id: str | None
    start_ticks: str | None
    pid_namespace: str | None


class RestoreJournal:
    """The journal of one user on one machine, in `state_dir` or else in the user's XDG state folder."""

    def __init__(self, state_dir: str | None, *, root: str, command: str) -> None:
        default = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state", "epochmeter")
        self.folder = Path(state_dir or default).expanduser() / platform.node()
        self.root, self.command = root, command

    def note(self, knob: str, devices: Sequence[str], original: str, by_hand: str) -> SavedSetting:
        """Record a setting before it is changed; RuntimeError if another process has changed it already."""
        with self.locked():
            if earlier := self._read(self._file(knob, devices)):
                raise RuntimeError(
                    f"cannot set {knob}: pid {earlier.pid} ({earlier.command}) has changed it since {earlier.when}\n"
                    f"hint: wait for that run; if it no longer exists, restore {earlier.original}: "
                    f"{self.by_hand(earlier)}"
                )
            when = datetime.now(timezone.utc).isoformat(timespec="microseconds")
            setting = (knob, list(devices), self.root, original, None, by_hand, when, self.command)
            return self.update(SavedSetting(*setting, **this_process()._asdict()))

    def update(self, entry: SavedSetting) -> SavedSetting:
        """Write an entry durably."""
        try:
            write_json(self._file(entry.knob, entry.devices), entry._asdict())
            fsync_folder(self.folder)
        except OSError as error:
            raise RuntimeError(
                f"cannot write the journal of original device settings, so none is changed: {error}\n"
                "hint: name a writable folder: machine.state_dir="
            ) from error
        return entry

    def remove(self, entry: SavedSetting) -> None:
        self._file(entry.knob, entry.devices).unlink(missing_ok=True)

    def by_hand(self, entry: SavedSetting) -> str:
        """Return the command to paste that restores a setting and deletes its entry."""
        return f"{entry.by_hand} && rm {shlex.quote(str(self._file(entry.knob, entry.devices)))}"

    def unrestored(self) -> list[SavedSetting]:
        """The entries of runs that ended without restoring a setting, the newest first; damaged ones are left out."""
        abandoned = (entry for entry in self._read_all()[0] if not _is_in_use(entry))
        return sorted(abandoned, key=lambda entry: entry.when, reverse=True)

    def damaged(self) -> list[str]:
        """A message for each entry that cannot be read."""
        return self._read_all()[1]

    def blocking(self, knob: str, devices: Sequence[str]) -> SavedSetting | None:
        """The entry of an ended run for this setting of any of these devices; RuntimeError if it cannot be read."""
        self._read(self._file(knob, devices))
        entries = (entry for entry in self.unrestored() if entry.knob == knob)
        return next((entry for entry in entries if not devices or set(devices) & set(entry.devices)), None)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the journal, so that one process at a time changes or restores settings; RuntimeError if that fails."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = lock_folder(self.folder)
        except OSError as error:
            raise RuntimeError(
                f"cannot lock the journal of original device settings, {self.folder}: {error.strerror}\n"
                f"hint: sudo chown -R $USER {self.folder}, or name another folder: machine.state_dir="
            ) from error
        try:
            yield
        finally:
            os.close(descriptor)

    def _file(self, knob: str, devices: Sequence[str]) -> Path:
        # Devices are hashed, since their names together may exceed the length of a file name.
        digest = hashlib.sha256(" ".join(devices).encode()).hexdigest()[:12]
        return self.folder / f"{knob}-{digest}.json"

    def _read_all(self) -> tuple[list[SavedSetting], list[str]]:
        entries, messages = [], []
        for file in sorted(self.folder.glob("*.json")):
            try:
                entries.append(self._read(file))
            except RuntimeError as error:
                messages.append(str(error))
        return [entry for entry in entries if entry], messages

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


def _is_in_use(entry: SavedSetting) -> bool:
    """Whether another process that made the entry is running; this process has made none when it calls this."""
    process = recorded_process(entry._asdict())
    return is_alive(process) and process != this_process()
