"""The journal of original device settings, from which a setting is restored even after a run was killed.

An entry is a file `<state>/<hostname>/<knob>-<checksum of its devices>.json`; the host name separates machines that
share a home folder. Since an entry decides what is written to the kernel's files, maybe as root, it is used only if it
is this user's own: nobody else may have written it, and it is the entry that this host made under this name.
"""

import hashlib
import os
import platform
import shlex
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, get_type_hints

from epochmeter.shared.atomic_files import fsync_folder, lock_folder, write_json
from epochmeter.shared.problem import Problem, machine_error, problem_of
from epochmeter.shared.process_identity import Process, is_alive, this_process
from epochmeter.shared.record_files import MAX_JSON_BYTES, open_file, parse_json

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


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
                raise machine_error(
                    f"cannot set {knob}: pid {earlier.pid} ({earlier.command}) has changed it since {earlier.when}",
                    f"wait for that run; if it no longer exists, restore {earlier.original}: {self.by_hand(earlier)}",
                )
            when = datetime.now(timezone.utc).isoformat(timespec="microseconds")
            setting = (knob, list(devices), self.root, original, None, by_hand, when, self.command)
            return self.update(SavedSetting(*setting, **this_process()._asdict()))

    def update(self, setting: SavedSetting) -> SavedSetting:
        """Write an entry durably."""
        try:
            write_json(self._file(setting.knob, setting.devices), setting._asdict(), mode=0o600)
            fsync_folder(self.folder)
        except OSError as error:
            raise machine_error(
                f"cannot write the journal of original device settings, so none is changed: {error}",
                "name a writable folder: machine.state_dir=",
            ) from error
        return setting

    def remove(self, setting: SavedSetting) -> None:
        self._file(setting.knob, setting.devices).unlink(missing_ok=True)

    def by_hand(self, setting: SavedSetting) -> str:
        """Return the command to paste that restores a setting and deletes its entry."""
        return f"{setting.by_hand} && rm {shlex.quote(str(self._file(setting.knob, setting.devices)))}"

    def unrestored(self) -> list[SavedSetting]:
        """The entries of runs that ended without restoring a setting, the newest first; damaged ones are left out."""
        abandoned = (setting for setting in self._read_all()[0] if not _is_in_use(setting))
        return sorted(abandoned, key=lambda setting: setting.when, reverse=True)

    def damaged(self) -> list[Problem]:
        """The problem of each entry that cannot be read."""
        return self._read_all()[1]

    def blocking(self, knob: str, devices: Sequence[str]) -> SavedSetting | None:
        """The entry of an ended run for this setting of any of these devices; RuntimeError if it cannot be read."""
        self._read(self._file(knob, devices))
        entries = (setting for setting in self.unrestored() if setting.knob == knob)
        return next((setting for setting in entries if not devices or set(devices) & set(setting.devices)), None)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the journal, so that one process at a time changes or restores settings; RuntimeError if that fails."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_folder()
            descriptor = lock_folder(self.folder)
        except OSError as error:
            message = f"cannot lock the journal of original device settings, {self.folder}: {error.strerror}"
            raise machine_error(message, self._hint, file=str(self.folder)) from error
        try:
            yield
        finally:
            os.close(descriptor)

    def _file(self, knob: str, devices: Sequence[str]) -> Path:
        # Devices are hashed, since their names together may exceed the length of a file name.
        digest = hashlib.sha256(" ".join(devices).encode()).hexdigest()[:12]
        return self.folder / f"{knob}-{digest}.json"

    @property
    def _hint(self) -> str:
        folder = shlex.quote(str(self.folder))
        return f"name a folder of your own: machine.state_dir=, or: sudo chown -R $USER {folder}"

    def _check_folder(self) -> None:
        """Raise RuntimeError if the folder is not this user's, and withdraw others' rights; OSError without it."""
        status = os.lstat(self.folder)
        if not stat.S_ISDIR(status.st_mode) or not is_own(status):
            message = (
                f"cannot use the journal of original device settings, {self.folder}: it is a link, or another user's"
            )
            raise machine_error(message, self._hint, file=str(self.folder))
        if status.st_mode & OTHERS_WRITE:
            self.folder.chmod(0o700)

    def _read_all(self) -> tuple[list[SavedSetting], list[Problem]]:
        entries, problems = [], []
        try:
            self._check_folder()
        except OSError:
            return [], []
        except RuntimeError as error:
            return [], [problem_of(error)]
        for file in sorted(self.folder.glob("*.json")):
            try:
                entries.append(self._read(file))
            except RuntimeError as error:
                problems.append(problem_of(error))
        return [setting for setting in entries if setting], problems

    def _read(self, file: Path) -> SavedSetting | None:
        """Read an entry; None if another process has just deleted it."""
        try:
            with open_file(file, MAX_JSON_BYTES) as opened:
                status = os.fstat(opened.fileno())
                setting = SavedSetting(**parse_json(opened.read()))
            if reason := self._foreign(setting, status, file):
                raise ValueError(reason)
            return setting
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError) as error:
            raise machine_error(
                f"cannot use {file}, the original value of a setting that an earlier run changed: {error}",
                f"check the settings with `make doctor`, then delete the entry: rm {shlex.quote(str(file))}",
            ) from error

    def _foreign(self, setting: SavedSetting, status: os.stat_result, file: Path) -> str:
        """Return why an entry is not one that this user's process on this host wrote to this file; empty if it is."""
        if not is_own(status):
            return f"it is a file of the user with ID {status.st_uid}"
        if status.st_mode & OTHERS_WRITE:
            return "other users may write to it"
        kinds = {**get_type_hints(SavedSetting), "devices": list}
        if wrong := [name for name, value in setting._asdict().items() if not isinstance(value, kinds[name])]:
            return f"`{wrong[0]}` has a value of another type"
        if not all(isinstance(device, str) for device in setting.devices):
            return "`devices` has a value of another type"
        if setting.host != platform.node():
            return f"it was written on another host, {setting.host}"
        return "" if file == self._file(setting.knob, setting.devices) else "it was renamed"


def is_own(status: os.stat_result) -> bool:
    """Return whether a file or folder is owned by the user of this process."""
    return status.st_uid in (os.getuid(), os.geteuid())


def _is_in_use(setting: SavedSetting) -> bool:
    """Whether another process that made the entry is running; this process has made none when it calls this."""
    process = Process(setting.host, setting.pid, setting.boot_id, setting.start_ticks, setting.pid_namespace)
    return is_alive(process) and process != this_process()
