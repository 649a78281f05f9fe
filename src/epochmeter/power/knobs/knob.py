"""A knob is a setting of the machine that a run may turn, and that is put back to what it was, however the run ends."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from epochmeter.machine.signals import Gate, undisturbed
from epochmeter.power.knobs.restore_journal import Desk, Memo

Say = Callable[[str], None]

SETTLES_S = 10.0
"""How long a device may take until a new setting can be read back."""
POLL_S = 0.05


class Wish(NamedTuple):
    """What a job asks of a knob, in the knob's own terms."""

    setting: str
    watts: float | None = None  # the limit that the setting stands for; None where it names none
    note: str | None = None  # the rule that picked the setting, where others fit as well
    most_w: float | None = None  # the highest limit that the device takes; None where it tells of none


class Knob(Protocol):
    """One setting of the machine; settings are texts that people read and `set` takes back, like "250 W"."""

    name: str
    devices: Sequence[str]  # what it is a knob of, where a machine has several
    files: Sequence[Path]  # the kernel's files that a change writes
    commands: Sequence[Sequence[str]]
    """The exact commands that sudo runs to set it; none if a sudo rule for them would grant all of root's rights."""
    pending: bool
    """Whether a change was requested that cannot be read back yet, and may still take effect."""

    def get(self) -> str:
        """What is set now; OSError or RuntimeError where it cannot be read."""

    def set(self, setting: str) -> None:
        """Turns the knob, and looks whether it took; RuntimeError says why it did not, and what would allow it."""

    def same(self, setting: str, other: str) -> bool:
        """Whether two settings are one, however they are spelled."""

    def choices(self) -> str:
        """What can be asked for, for people."""

    def wish(self, asked: Any) -> Wish:
        """What a job's value asks for; ValueError lists the choices, RuntimeError says what else is needed."""

    def by_hand(self, setting: str) -> str:
        """The command that a person types for it."""


class Holding:
    """Knobs that are turned for now."""

    def __init__(self, desk: Desk, say: Say) -> None:
        self.applied: dict[str, str] = {}
        """What each knob was found at once it was turned."""
        self._desk, self._say = desk, say
        self._knobs: dict[str, Knob] = {}
        self._memos: dict[str, Memo] = {}

    def turn(self, knob: Knob, setting: str) -> None:
        """Turns a knob that is not there already; what was there is written down first."""
        now = was = knob.get()
        self._knobs[knob.name] = knob
        if was != setting:
            memo = self._memos[knob.name] = self._desk.note(knob.name, knob.devices, was, knob.by_hand(was))
            knob.set(setting)
            now = knob.get()
            self._memos[knob.name] = self._desk.keep(memo._replace(ours=now, by_hand=knob.by_hand(was)))
        self.applied[knob.name] = now

    def drifted(self) -> list[str]:
        """What there is to say of each knob that no longer stands where it was turned to."""
        return [said for name, applied in self.applied.items() if (said := drift(self._knobs[name], applied))]

    def put_back(self) -> list[str]:
        """Puts all back, the last that was turned first; returns what could not be, after trying each."""
        said, failures = [], []
        for name, memo in reversed(self._memos.items()):
            try:
                said.append(returned(self._knobs[name], memo, self._desk))
            except (Exception, SystemExit) as error:  # whatever it is, the others are put back
                failures.append(unrestored(memo, error, self._desk))
        for text in filter(None, [*said, *failures]):
            with suppress(Exception, SystemExit):  # the terminal may be gone, and how it says so is its own affair
                self._say(text)
        return failures


class Held:
    """The `with` of `held`, as a class: a signal may leave a generator before it comes to its `finally`."""

    def __init__(self, turns: Sequence[tuple[Knob, Wish]], desk: Desk, say: Say) -> None:
        self._turns, self._holding = turns, Holding(desk, say)
        self._gate = Gate(Held.__exit__.__code__)

    def __enter__(self) -> Holding:
        self._gate.stand()
        try:
            for knob, wish in self._turns:
                with undisturbed():
                    self._holding.turn(knob, wish.setting)
        except BaseException as error:
            self.__exit__(error)
            raise
        return self._holding

    def __exit__(self, *end: object) -> None:
        self._gate.shut = True
        failures = self._holding.put_back()
        self._gate.leave()
        if self._gate.came:
            signal.raise_signal(self._gate.came[0])
        if failures and end[0] is None:
            raise RuntimeError(" ".join(failures))


def held(turns: Sequence[tuple[Knob, Wish]], desk: Desk, say: Say) -> Held:
    """Turns knobs in the order given, and puts back in reverse what was there, whatever ends what is within.

    Where somebody else changed one meanwhile, theirs is left and said. A knob that cannot be put back is said, and
    is a RuntimeError unless something else ends this already; its memo stays on the desk for the next start. A signal
    that comes while knobs are put back waits until they are.
    """
    return Held(turns, desk, say)


def drift(knob: Knob, applied: str) -> str | None:
    """What to say where a knob is not where it was turned to."""
    try:
        now = knob.get()
    except (OSError, RuntimeError) as error:
        return f"{knob.name} was set to {applied}, and can no longer be read: {error}"
    return None if knob.same(now, applied) else f"{knob.name} was set to {applied}, and somebody else set it to {now}."


def returned(knob: Knob, memo: Memo, desk: Desk) -> str | None:
    """Puts a knob back to what was there, and drops its memo; says where it left it to somebody else's setting."""
    now = knob.get()
    said = None
    if memo.ours is None:
        undo(knob, memo.was)
    elif knob.same(now, memo.ours):
        knob.set(memo.was)
    elif not knob.same(now, memo.was):
        said = f"{knob.name} was set to {memo.ours}, and somebody else set it to {now}: left so. It was {memo.was}."
    desk.drop(memo)
    return said


def undo(knob: Knob, was: str) -> None:
    """Restore a setting whose change did not complete, in this process or in one that was killed.

    The original is written even if it can be read already, since the requested change may take effect late. If that
    write is refused as well, the device still has its original setting and there is nothing to restore.

    Raises:
        RuntimeError, OSError: The device has, or may still get, another setting, and the original was refused.
    """
    requested = knob.pending
    knob.pending = True
    try:
        knob.set(was)
    except (OSError, RuntimeError):
        if (requested and knob.pending) or not knob.same(knob.get(), was):
            raise


def settled(knob: Knob, setting: str, said: str) -> None:
    """Wait until a requested setting can be read back.

    Args:
        knob: The device's setting.
        setting: The requested value.
        said: The output of the program that was asked to set it, for the error.

    Raises:
        RuntimeError: The device has another setting after `SETTLES_S` seconds.
    """
    knob.pending = True
    if not within_time(lambda: knob.same(knob.get(), setting)):
        detail = f" {' '.join(said.split())}" if said else ""
        raise RuntimeError(f"{knob.name}: asked for {setting}, the device is at {knob.get()}.{detail}")
    knob.pending = False


def within_time(reached: Callable[[], bool]) -> bool:
    """Poll until a device has reached a state, for at most `SETTLES_S` seconds; whether it has."""
    end = time.monotonic() + SETTLES_S
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def unrestored(memo: Memo, error: BaseException, desk: Desk) -> str:
    """The message for a setting that cannot be restored, with the command that does it by hand."""
    return f"cannot restore {memo.knob} to {memo.was}: {error}\nhint: {by_hand(memo, desk)}"


def by_hand(memo: Memo, desk: Desk) -> str:
    """The command to paste that restores a setting and deletes its journal entry."""
    return f"{memo.by_hand} && rm {shlex.quote(str(desk.file(memo)))}"
