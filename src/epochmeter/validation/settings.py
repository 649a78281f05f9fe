"""Settings that are changed to see whether they are restored: after a run, and by the next start after SIGKILL."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.knob import Knob, SettingTarget
from epochmeter.power.knobs.permission import permission
from epochmeter.power.knobs.restore import restore_after_kill
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.shared.problem import Problem, problem_of
from epochmeter.validation.bench import ChangedSetting
from epochmeter.validation.hold_setting import APPLIED
from epochmeter.validation.programs import environment

COMMAND = "validate settings=true"
HOLD = "epochmeter.validation.hold_setting"


def permitted(openers: Mapping[str, Callable[[], Knob | None]]) -> dict[str, Knob | Problem]:
    """Return the settings that this machine has by key; in place of a knob, why this user may not change it."""
    found: dict[str, Knob | Problem] = {}
    for key, opener in openers.items():
        try:
            if knob := opener():
                how, remedy = permission(knob)
                found[key] = knob if how else Problem(f"this user may not change {knob.name}", remedy or "")
        except (OSError, RuntimeError, ValueError) as error:
            found[key] = problem_of(error)
    return found


def other_target(knob: Knob) -> SettingTarget:
    """Return the nearest other setting: of power limits, the next lower one, else the next higher one."""
    now, limits = knob.get(), knob.limits()
    if not limits:
        return knob.target_for("other")
    places = [place for place, target in enumerate(limits) if knob.is_equal(target.setting, now)]
    if not places:
        return limits[-1]
    return limits[places[0] - 1] if places[0] else limits[min(1, len(limits) - 1)]


def change_setting(key: str, knob: Knob, journal: RestoreJournal, *, on_gpu: bool) -> ChangedSetting | Problem:
    """Change a setting twice: once as a run does, and once by a process that is then killed. It is restored each time.

    Returns:
        What was read back each time, or the problem that prevented it.
    """
    try:
        original, target = knob.get(), other_target(knob)
        if knob.is_equal(target.setting, original):
            return Problem(f"{knob.name} has no other setting than {original}", "")
        with AppliedSettings([(knob, target)], journal, lambda text: None) as settings:
            applied = settings.applied[knob.name]
        restored = knob.get()
        killed = _killed(key, target.setting, journal, on_gpu=on_gpu)
        failed = restore_after_kill(journal, lambda text: None)
        after_kill = knob.get()
    except (OSError, RuntimeError, ValueError) as error:
        with suppress(Exception):
            restore_after_kill(journal, lambda text: None)
        return problem_of(error)
    return ChangedSetting(
        original, target.setting, applied, restored, after_kill,
        is_applied=knob.is_equal(applied, target.setting), is_restored=knob.is_equal(restored, original),
        is_restored_after_kill=killed and not failed and knob.is_equal(after_kill, original),
    )  # fmt: skip


def _killed(key: str, setting: str, journal: RestoreJournal, *, on_gpu: bool) -> bool:
    """Change a setting in another process, and kill it; return whether it had changed the setting."""
    given = {"key": key, "setting": setting, "on_gpu": on_gpu, "root": journal.root, "command": COMMAND}
    given["state_dir"] = str(journal.folder.parent)
    with subprocess.Popen(
        [sys.executable, "-m", HOLD, json.dumps(given)], env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        answer = process.stdout.readline()
        process.kill()
    return answer.strip() == APPLIED
