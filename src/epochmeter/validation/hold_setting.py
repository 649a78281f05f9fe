"""A process that changes a device setting, as a run does, and then waits to be killed.

python -m epochmeter.validation.hold_setting '{"key": "power_limit", "setting": "200 W", ...}'
"""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from epochmeter.machine.gpus import find_gpus, select_gpus
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.device_settings import requested_knobs
from epochmeter.power.knobs.knob import SettingTarget
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.shared.lifetime import die_with_parent

APPLIED = "applied"
MOST_S = 60.0  # after which it restores the setting itself


def main(arguments: str) -> None:
    """Change the setting, print `applied`, and wait."""
    die_with_parent()
    given = json.loads(arguments)
    journal = RestoreJournal(given["state_dir"], root=given["root"], command=given["command"])
    gpus = select_gpus(find_gpus(Path(given["root"])), os.environ) if given["on_gpu"] else []
    knob = requested_knobs({given["key"]: given["setting"]}, given["on_gpu"], gpus, journal)[given["key"]]
    if knob is None:
        sys.exit(f"this machine has no {given['key']}")
    # Without its reader, the command that waits for it was killed before: the setting is restored.
    with suppress(BrokenPipeError), AppliedSettings([(knob, SettingTarget(given["setting"]))], journal, print):
        print(APPLIED, flush=True)
        time.sleep(MOST_S)


if __name__ == "__main__":
    main(sys.argv[1])
