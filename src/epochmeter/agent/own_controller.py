"""The controller that a `Meter` starts for its process, and what takes its place without one."""

import contextlib
import json
import os
import subprocess
import sys
from typing import Any, Dict, List, Sequence, TextIO, Union

from epochmeter.agent.find_controller import NoControllerError, find_controller
from epochmeter.agent.unattended import Unattended
from epochmeter.shared import tool
from epochmeter.shared.events import AGENT_VARIABLE
from epochmeter.shared.events_version import events_version
from epochmeter.shared.types import Document

FOLDER = os.path.dirname(os.path.abspath(__file__))
MEASURED = "EPOCHMETER_MEASURED"
"""Environment variable with the process ID of a script that has a controller, for its child processes."""
END_LIMIT_S = 60.0  # how long a script waits for the end of its controller, which publishes to MLflow
OTHER_VERSION = "the controller {} is of another version than {}: install the same version"
OF_LIBRARIES = ("default_worker.py", "flwr-clientapp")
"""Programs of Ray and Flower, whose arguments are ports and tokens: they differ in each process of a script."""
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class Controller:
    """A controller, attached to this process, whose devices and meters are ready; `agent` has `Agent`'s arguments."""

    def __init__(self, overrides: Sequence[str]) -> None:
        names = (*RANK_VARIABLES, AGENT_VARIABLE)
        program, environment = find_controller({key: text for key, text in os.environ.items() if key not in names})
        reader, writer = os.pipe()
        with open(reader) as pipe:
            try:
                self._process = subprocess.Popen(
                    [*program, *overrides, "--", *script_command()],
                    env=dict(environment, EPOCHMETER_ATTACHED=str(writer)),
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # stdout is the script's
                    pass_fds=[writer],
                    start_new_session=True,  # Ctrl-C is for the script
                )
            finally:
                os.close(writer)
            try:
                self.agent = self._first_line(pipe, program[0])
            except BaseException as error:
                self._process.terminate()
                if isinstance(error, Exception):  # an interrupted script does not wait
                    self.wait()  # else Python warns of the process, in its development mode
                raise

    @staticmethod
    def _first_line(pipe: TextIO, program: str) -> Document:
        """Return the arguments of `Agent`, which the controller writes when it is ready; RuntimeError if it fails."""
        import epochmeter.agent.agent  # noqa: F401 - while the controller starts

        line = pipe.readline()
        if not line:
            raise RuntimeError("the controller could not start")
        settings: Dict[str, Any] = json.loads(line)
        if settings.pop("version", None) != events_version():
            raise RuntimeError(OTHER_VERSION.format(program, tool.PACKAGE))
        return settings

    def wait(self) -> None:
        """Wait until the record of the run is complete and published."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_LIMIT_S)


def start_controller(overrides: Sequence[str]) -> Union[Controller, Unattended]:
    """Start a controller with keys of `measure.py`; without one, keep the events for a later command."""
    for override in overrides:
        if "=" not in override:
            raise ValueError("`{}` is not valid: give key=value, such as `power_limit=100`".format(override))
    try:
        return Controller(overrides)
    except NoControllerError as error:
        return Unattended(script_command()[0], overrides, str(error))


def script_command() -> List[str]:
    """Return the script with its arguments, or a name for a notebook, an interactive Python or a library's program."""
    if "ipykernel" in sys.modules:
        return [os.path.basename(os.environ.get("JPY_SESSION_NAME", "")) or "notebook"]
    if os.path.basename(sys.argv[0]) in OF_LIBRARIES:
        return [os.path.basename(sys.argv[0])]
    return [sys.argv[0] or "interactive", *sys.argv[1:]]


def refusal() -> str:
    """Return why this process cannot have a controller of its own; empty if it can."""
    if int(os.environ.get("RANK", 0)) > 0:
        return "only the first rank starts a controller; for all ranks: `epochmeter run torchrun ...` (src/measure.py)"
    has_measured_parent = os.environ.get(MEASURED, str(os.getpid())) != str(os.getpid())
    if has_measured_parent or os.path.join(FOLDER, "path") in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        return "a parent process is measured already"
    return ""
