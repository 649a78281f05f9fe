"""The restoration of device settings to their originals: at a run's end, or at a later start after a kill."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from epochmeter.machine.signals import uninterruptible
from epochmeter.power.knobs.device_settings import refuse_links_out, refuse_replay
from epochmeter.power.knobs.gpu_clock import open_amd_clock, open_nvml_clock
from epochmeter.power.knobs.jetson import open_fan, open_jetson_clocks, open_nvpmodel
from epochmeter.power.knobs.knob import Knob, Notify
from epochmeter.power.knobs.restore_journal import RestoreJournal, SavedSetting
from epochmeter.power.knobs.watt_limit import open_amd_cap, open_nvml_limit, open_rapl_limit
from epochmeter.shared.problem import Problem, format_problem, machine_error, problem_of
from epochmeter.shared.process_identity import boot_id

PERSISTENT_KNOBS = ("nvpmodel", "fan")
"""Their settings survive a reboot; jtop's service sets a fan again as it was last requested."""


def restore_setting(knob: Knob, saved: SavedSetting, journal: RestoreJournal) -> str | None:
    """Restore a setting and delete it from the journal; returns a message if someone else's change is kept instead."""
    now = knob.get()
    message = None
    if saved.applied is None:
        _undo_incomplete(knob, saved.original)
    elif knob.is_equal(now, saved.applied):
        knob.set(saved.original)
    elif not knob.is_equal(now, saved.original):
        message = (
            f"{knob.name} is not restored to {saved.original}: the run set it to {saved.applied}, but something "
            f"changed it to {now}, which is kept."
        )
    journal.remove(saved)
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


def restore_after_kill(journal: RestoreJournal, say: Notify, tried: Sequence[SavedSetting] = ()) -> list[SavedSetting]:
    """Restore the settings that killed runs left changed, unless a person or a reboot has changed them since.

    A setting that cannot be restored causes a warning; runs that do not need the setting continue. Returns the entries
    whose settings could not be restored, including those of an earlier call (`tried`), which are not tried again.
    """
    failed = list(tried)
    messages = [] if tried else [format_problem(problem, "warning") for problem in journal.damaged()]

    def pending() -> list[SavedSetting]:
        return [saved for saved in journal.unrestored() if saved not in failed]

    if pending():
        try:
            with journal.locked():
                for saved in pending():  # another start may have restored some meanwhile
                    with uninterruptible():
                        try:
                            messages.append(restore_one(saved, journal))
                        except (Exception, SystemExit) as error:  # the other settings are restored anyway
                            messages.append(format_problem(restore_problem(saved, error, journal), "warning"))
                            failed.append(saved)
        except RuntimeError as error:
            problem = problem_of(error).within("settings that an earlier run changed are not restored")
            messages.append(format_problem(problem, "warning"))
            failed += pending()
    for text in messages:
        with suppress(Exception, SystemExit):  # the terminal may be gone
            say(text)
    return failed


def refuse_unrestored(knobs: Sequence[Knob], journal: RestoreJournal) -> None:
    """Refuse to change a setting that an earlier run left changed: another change would lose the original value.

    Call it after `restore_after_kill`. Raises RuntimeError with the command that restores the setting.
    """
    for knob in knobs:
        if saved := journal.blocking(knob.name, knob.devices):
            raise machine_error(
                f"cannot set {knob.name}: an earlier run ({saved.when}: {saved.command}) changed it, and it could not "
                f"be restored to {saved.original}",
                journal.by_hand(saved),
            )


def restore_one(saved: SavedSetting, journal: RestoreJournal) -> str:
    """Restore a setting and delete it from the journal; returns a message."""
    setting = saved.applied or "another setting"
    was_rebooted = saved.boot_id != boot_id() and saved.knob not in PERSISTENT_KNOBS
    reason = reset_reason(saved, journal) if was_rebooted else None
    if reason is None:
        refuse_replay(saved.root)
        knob = reopen_knob(saved, journal)
        if knob:
            run = f"a killed run (pid {saved.pid}, {saved.when}: {saved.command})"
            kept = restore_setting(knob, saved, journal)
            return kept or f"restored {saved.knob} to {saved.original}: {run} left it at {setting}"
        reason = "the device no longer exists"
    journal.remove(saved)
    return f"{saved.knob} needs no restoring: a killed run left it at {setting}, and {reason}"


def reset_reason(saved: SavedSetting, journal: RestoreJournal) -> str | None:
    """Return why a setting needs no restoring after a reboot, which usually resets it; None if it is still set."""
    try:
        knob = reopen_knob(saved, journal)
        now = knob.get() if knob else ""
    except (OSError, RuntimeError) as error:
        return f"a reboot resets it, which cannot be checked: {error}"
    if knob is None:
        return "the device no longer exists"
    if saved.applied and knob.is_equal(now, saved.applied):
        return None
    if knob.is_equal(now, saved.original):
        return "a reboot has reset it"
    return f"it is at {now} since a reboot, which is kept"


def reopen_knob(saved: SavedSetting, journal: RestoreJournal) -> Knob | None:
    """Return the knob of a saved setting; None if the machine no longer has it."""
    openers: Mapping[str, Callable[[], Knob | None]] = {
        "nvpmodel": lambda: open_nvpmodel(saved.root),
        "jetson_clocks": lambda: open_jetson_clocks(saved.root, journal.folder),
        "fan": lambda: open_fan(saved.root),
        "NVML": lambda: open_nvml_limit(saved.devices),
        "amdgpu": lambda: open_amd_cap(saved.devices, saved.root),
        "RAPL": lambda: open_rapl_limit(saved.root),
        "NVML-gpu_clock": lambda: open_nvml_clock("gpu_clock", saved.devices),
        "NVML-memory_clock": lambda: open_nvml_clock("memory_clock", saved.devices),
        "amdgpu-gpu_clock": lambda: open_amd_clock("gpu_clock", saved.devices, saved.root),
        "amdgpu-memory_clock": lambda: open_amd_clock("memory_clock", saved.devices, saved.root),
    }
    if knob := openers[saved.knob]():
        refuse_links_out(knob, saved.root)
    return knob


def restore_problem(saved: SavedSetting, error: BaseException, journal: RestoreJournal) -> Problem:
    problem = problem_of(error).within(f"cannot restore {saved.knob} to {saved.original}")
    return problem._replace(hint=journal.by_hand(saved))
