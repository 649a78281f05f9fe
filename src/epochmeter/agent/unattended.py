"""A script without a controller: a folder for its events, from which a later command makes the record of its run."""

import os
import shlex
import tempfile
import time
from datetime import datetime
from typing import Sequence

from epochmeter.agent.notices import notice
from epochmeter.shared import tool
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.events import FOLDER_PREFIX, SCRIPT_FILE
from epochmeter.shared.events_version import events_version
from epochmeter.shared.overrides import quoted_override
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.types import Document
from epochmeter.worker.timeline import monotonic_ns

COMMAND = "epochmeter run" if tool.IS_INSTALLED else "python src/measure.py"
NO_BUDGET = "without a controller, no budget is checked"
RECORDED = "only times are recorded, as {}; after the script, `{} {}` makes the record of the run"


class Unattended:
    """The events of this process, which nobody reads while it runs; `agent` has the arguments of `Agent`.

    The arguments of the script are not written, since they may contain secrets.

    Args:
        program: The script.
        overrides: Keys of `measure.py`, for the later command.
        reason: Why there is no controller.
    """

    def __init__(self, program: str, overrides: Sequence[str], reason: str) -> None:
        started = datetime.now().astimezone()
        name = FOLDER_PREFIX + started.strftime("%Y-%m-%d_%H-%M-%S-")
        folder = tempfile.mkdtemp(prefix=name, dir=os.getcwd())
        script = {
            "version": events_version(),
            "command": [program],
            "overrides": list(overrides),
            "reason": reason,
            "started": started.isoformat(timespec="seconds"),
            "clock": {"wall_s": time.time(), "monotonic_ns": monotonic_ns()},
            "process": this_process()._asdict(),
        }
        write_json(os.path.join(folder, SCRIPT_FILE), script, mode=0o600)
        settings = dict(override.partition("=")[::2] for override in overrides)
        self.agent: Document = {
            "socket": None, "logs": folder, "folder": folder, "loader": settings.get("measure.loader"),
        }  # fmt: skip
        notice(RECORDED.format(reason, COMMAND, events_argument(folder)))
        if any(key.startswith("budget.") for key in settings):
            notice(NO_BUDGET)

    def wait(self) -> None:
        """Return at once: nothing is left to do when the script has ended."""


def events_argument(folder: str) -> str:
    """Return the argument of the later command, in quotes where a shell or Hydra needs them."""
    return shlex.quote(quoted_override("measure.events", folder))
