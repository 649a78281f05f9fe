"""The state of a script's windows in a file next to its logs, so that the logs do not grow while a script runs.

Whoever loads the state and reads the rest of the logs finds the same windows as a reader that has read all of them.
"""

import os
import pickle
from pathlib import Path
from typing import Any

from epochmeter.segmentation.script import ScriptWindows

FILE = "windows.state"
MAX_READ_FILES = 32  # log files of a script that were read and are kept, 12 MB
ALLOWED = {
    "array": ("array", "_array_reconstructor"),
    "collections": ("deque",),
    "pathlib": ("PosixPath",),
    "epochmeter.shared.events": ("Event",),
    "epochmeter.shared.process_identity": ("Process",),
}
"""What a state consists of besides the classes of `segmentation`, by module."""


def save_state(windows: ScriptWindows) -> None:
    """Write the state, then delete the log files that were read before; OSError without space."""
    read = windows.forget()
    partial = windows.folder / f".{FILE}"
    partial.write_bytes(pickle.dumps(windows))
    partial.replace(windows.folder / FILE)
    for path in read:
        path.unlink(missing_ok=True)


def load_state(folder: Path) -> ScriptWindows | None:
    """Return the saved windows; None if none were saved. `pickle.UnpicklingError` if they cannot be read."""
    try:
        with open(folder / FILE, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
            state = StateUnpickler(file).load()
    except FileNotFoundError:
        return None
    except (EOFError, LookupError, TypeError, AttributeError, ValueError, ImportError) as error:
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error
    if not isinstance(state, ScriptWindows):
        raise pickle.UnpicklingError("it has no windows of a script")
    return state


class StateUnpickler(pickle.Unpickler):
    """Unpickler of a state only: a pickle can call any function that it names."""

    def find_class(self, module: str, name: str) -> Any:
        package = "pathlib" if module.startswith("pathlib.") else module  # a part of it from Python 3.13 on
        is_own = module.startswith("epochmeter.segmentation.")
        if is_own or name in ALLOWED.get(package, ()):
            found = super().find_class(module, name)
            if not is_own or (isinstance(found, type) and found.__module__ == module):
                return found
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is no part of a state")
