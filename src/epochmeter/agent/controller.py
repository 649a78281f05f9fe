"""The controller of a script that was not started by `measure.py`: a child process with the code of that command."""

import contextlib
import json
import os
import subprocess
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(FOLDER))
PROGRAM = """
import sys
source, paths = sys.argv.pop(1), [path for path in sys.path if path]
sys.path[:] = paths if source in paths else [source, *paths]
from epochmeter.__main__ import start
start("measure")
"""
"""Program of the controller; it must not import modules of the current folder, such as the script's own `json.py`.

`source` is not moved to the front: it may be site-packages, which must not hide modules of the standard library.
"""
MEASURED = "EPOCHMETER_MEASURED"
"""Environment variable with the process ID of a script that has a controller, for its child processes."""
END_LIMIT_S = 60.0  # how long a script waits for the end of its controller, which publishes to MLflow
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class Controller:
    """A controller, attached to this process, whose devices and meters are ready; `agent` has `Agent`'s arguments."""

    def __init__(self, overrides):
        reader, writer = os.pipe()
        command = [sys.argv[0] or "interactive", *sys.argv[1:]]
        if "ipykernel" in sys.modules:
            command = [os.path.basename(os.environ.get("JPY_SESSION_NAME", "")) or "notebook"]
        names = (*RANK_VARIABLES, "EPOCHMETER_AGENT")
        environment = {name: value for name, value in os.environ.items() if name not in names}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, SOURCE, *overrides, "--", *command],
            env=dict(environment, EPOCHMETER_ATTACHED=str(writer)),
            stdin=subprocess.DEVNULL,
            stdout=2,  # stdout is the script's
            pass_fds=[writer],
            start_new_session=True,  # Ctrl-C is for the script
        )
        os.close(writer)
        try:
            with open(reader) as pipe:
                line = pipe.readline()
        except BaseException:
            self._process.terminate()
            raise
        if not line:
            raise RuntimeError("the controller could not start")
        self.agent = json.loads(line)
        os.environ[MEASURED] = str(os.getpid())

    def wait(self):
        """Wait until the record of the run is complete and published."""
        os.environ.pop(MEASURED, None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_LIMIT_S)


def refusal():
    """Return why this process cannot have a controller of its own; empty if it can."""
    if int(os.environ.get("RANK", 0)) > 0:
        return "only the first rank starts a controller; for all ranks: `epochmeter run torchrun ...` (src/measure.py)"
    has_measured_parent = os.environ.get(MEASURED, str(os.getpid())) != str(os.getpid())
    if has_measured_parent or os.path.join(FOLDER, "path") in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        return "a parent process is measured already"
    return ""
