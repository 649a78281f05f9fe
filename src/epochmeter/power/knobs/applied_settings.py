"""Device settings that are changed for the duration of a run.

The original is in the journal (`RestoreJournal`) before a setting is changed: a later start restores it after a kill.
"""

import signal
from collections.abc import Sequence
from contextlib import suppress

from epochmeter.machine.signals import SignalDeferral, uninterruptible
from epochmeter.power.knobs.knob import Knob, Notify, SettingTarget
from epochmeter.power.knobs.restore import restore_problem, restore_setting
from epochmeter.power.knobs.restore_journal import RestoreJournal, SavedSetting
from epochmeter.shared.problem import MachineError, Problem, format_problem, problem_of


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
            raise MachineError(*failures)

    def change(self, knob: Knob, setting: str) -> None:
        """Change a setting, first or again; its original value is in the journal before. RuntimeError if it fails."""
        with uninterruptible():
            before, saved = knob.get(), self._saved_settings.get(knob.name)
            if not saved and before == setting:
                self.applied[knob.name] = before
                return
            if saved:
                saved = self._journal.update(saved._replace(applied=None))
            else:
                saved = self._journal.note(knob.name, knob.devices, before, knob.by_hand(before))
            self._saved_settings[knob.name] = saved
            knob.set(setting)
            now = self.applied[knob.name] = knob.get()
            changed = saved._replace(applied=now, by_hand=knob.by_hand(saved.original))
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
                why = problem_of(error).message
                messages.append(f"cannot read {name}, which was set to {applied}: {why}")
        return messages

    def restore_all(self) -> list[Problem]:
        """Restore all settings in reverse order; returns the problem of each setting that could not be restored."""
        messages, failures = [], []
        for name, saved in reversed(self._saved_settings.items()):
            try:
                messages.append(restore_setting(self._knobs[name], saved, self._journal))
            except (Exception, SystemExit) as error:  # the other settings are restored anyway
                failures.append(restore_problem(saved, error, self._journal))
        for text in filter(None, [*messages, *map(format_problem, failures)]):
            with suppress(Exception, SystemExit):  # the terminal may be gone
                self._say(text)
        return failures
