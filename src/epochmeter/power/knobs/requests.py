"""The device settings that a job requests, and the restoration of settings that a killed run left changed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from epochmeter.machine.jetson import runs_on_jetson
from epochmeter.machine.signals import uninterruptible
from epochmeter.power.knobs.jetson import open_fan, open_jetson_clocks, open_nvpmodel
from epochmeter.power.knobs.knob import Knob, Notify, SettingTarget, restore_error, restore_setting
from epochmeter.power.knobs.restore_journal import RestoreJournal, SavedSetting
from epochmeter.power.knobs.watt_limit import open_amd_cap, open_nvml_limit, open_rapl_limit
from epochmeter.shared.process_identity import boot_id

AUTO = "auto"  # the value of `power_limit` with which the best limit is searched during training
PERSISTENT_KNOBS = ("nvpmodel", "fan")
"""Their settings survive a reboot; jtop's service sets a fan again as it was last requested."""
NO_KNOB_MESSAGES = {"power_limit": "no power limit to set", "clocks": "no jetson_clocks", "fan": "no fan to set"}


def knob_openers(
    trains_on_gpu: bool, gpus: Sequence[Mapping[str, str]], journal: RestoreJournal
) -> Mapping[str, Callable[[], Knob | None]]:
    """Return the opener of each device setting by key, in the order of changes; None: this machine has none."""
    return {
        "power_limit": lambda: power_limit_knob(trains_on_gpu, gpus, journal.root),
        "clocks": lambda: open_jetson_clocks(journal.root, journal.folder),
        "fan": lambda: open_fan(journal.root),
    }


def requested_knobs(
    values: Mapping[str, str | float], trains_on_gpu: bool, gpus: Sequence[Mapping[str, str]], journal: RestoreJournal
) -> dict[str, Knob | None]:
    """Return the knobs of the requested device settings by key, in the order in which they are changed."""
    if values:
        refuse_replay(journal.root)
    openers = knob_openers(trains_on_gpu, gpus, journal)
    return {key: opener() for key, opener in openers.items() if key in values}


def refuse_replay(root: str) -> None:
    """Refuse to change settings of a recorded board on a Jetson, whose own settings would change."""
    if root != "/" and runs_on_jetson():
        raise RuntimeError(
            f"cannot change device settings: machine.root={root} is a recorded board, and the change would affect "
            "this Jetson instead\nhint: leave machine.root out, or add rehearse=true"
        )


def power_limit_knob(trains_on_gpu: bool, gpus: Sequence[Mapping[str, str]], root: str) -> Knob | None:
    """Return the power limit of the training device; None if it has none."""
    if knob := open_nvpmodel(root):
        return knob
    if not trains_on_gpu:
        return open_rapl_limit(root)
    if not gpus:
        return None
    vendors = {gpu["vendor"] for gpu in gpus}
    if vendors == {"nvidia"} and all("uuid" in gpu for gpu in gpus):
        return open_nvml_limit([gpu["uuid"] for gpu in gpus])
    if vendors == {"amd"} and all("bus" in gpu for gpu in gpus):
        return open_amd_cap([gpu["bus"] for gpu in gpus], root)
    raise RuntimeError(
        "cannot set power_limit: the driver does not report the UUID (NVIDIA) or PCI address (AMD) of each GPU used\n"
        "hint: sudo nvidia-smi -pm 1 keeps NVIDIA's driver loaded; or leave power_limit out"
    )


def target_of(knob: Knob, requested: str | float) -> SettingTarget:
    """Return the setting to apply; for `auto` the current limit, RuntimeError if it is the only or not a common one."""
    if requested != AUTO:
        return knob.target_for(requested)
    now, limits = knob.get(), knob.limits()
    if len(limits) < 2:
        raise RuntimeError(f"power_limit=auto: {knob.name} has no other limit than {now}\nhint: leave power_limit out")
    for target in limits:
        if knob.is_equal(target.setting, now):
            return target
    raise RuntimeError(f"power_limit=auto: {knob.name} is at {now}\nhint: set the same limit for all devices first")


def restore_after_kill(journal: RestoreJournal, say: Notify, tried: Sequence[SavedSetting] = ()) -> list[SavedSetting]:
    """Restore the settings that killed runs left changed, unless a person or a reboot has changed them since.

    A setting that cannot be restored causes a warning; runs that do not need the setting continue. Returns the entries
    whose settings could not be restored, including those of an earlier call (`tried`), which are not tried again.
    """
    failed = list(tried)
    messages = [] if tried else [f"warning: {text}" for text in journal.damaged()]

    def pending() -> list[SavedSetting]:
        return [entry for entry in journal.unrestored() if entry not in failed]

    if pending():
        try:
            with journal.locked():
                for entry in pending():  # another start may have restored some meanwhile
                    with uninterruptible():
                        try:
                            messages.append(restore_one(entry, journal))
                        except (Exception, SystemExit) as error:  # the other settings are restored anyway
                            messages.append(f"warning: {restore_error(entry, error, journal)}")
                            failed.append(entry)
        except RuntimeError as error:
            messages.append(f"warning: settings that an earlier run changed are not restored: {error}")
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
        if entry := journal.blocking(knob.name, knob.devices):
            raise RuntimeError(
                f"cannot set {knob.name}: an earlier run ({entry.when}: {entry.command}) changed it, and it could not "
                f"be restored to {entry.original}\nhint: {journal.by_hand(entry)}"
            )


def restore_one(entry: SavedSetting, journal: RestoreJournal) -> str:
    """Restore the setting of a journal entry and delete the entry; returns a message."""
    rebooted = entry.boot_id != boot_id() and entry.knob not in PERSISTENT_KNOBS
    if not rebooted:
        refuse_replay(entry.root)
    knob = None if rebooted else reopen_knob(entry, journal)
    setting = entry.applied or "another setting"
    if knob is None:
        journal.remove(entry)
        reason = "a reboot has reset it" if rebooted else "the device no longer exists"
        return f"{entry.knob} needs no restoring: a killed run left it at {setting}, and {reason}"
    run = f"a killed run (pid {entry.pid}, {entry.when}: {entry.command})"
    kept = restore_setting(knob, entry, journal)
    return kept or f"restored {entry.knob} to {entry.original}: {run} left it at {setting}"


def reopen_knob(entry: SavedSetting, journal: RestoreJournal) -> Knob | None:
    """Return the knob of a journal entry; None if the machine no longer has it."""
    openers: Mapping[str, Callable[[], Knob | None]] = {
        "nvpmodel": lambda: open_nvpmodel(entry.root),
        "jetson_clocks": lambda: open_jetson_clocks(entry.root, journal.folder),
        "fan": lambda: open_fan(entry.root),
        "NVML": lambda: open_nvml_limit(entry.devices),
        "amdgpu": lambda: open_amd_cap(entry.devices, entry.root),
        "RAPL": lambda: open_rapl_limit(entry.root),
    }
    return openers[entry.knob]()
