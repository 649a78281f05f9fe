"""Knobs: device settings that a run changes and that are restored however the run ends.

The original is in the journal (`RestoreJournal`) before a setting is changed: a later start restores it after a kill.
"""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from epochmeter.machine.signals import SignalDeferral, uninterruptible
from epochmeter.power.knobs.restore_journal import RestoreJournal, SavedSetting

Notify = Callable[[str], None]

NO_EFFECT_HINT = "another program may control it, such as tuned or thermald: stop it, and start the run again"
SETTLE_LIMIT_S = 10.0  # longest time until a new setting can be read back, in seconds
POLL_S = 0.05


class SettingTarget(NamedTuple):
    """A value of a device setting that a job requests."""

    setting: str
    watts: float | None = None  # its power limit; None if it has none
    note: str | None = None  # the rule that selected the setting if others match as well
    max_w: float | None = None  # the highest limit of the device; None if unknown


class Knob(Protocol):
    """A device setting, such as NVML. Its values are readable texts, like "250 W"."""

    name: str
    devices: Sequence[str] = ()  # identifiers, if a machine may have several
    files: Sequence[Path] = ()  # the kernel's files that a change writes
    commands: Sequence[Sequence[str]] = ()  # those that sudo runs; none if a rule for them would grant all rights
    query: Sequence[str] = ()  # a command that only reads the setting; none if there is no program for it
    by_jtop: bool = False  # whether jtop's service changes it for the members of its group
    pending: bool = False  # whether a change was requested that cannot be read back yet, and may still take effect

    def get(self) -> str:
        """Read the current setting; OSError or RuntimeError if it cannot be read."""

    def set(self, setting: str) -> None:
        """Change the setting and read it back; RuntimeError with a remedy if that fails."""

    def is_equal(self, setting: str, other: str) -> bool:
        """Whether two settings are equal, however they are written."""
        return setting == other

    def choices(self) -> str:
        """The possible settings, as text."""

    def target_for(self, value: str | float) -> SettingTarget:
        """Convert a job's value to a setting; ValueError if it is invalid, RuntimeError if it cannot be set now."""
        return SettingTarget(self.choices())  # if there is only one

    def limits(self) -> list[SettingTarget]:
        """The power limits that can be set without a reboot, with the one in use, in ascending order; else none."""
        return []

    def by_hand(self, setting: str) -> str:
        """The shell command that sets it."""


class AppliedSettings:
    """Change device settings for the duration of a `with` block and restore them in reverse order.

    A setting that someone else changed within the block is kept, with a message. Signals that arrive during the
    restoration are delivered after it. A setting that cannot be restored stays in the journal for the next start, and
    raises RuntimeError at exit unless another exception ends the block. This class is not a generator: a signal may
    end a generator before its `finally` block.
    """

    def __init__(self, targets: Sequence[tuple[Knob, SettingTarget]], journal: RestoreJournal, say: Notify) -> None:
        self.applied: dict[str, str] = {}  # settings as read back after the change, by knob
        self._targets, self._journal, self._say = targets, journal, say
        self._knobs = {knob.name: knob for knob, _ in targets}
        self._saved_settings: dict[str, SavedSetting] = {}
        self._signal_deferral = SignalDeferral(AppliedSettings.__exit__.__code__)

    def __enter__(self) -> "AppliedSettings":
        self._signal_deferral.install()
        try:
            for knob, target in self._targets:
                self.change(knob, target.setting)
        except BaseException as error:
            self.__exit__(error)
            raise
        return self

    def __exit__(self, *end: object) -> None:
        self._signal_deferral.is_deferring = True
        failures = self.restore_all()
        self._signal_deferral.restore()
        if self._signal_deferral.received:
            signal.raise_signal(self._signal_deferral.received[0])
        if failures and end[0] is None:
            raise RuntimeError(" ".join(failures))

    def change(self, knob: Knob, setting: str) -> None:
        """Change a setting, first or again; its original value is in the journal before. RuntimeError if it fails."""
        with uninterruptible():
            before, entry = knob.get(), self._saved_settings.get(knob.name)
            if not entry and before == setting:
                self.applied[knob.name] = before
                return
            if entry:
                entry = self._journal.update(entry._replace(applied=None))
            else:
                entry = self._journal.note(knob.name, knob.devices, before, knob.by_hand(before))
            self._saved_settings[knob.name] = entry
            knob.set(setting)
            now = self.applied[knob.name] = knob.get()
            changed = entry._replace(applied=now, by_hand=knob.by_hand(entry.original))
            self._saved_settings[knob.name] = self._journal.update(changed)

    def drift_messages(self) -> list[str]:
        """One message per setting that was changed by someone else during the run, or cannot be read."""
        messages = []
        for name, applied in self.applied.items():
            try:
                now = self._knobs[name].get()
                if not self._knobs[name].is_equal(now, applied):
                    messages.append(f"{name} was set to {applied}, but something changed it to {now}.")
            except (OSError, RuntimeError) as error:
                messages.append(f"cannot read {name}, which was set to {applied}: {error}")
        return messages

    def restore_all(self) -> list[str]:
        """Restore all settings in reverse order; returns one message per setting that could not be restored."""
        messages, failures = [], []
        for name, entry in reversed(self._saved_settings.items()):
            try:
                messages.append(restore_setting(self._knobs[name], entry, self._journal))
            except (Exception, SystemExit) as error:  # the other settings are restored anyway
                failures.append(restore_error(entry, error, self._journal))
        for text in filter(None, [*messages, *failures]):
            with suppress(Exception, SystemExit):  # the terminal may be gone
                self._say(text)
        return failures


def restore_setting(knob: Knob, entry: SavedSetting, journal: RestoreJournal) -> str | None:
    """Restore a setting and delete its journal entry; returns a message if someone else's change is kept instead."""
    now = knob.get()
    message = None
    if entry.applied is None:
        _undo_incomplete(knob, entry.original)
    elif knob.is_equal(now, entry.applied):
        knob.set(entry.original)
    elif not knob.is_equal(now, entry.original):
        message = (
            f"{knob.name} is not restored to {entry.original}: the run set it to {entry.applied}, but something "
            f"changed it to {now}, which is kept."
        )
    journal.remove(entry)
    return message


def _undo_incomplete(knob: Knob, original: str) -> None:
    """Restore a setting whose change did not complete, in this process or in one that was killed.

    The original is written even if it can be read already, since the requested change may take effect late. If that
    write is refused as well, the device still has its original setting and there is nothing to restore.
    """
    requested, knob.pending = knob.pending, True
    try:
        knob.set(original)
    except (OSError, RuntimeError):
        if (requested and knob.pending) or not knob.is_equal(knob.get(), original):
            raise


def wait_until_set(knob: Knob, setting: str, output: str, hint: str = NO_EFFECT_HINT) -> None:
    """Wait until a requested setting can be read back; RuntimeError, with the program's output and a hint, if not."""
    knob.pending = True
    if not poll_until(lambda: knob.is_equal(knob.get(), setting)):
        detail = " ".join([f"the device is at {knob.get()}.", *output.split()])
        raise RuntimeError(f"cannot set {knob.name} to {setting}: {detail}\n  hint: {hint}")
    knob.pending = False


def poll_until(reached: Callable[[], bool]) -> bool:
    """Poll until a device has reached a state; False after `SETTLE_LIMIT_S` seconds."""
    end = time.monotonic() + SETTLE_LIMIT_S
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def restore_error(entry: SavedSetting, error: BaseException, journal: RestoreJournal) -> str:
    return f"cannot restore {entry.knob} to {entry.original}: {error}\nhint: {journal.by_hand(entry)}"
